"""Judge the examples of one function in this process, for a test or a notebook cell.

Each example is on disk before its call, so that a crash of the process names it the next time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmperf.authors.fuzzing.faults import FaultKind, FuzzFault
from ssmperf.authors.verification.bench import UntimedBench, like_a_worker, refusal_of
from ssmperf.engine.cases.calls.call import NONE as PLAIN
from ssmperf.engine.cases.calls.packing import UNPACKED
from ssmperf.engine.cases.case import LAYOUTS, Case, split_source
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.plan.refusal import form_problem
from ssmperf.engine.plan.selection import Selection

RUNNING = "fuzz-running-{pid}.json"  # the example that a process is about to call
CRASHED = "the process ended during its call"


@dataclass
class FuzzBench(UntimedBench):
    """A bench whose cases are repeated by a call of `ssmperf.verify`."""

    def command(self, case: Case) -> str:
        return verify_call(case)


@dataclass
class ThisProcess:
    """Judges the examples of one function.

    folder: where the example that is being called is written.
    """

    context: FuzzBench
    selection: Selection
    folder: Path
    _groups: Sequence[Sequence[Case]] = ()
    _seen: set[str] = field(default_factory=set)

    def done(self, case: Case) -> bool:
        return case.id in self._seen

    def begin(self, groups: Sequence[Sequence[Case]]) -> None:
        self._groups = groups

    def expect(self, groups: Sequence[Sequence[Case]]) -> None:
        """Do nothing: what is called in this process is compiled there."""

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        found = []
        for group in self._groups:
            if time.monotonic() < ends_s:
                found += [self._record(case) for case in group]
        self._groups = ()
        return found

    def trust(self, *, wrong: bool) -> None:
        """Do nothing: there is one process."""

    def _record(self, case: Case) -> Record:
        self._seen.add(case.id)
        recurrence = self.context.recurrence(case)
        problem = form_problem(case, recurrence) or refusal_of(case, self.context.entry, self.selection)
        if problem:
            return Record(case, Status.UNSUPPORTED, problem)
        with like_a_worker(self.context.device), self._on_disk(case):
            return run_case(case, self.context, passed_on=(KeyboardInterrupt,))

    @contextlib.contextmanager
    def _on_disk(self, case: Case) -> Iterator[None]:
        file = self.folder / RUNNING.format(pid=os.getpid())
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(case.to_json()))
        yield
        file.unlink(missing_ok=True)


def crashed(folder: Path, owner: str, backend: str) -> list[FuzzFault]:
    """List the examples of a function during which earlier processes have ended, and forget them."""
    found = []
    for file in sorted(folder.glob(RUNNING.format(pid="*"))):
        if _is_alive(file.stem.rpartition("-")[2]):
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # it was not written whole
            case = Case.from_json(json.loads(file.read_text()))
            if (case.owner, case.backend) != (owner, backend):
                continue
            record = Record(case, Status.CRASH, CRASHED, None, {"command": verify_call(case)})
            found.append(FuzzFault(FaultKind(owner, backend, f"crash: {CRASHED}"), record, record, 1, 1))
        file.unlink(missing_ok=True)
    return found


def _is_alive(pid: str) -> bool:
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def verify_call(case: Case) -> str:
    """Write the call of `ssmperf.verify` that judges a case's configuration, on other values."""
    regime, kind = split_source(case.operand_source)
    given: dict[str, Any] = {"dtype": case.dtype, "gate_dtype": case.gate_dtype, "seed": case.seed}
    given |= {"regime": regime, "gates": kind} if case.model is None else {}
    given |= {"layout": case.layout, "packing": case.packing, "call": case.call, "device": case.device}
    given |= {"gradients": case.gradients}
    plain = {"layout": LAYOUTS[0], "packing": UNPACKED, "call": PLAIN, "gradients": True, "seed": 0}
    packed = case.packing != UNPACKED
    sizes = {letter: size for letter, size in case.shape.items() if not (packed and letter in "BT")}
    words = [f"{name}={value!r}" for name, value in given.items() if plain.get(name) != value]
    words += [f"{letter}={size}" for letter, size in sizes.items()]
    return f"ssmperf.verify({case.owner!r}, {case.backend}, {', '.join(words)})"
