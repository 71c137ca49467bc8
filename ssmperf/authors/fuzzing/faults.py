"""Faults: records that say the same, and the smallest configuration that shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.packing import UNPACKED
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status

NEAR = "near_tolerance"  # note of a record: how often an error near its tolerance was right on other values
WRONG = (Status.WRONG, Status.NAN, Status.CRASH, Status.TIMEOUT)
HANG = "hang"
_NUMBER = re.compile(r"(?<!float)(?<!complex)(?<!\d)\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")  # of no dtype


@dataclass(frozen=True, slots=True)
class FaultKind:
    """The traits that two failures of the same fault share.

    what: the wrong object, such as "gradient of q", or "hang", or else the reason without its numbers.
    explanation: the kind of error that the diagnosis has found; empty if it has found none.
    finite: False if the object has numbers that are not finite.
    """

    owner: str
    backend: str
    what: str
    explanation: str = ""
    finite: bool = True

    @property
    def place(self) -> tuple[str, str, str, bool]:
        """The traits that stay the same while a configuration is shrunk."""
        return self.owner, self.backend, self.what, self.finite


def kind_of(record: Record) -> FaultKind | None:
    """Name the fault that a record shows; None if it shows none."""
    if record.status not in WRONG:
        return None
    case, diagnosis = record.case, record.numbers.get("diagnosis") or ()
    worst = next((each for each in diagnosis if each.get("object")), None)
    if record.status is Status.TIMEOUT:
        return FaultKind(case.owner, case.backend, HANG)
    if worst is None:
        return FaultKind(case.owner, case.backend, f"{record.status}: {without_numbers(str(record.reason))}")
    what, explanation = str(worst["object"]), str(worst.get("kind") or "")
    return FaultKind(case.owner, case.backend, what, explanation, record.status is not Status.NAN)


def is_simplest(case: Case) -> bool:
    """Tell whether no configuration is smaller than that of a case."""
    plain = (case.packing, case.call, case.dtype) == (UNPACKED, PLAIN, "float32")
    return plain and set(case.shape.values()) == {1}


def without_numbers(text: str) -> str:
    """Give a text in which every number is a `#`."""
    return _NUMBER.sub("#", text)


@dataclass(slots=True)
class FuzzFault:
    """A fault with its smallest configuration.

    record: that of the smallest configuration. first: that of the configuration that was drawn.
    failed, of: how often the smallest one failed when it was repeated. count: of examples that show it.
    shrunk: whether the smallest one was looked for, or there is nothing smaller.
    judged: candidates that were judged to find the smallest one.
    experiments: what experiments on the smallest configuration show; empty if nothing.
    """

    kind: FaultKind
    record: Record
    first: Record
    failed: int = 0
    of: int = 0
    count: int = 1
    judged: int = 0
    shrunk: bool = False
    experiments: str = ""

    @property
    def command(self) -> str:
        """The command that repeats the smallest configuration."""
        return str(self.record.numbers.get("command", ""))

    @property
    def finding(self) -> str:
        """The smallest configuration, and what is wrong with it."""
        return f"{self.record.case}: {self.record.status}: {self.record.reason}"

    def __str__(self) -> str:
        text = f"{self.finding}. {self.experiments}" if self.experiments else self.finding
        return f"{text} ({self.failed} of {self.of}, {self.count} examples)"

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return {
            "owner": self.kind.owner,
            "backend": self.kind.backend,
            "what": self.kind.what,
            "explanation": self.kind.explanation,
            "status": str(self.record.status),
            "reason": self.record.reason,
            "case_id": self.record.case.id,
            "case": self.record.case.to_json(),
            "first_case_id": self.first.case.id,
            "failed": self.failed,
            "repeated": self.of,
            "examples": self.count,
            "judged": self.judged,
            "experiments": self.experiments,
            "command": self.command,
        }


def merged(faults: Iterable[FuzzFault]) -> list[FuzzFault]:
    """Join faults whose smallest configuration is the same but for the seed. The smallest comes first."""
    found: dict[Case, FuzzFault] = {}
    for fault in faults:
        if (same := found.setdefault(replace(fault.record.case, seed=0), fault)) is not fault:
            same.count += fault.count
    return sorted(found.values(), key=lambda fault: size_of(fault.record.case))


def size_of(case: Case) -> tuple[int, int, int]:
    """Numbers by which configurations are ordered: elements, steps, and words of the call."""
    return (
        math.prod(case.shape.values()),
        case.shape["T"],
        0 if case.call == PLAIN else len(case.call.split()),
    )
