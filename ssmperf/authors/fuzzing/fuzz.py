"""Fuzz backends in the workers of a run: its folder, its secret, and what failed in earlier runs."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.authors.fuzzing.configurations.fixed import fixed_cases
from ssmperf.authors.fuzzing.configurations.space import SUITE, Space, budget_of, sampled
from ssmperf.authors.fuzzing.faults import FuzzFault
from ssmperf.authors.fuzzing.in_process import FuzzBench, ThisProcess, crashed
from ssmperf.authors.fuzzing.in_workers import working
from ssmperf.authors.fuzzing.result import FuzzResult
from ssmperf.authors.fuzzing.session import FuzzSession, Goal, Tally
from ssmperf.authors.fuzzing.targets import spaces_of
from ssmperf.authors.verification.bench import NO_CEILINGS, entry_of
from ssmperf.authors.verification.binding import names_taken
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.context import Settings
from ssmperf.engine.execute.request import File, Request, run_folder, select
from ssmperf.engine.execute.run import Silent, open_run
from ssmperf.engine.plan import nonce
from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.run_options import Names, RunOptions, names
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.processes.cores import count_cores
from ssmperf.engine.runs import store
from ssmperf.errors import UsageError

MINUTES = 5.0  # where neither minutes nor examples are named
FOLDER = Path("runs")
FAILED = FOLDER / "fuzz-failures.jsonl"  # configurations that failed in runs of this project
MOST_FAILED = 200
SEEDS = 1 << 32
FIXED_SHARE = 0.1  # of the examples that are asked for, at most
WATCH_EVERY = 10  # examples of a foreign backend, between two looks at what it leaves behind


@dataclass(frozen=True)
class FuzzRequest:
    """A request: the backends to fuzz, for how long, and where the run is stored."""

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
        goal = goal_of(minutes, examples)
        folder = run_folder(out, (SUITE,), resume=resume)
        seed = _seed(seed, folder if resume else None)
        selection, devices = select(models=owners, backends=backends, device=device)
        if selection.device.type == "cpu":
            selection = replace(selection, device=replace(selection.device, workers=count_cores()))
        spaces, left_out = spaces_of(names(owners), selection.backends, selection.device)
        options = RunOptions(nonce=_nonce(seed))
        request = Request((SUITE,), selection, devices, folder, options, resume=resume, argv=tuple(argv))
        return cls(request, spaces, left_out, seed, goal)


def fuzz(asked: FuzzRequest, tell: Callable[[str, Tally], None] = lambda text, tally: None) -> FuzzResult:
    """Fuzz, and store every example as a record of a run.

    Raises:
        UsageError: the folder cannot be used.
        WorkerFailed: no worker could be started.
    """
    with open_run(asked.request, Silent(), planned=Plan(()), watch_every=WATCH_EVERY) as opened:
        opened.writer.note({"fuzz": {"seed": asked.seed}})
        with working(opened, asked.spaces[0].device) as workers:
            session = FuzzSession(workers, asked.spaces, asked.seed, asked.goal, tell)
            faults = session.run(failed_before(asked.spaces), fixed(asked.spaces, asked.goal))
    remember(faults)
    return FuzzResult(asked.request.out, asked.seed, faults, session.tally, asked.left_out)


def fuzz_function(
    of: str,
    function: Callable[..., Any],
    selection: Selection,
    device: str,
    seed: int | None,
    *,
    minutes: float | None,
    examples: int | None,
) -> FuzzResult:
    """Fuzz a function in this process; earlier processes that it has ended count as faults.

    Raises:
        UsageError: it is no function or takes no kind of gate, or a number is illegal.
    """
    entry = entry_of(of, function, registry.recurrence(registry.recurrence_of(of)))
    seed = _seed(seed, None)
    type_, left_out = selection.device.type, dict[str, str]()
    space = Space(of, entry, type_, budget_of(entry, type_))
    if callable(function):
        space, left_out = _with_gates_taken(space, function)
        entry = space.backend
    bench = FuzzBench(device, "", Settings(), NO_CEILINGS, nonce=_nonce(seed), entry=entry)
    examiner = ThisProcess(bench, selection, FOLDER)
    session = FuzzSession(examiner, [space], seed, goal_of(minutes, examples))
    ended = crashed(FOLDER, of, entry.name)
    faults = [*ended, *session.run(failed_before([space]), fixed([space], session.goal))]
    session.tally.faults = len(faults)
    remember([fault for fault in faults if fault not in ended])  # which would end this process, too
    return FuzzResult(None, seed, faults, session.tally, left_out)


def _with_gates_taken(space: Space, function: Callable[..., Any]) -> tuple[Space, dict[str, str]]:
    """Keep the kinds of gates for whose operands a function has parameters, and say why not others.

    Raises:
        UsageError: there is none.
    """
    taken, name = names_taken(function, space.recurrence), space.recurrence.name
    missing = {kind: [each for each in sampled(name, kind) if each not in taken] for kind in space.gate_kinds}
    left_out = {
        f"gates {kind or 'none'}": f"the function has no parameter for {', '.join(names)}"
        for kind, names in missing.items()
        if names
    }
    gates = tuple(kind for kind, names in missing.items() if not names)
    if not gates:
        raise UsageError(f"{space.backend.name} cannot be fuzzed: {'; '.join(left_out.values())}")
    return replace(space, backend=replace(space.backend, gates=gates)), left_out


def goal_of(minutes: float | None, examples: int | None) -> Goal:
    """Say when a session ends. Raises UsageError for a number that is not above 0."""
    for name, value in (("minutes", minutes), ("examples", examples)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} must be above 0, got {value}")
    minutes = MINUTES if minutes is None and examples is None else minutes
    return Goal(None if minutes is None else 60 * minutes, examples)


def fixed(spaces: Sequence[Space], goal: Goal) -> list[Case]:
    """List the fixed cases, as far as they are a small part of the examples."""
    return list(fixed_cases(spaces, None if goal.examples is None else int(FIXED_SHARE * goal.examples)))


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


def _nonce(seed: int) -> int:
    return random.Random(seed).getrandbits(nonce.BITS) * nonce.SPACING


def _seed(wanted: int | None, resumed: Path | None) -> int:
    """Choose the seed: the one that is wanted, that of the run that goes on, or a fresh one."""
    if wanted is not None:
        if not 0 <= wanted < SEEDS:
            raise UsageError(f"--seed must be a whole number below {SEEDS}, got {wanted}")
        return wanted
    if resumed is not None and (resumed / store.RUN_FILE).exists():
        kept = store.load(resumed).meta.get("fuzz")
        if isinstance(kept, Mapping) and isinstance(kept.get("seed"), int):
            return int(kept["seed"])
    return secrets.randbelow(SEEDS)
