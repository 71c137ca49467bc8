"""Fuzz backends in the workers of a run: its folder, its secret, and what failed in earlier runs."""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssmperf.authors.fuzzing.faults import FuzzFault
from ssmperf.authors.fuzzing.session import FuzzSession, Goal, Tally
from ssmperf.authors.fuzzing.space import SUITE, Space
from ssmperf.authors.fuzzing.targets import spaces_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.request import File, Request, run_folder, select
from ssmperf.engine.execute.run import Silent, open_run
from ssmperf.engine.plan import nonce
from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.run_options import Names, RunOptions, names
from ssmperf.engine.runs import store
from ssmperf.errors import UsageError

MINUTES = 5.0  # where neither minutes nor examples are named
FAILED = Path("runs") / "fuzz-failures.jsonl"  # configurations that failed in runs of this project
MOST_FAILED = 200
SEEDS = 1 << 32


@dataclass(frozen=True)
class FuzzRequest:
    """What is fuzzed, for how long, and where the run is stored."""

    request: Request
    spaces: Sequence[Space]
    left_out: Mapping[str, str]
    seed: int
    goal: Goal

    @classmethod
    def of(
        cls,
        owners: Names | None,
        *,
        backends: Names | None = None,
        minutes: float | None = None,
        examples: int | None = None,
        seed: int | None = None,
        device: str = "auto",
        out: File | None = None,
        resume: bool = False,
        argv: Sequence[str] = (),
    ) -> FuzzRequest:
        """Make a request of the arguments of `ssmperf fuzz`.

        Raises:
            UsageError: a name is unknown, a number is illegal, or no backend can run here.
        """
        for name, value in (("--minutes", minutes), ("--examples", examples)):
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {value}")
        folder = run_folder(out, (SUITE,), resume=resume)
        seed = _seed(seed, folder, resume=resume)
        selection, devices = select(models=owners, backends=backends, device=device)
        if selection.device.type == "cpu":
            selection = replace(selection, device=replace(selection.device, workers=_cores()))
        spaces, left_out = spaces_of(names(owners), selection.backends, selection.device)
        options = RunOptions(nonce=random.Random(seed).getrandbits(nonce.BITS) * nonce.SPACING)
        request = Request((SUITE,), selection, devices, folder, options, resume=resume, argv=tuple(argv))
        minutes = MINUTES if minutes is None and examples is None else minutes
        return cls(request, spaces, left_out, seed, Goal(None if minutes is None else 60 * minutes, examples))


@dataclass(frozen=True)
class FuzzResult:
    """What a run of examples has found.

    left_out: why backends that were named were not fuzzed.
    """

    path: Path
    seed: int
    faults: Sequence[FuzzFault]
    tally: Tally
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return {
            "run": str(self.path),
            "seed": self.seed,
            "examples": self.tally.examples,
            "classes": self.tally.classes,
            "right": self.tally.right,
            "out_of_memory": self.tally.out_of_memory,
            "refused": dict(self.tally.refused),
            "left_out": dict(self.left_out),
            "faults": [fault.to_json() for fault in self.faults],
        }


def fuzz(asked: FuzzRequest, tell: Callable[[str, Tally], None] = lambda text, tally: None) -> FuzzResult:
    """Fuzz, and store every example as a record of a run.

    Raises:
        UsageError: the folder cannot be used.
        WorkerFailed: no worker could be started.
    """
    with open_run(asked.request, Silent(), planned=Plan(())) as opened:
        opened.writer.note({"fuzz": {"seed": asked.seed}})
        session = FuzzSession(opened, asked.spaces, asked.seed, asked.goal, tell)
        faults = session.run(failed_before(asked.spaces))
    remember(faults)
    return FuzzResult(asked.request.out, asked.seed, faults, session.tally, asked.left_out)


def failed_before(spaces: Sequence[Space]) -> list[Case]:
    """List the configurations of some spaces that failed in earlier runs."""
    wanted = {(space.owner, space.backend.name, space.device) for space in spaces}
    return [case for case in _remembered() if (case.owner, case.backend, case.device) in wanted]


def remember(faults: Sequence[FuzzFault]) -> None:
    """Keep the smallest configurations of faults for the next run, the newest first."""
    cases = {case.id: case for case in (*(fault.record.case for fault in faults), *_remembered())}
    if faults:
        FAILED.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(case.to_json()) + "\n" for case in [*cases.values()][:MOST_FAILED])
        FAILED.write_text("".join(lines))


def _remembered() -> list[Case]:
    try:
        lines = FAILED.read_text().splitlines()
        return [Case.from_json(json.loads(line)) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{FAILED} cannot be read ({error}): delete it") from error


def _seed(wanted: int | None, folder: Path, *, resume: bool) -> int:
    """Choose the seed: the one that is wanted, that of the run that goes on, or a fresh one."""
    if wanted is not None:
        if not 0 <= wanted < SEEDS:
            raise UsageError(f"--seed must be a whole number below {SEEDS}, got {wanted}")
        return wanted
    if resume and (folder / store.RUN_FILE).exists():
        kept = store.load(folder).meta.get("fuzz")
        if isinstance(kept, Mapping) and isinstance(kept.get("seed"), int):
            return int(kept["seed"])
    return secrets.randbelow(SEEDS)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
