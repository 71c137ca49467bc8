"""Measure the noise between processes on a device: rounds of the same code, and their differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.request import Request, run_folder
from ssmperf.engine.execute.run import OpenRun, Progress, Silent, open_run
from ssmperf.engine.machine import calibration, devices
from ssmperf.engine.machine.calibration import UNKNOWN, Calibration, CalibrationSession, kind_of
from ssmperf.engine.plan.parts.apart import planned_apart
from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.run_options import Names
from ssmperf.engine.runs import store
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UsageError

SUITE = "throughput"
ROUNDS = 10
PER_KIND = 4  # cases of each kind that are measured in all rounds
TOO_LONG = ">100ms"  # kinds of this length would take most of the time
MOST_LAUNCHES = 5_000  # of a candidate: with more, a call is too long
# Candidates whose times lie between about 10 µs and 100 ms, for a host that issues many short calls and for a
# device at work; the first round says which kinds they are on this machine.
CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "models": ("mingru", "gla"),
        "backends": ("sequential", "blelloch", "chunkwise"),
        "axis": ("T=1,4,64,1024,16384",),
    },
    "cuda": {
        "models": ("mingru", "gla"),
        "backends": ("sequential", "blelloch", "chunkwise", "triton"),
        "axis": ("T=16,256,2048,16384",),
    },
}


@dataclass(frozen=True, slots=True)
class WrittenCalibration:
    """A calibration after its file was written.

    calibration: from the file, of this session and earlier ones. run: the rounds of this session.
    """

    calibration: Calibration
    path: Path
    run: Run


def calibrate(
    *,
    rounds: int = ROUNDS,
    device: str = "auto",
    models: Names | None = None,
    backends: Names | None = None,
    axis: Names | None = None,
    out: Path | None = None,
    argv: Sequence[str] = (),
    progress: Progress | None = None,
    **options: Any,
) -> WrittenCalibration:
    """Measure rounds on a device, and add them to its calibration file.

    Without models, backends and axis, the first round measures a broad selection of cases, and the others a
    few of each kind. Otherwise all rounds measure all cases that are selected, but no foreign backend that is
    not named.

    Raises:
        UsageError: as `execute` does, or too few rounds, or no case was measured twice.
        UnreadableRun: the device's calibration file is damaged.
    """
    if rounds < 2:
        raise UsageError(f"a calibration needs at least 2 rounds, got {rounds}")
    choices: dict[str, Any] = {"models": models, "backends": backends, "axis": axis}
    broad = not any(choices.values())
    if broad:
        choices = dict(CANDIDATES[devices.resolve(device)[0]])
    ask = partial(
        Request.of,
        SUITE,
        **choices,
        **options,
        device=device,
        rounds=rounds,
        out=run_folder(out, ("calibrate",)),
        argv=argv,
    )
    request, plan = planned_apart((), ask)
    _measure(request, plan, progress or Silent(), broad=broad, named=backends is not None)
    run = store.load(request.out)
    session, name = _session(run)
    found = calibration.save(Calibration.of_sessions(name, [session]))
    return WrittenCalibration(found, calibration.path_for(name), run)


def choose(records: Iterable[Record], most: int = PER_KIND) -> list[Case]:
    """Choose a few cases of each kind, from its fastest to its slowest. Very long ones are left out."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kind = kind_of(record.numbers)
        if record.status is Status.OK and kind != UNKNOWN and not kind.startswith(TOO_LONG):
            kinds.setdefault(kind, []).append(record)
    chosen = []
    for members in kinds.values():
        members.sort(key=lambda record: (record.numbers["latency_s"], record.case.id))
        count = min(most, len(members))
        places = {round(i * (len(members) - 1) / max(count - 1, 1)) for i in range(count)}
        chosen += [members[place].case for place in sorted(places)]
    return chosen


def _measure(request: Request, plan: Plan | None, progress: Progress, *, broad: bool, named: bool) -> None:
    """Run the rounds. broad: whether to choose cases after the first one. named: whether backends were."""
    rounds = request.options.rounds
    assert rounds is not None
    with open_run(request, progress, planned=plan) as opened:
        cases = [case for case in opened.to_run if named or not _is_foreign(case)]
        if broad:
            cases = [case for case in cases if _launches(case) <= MOST_LAUNCHES]
        progress.begin(len(cases) * rounds, 0)
        try:
            opened.run_round(0, cases)
            _session_so_far(opened)
            if broad:
                fewer = choose(store.load(request.out).records)
                progress.drop((len(cases) - len(fewer)) * (rounds - 1))
                cases = fewer
            for number in range(1, rounds):
                opened.run_round(number, cases)
        finally:
            progress.end()


def _session_so_far(opened: OpenRun) -> None:
    """Fail after the first round, not after the last, if the calibration's file cannot be used."""
    for environment in opened.writer.meta["environments"].values():
        calibration.load_for(calibration.device_name(environment))


def _session(run: Run) -> tuple[CalibrationSession, str]:
    """Make the session of a run, and name its device."""
    environments = dict(run.environments)
    if not environments:
        raise UsageError(f"no case was measured: nothing to calibrate with (run: {run.path})")
    env_id, environment = next(iter(environments.items()))
    session = CalibrationSession.of(run.rounds, calibration.software_of(environment, env_id))
    return session, calibration.device_name(environment)


def _is_foreign(case: Case) -> bool:
    backend = registry.backend(case.owner, case.backend)
    return registry.foreign("backend", f"{backend.of}/{backend.name}")


def _launches(case: Case) -> float:
    launches = registry.backend(case.owner, case.backend).launches
    return launches(case.shape) if launches else 0.0
