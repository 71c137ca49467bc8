"""Record: the outcome of one case, as one flat JSON object with a versioned schema.

What looks wrong and may be innocent, such as a peak of memory below the output's size, is listed in `doubts`.
A busy machine is described in `busy`. No status depends on either.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.reading import are_floats
from ssmperf.errors import UnreadableRun, UsageError

SCHEMA_VERSION = 1
LONGEST_REASON = 500


class Status(enum.StrEnum):
    """How a case ended. Every planned case ends with exactly one status."""

    OK = "ok"
    WRONG = "wrong"
    NAN = "nan"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNSUPPORTED = "unsupported"


SPENT = "spent_s"  # how long the case took of the run; a failed one did, too
# Numbers with these endings are allowed in `ok` records only: a failed case has no time.
ONLY_WHEN_OK = ("_s", "_per_s", "_j", "_fraction")
_NUMERIC = (*ONLY_WHEN_OK, "_bytes")


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one case: a status, a reason, and numbers and notes by name, units at the end of names.

    Missing numbers are None, never 0. A record whose status is not `ok` carries no time, rate, energy or
    fraction: the constructor raises ValueError if it is given one. It does carry the time that its case took
    of the run. The reason, which may be the message of any exception, is kept as one printable line (see
    `one_line`).
    """

    case: Case
    status: Status
    reason: str | None = None
    env_id: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", one_line(self.reason))
        if self.status is not Status.OK:
            timed = [
                name
                for name, value in self.numbers.items()
                if name.endswith(ONLY_WHEN_OK) and value is not None and name != SPENT
            ]
            if timed:
                raise ValueError(f"a {self.status} record must not carry {', '.join(timed)}")
            if not self.reason:
                raise ValueError(f"a {self.status} record needs a reason")

    def to_json(self) -> dict[str, Any]:
        """Return one flat JSON object; NaN and infinity become null, since JSON has neither.

        Lone surrogates, which cannot be written to a file or terminal, become question marks.
        """
        head: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "case_id": self.case.id,
            "env_id": self.env_id,
            **self.case.to_json(),
            "status": str(self.status),
            "reason": self.reason,
        }
        overlap = head.keys() & self.numbers.keys()
        if overlap:
            raise ValueError(f"numbers must not redefine {', '.join(sorted(overlap))}")
        return {**head, **{name: _writable(value) for name, value in self.numbers.items()}}

    def to_line(self) -> str:
        """Return the record as one line of `records.jsonl`, without the newline."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read a record of this or an older schema.

        Raises:
            UnreadableRun: the schema is newer, or the object is no record.
        """
        version = data.get("schema_version") if isinstance(data, Mapping) else None
        if not isinstance(version, int):
            raise UnreadableRun("a record without a schema_version")
        if version > SCHEMA_VERSION:
            raise UnreadableRun(
                f"a record of schema {version}; this ssmperf reads up to {SCHEMA_VERSION}: upgrade ssmperf"
            )
        try:
            case = Case.from_json(data)
            status = Status(data["status"])
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise UnreadableRun(f"a damaged record: {error!r}") from error
        fields = case.to_json()
        head = {"schema_version", "case_id", "env_id", "status", "reason", *fields}
        numbers = {name: value for name, value in data.items() if name not in head}
        texts = fields.keys() - {"shape", "seed", "model"}
        damaged = [name for name in texts if not isinstance(fields[name], str)]
        damaged += [n for n in ("model", "reason", "env_id") if not isinstance(data.get(n), str | None)]
        damaged += [n for n, value in numbers.items() if n.endswith(_NUMERIC) and not _numeric(value)]
        if damaged:
            raise UnreadableRun(f"a damaged record: {damaged[0]} has a value of a wrong type")
        try:
            return cls(case, status, data.get("reason"), data.get("env_id"), numbers)
        except ValueError as error:
            raise UnreadableRun(f"a damaged record: {error}") from error


def one_line(text: str) -> str:
    """Turn text into one line that any terminal can show: printable and at most 500 characters long."""
    shown = "".join(letter if letter.isprintable() or letter.isspace() else "\ufffd" for letter in text)
    return " ".join(shown.split())[:LONGEST_REASON]


def _writable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(value) if are_floats(value) else [_writable(item) for item in value]
    return value


def _numeric(value: Any) -> bool:
    """Tell whether a value is a number, None, or a list of these."""
    if isinstance(value, list):
        return are_floats(value) or all(item is None or _is_number(item) for item in value)
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
