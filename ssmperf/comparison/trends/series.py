"""Read many runs as one series per case and device, in the order of their dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.origin import Origin, moment
from ssmperf.engine.cases.record import Record, Status, one_line
from ssmperf.engine.machine.calibration import device_name
from ssmperf.engine.runs.folders import load_all
from ssmperf.engine.runs.rounds import values_of
from ssmperf.engine.runs.scope import Restriction
from ssmperf.engine.runs.standings import environment_of, rank_fields
from ssmperf.engine.runs.store import Run, some
from ssmperf.errors import UnreadableRun

LEAST, MOST = 1e-30, 1e30  # of a number: no unit needs more, and ratios and their intervals do not overflow
UNKNOWN_DEVICE = "unknown device"


@dataclass(frozen=True, slots=True)
class Point:
    """A case in one run: the number by which its suite ranks it, and when and of which code it was measured.

    run: the run's folder. low, high: ends of the interval within the run, which does not cover what changes
    between runs; None without one.
    """

    run: Path
    date: datetime
    origin: Origin
    value: float
    low: float | None
    high: float | None

    @property
    def commit(self) -> str | None:
        """The commit of the code that was measured: that of a plug-in's file for its backends."""
        origin = self.origin
        return origin.plugin_commit if origin.plugin is not None else origin.commit

    @property
    def dirty(self) -> bool | None:
        """Whether there were changes beyond the commit."""
        origin = self.origin
        return origin.plugin_dirty if origin.plugin is not None else origin.dirty

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            **self.origin.to_json(),
            "value": self.value,
            "low": self.low,
            "high": self.high,
        }


@dataclass(frozen=True, slots=True)
class Series:
    """A case on one device, in the runs in which it was ok, the earliest first.

    rank: by which number its suite ranks it. numbers: those of its runs among all runs.
    records: each with its run.
    """

    case: Case
    device: str
    rank: str
    points: tuple[Point, ...]
    numbers: tuple[int, ...]
    records: tuple[tuple[Run, Record], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was read: series by device and case, the runs in the order of their dates, and what is left out.

    left_out: text per run, folder or part of a run, which says why.
    """

    series: tuple[Series, ...]
    runs: tuple[Run, ...]
    left_out: tuple[str, ...]


def gather(paths: Sequence[Path], restriction: Restriction) -> Gathered:
    """Read all runs and files of pytest-benchmark that are named, or lie in a folder that is named.

    Runs of different devices are in different series. Of runs that measured in different ways, those that
    measured like the last run of the device are kept.

    Raises:
        UnreadableRun: as from `load_all`; or no run has a date.
        UnknownName: no case has a name of the restriction.
    """
    runs, left_out = load_all(paths)
    dated = []
    for run in runs:
        try:
            dated.append((_date(run), str(run.path), run))
        except UnreadableRun as error:
            left_out.append(str(error))
            continue
        left_out += run.warnings
    if not dated:
        raise UnreadableRun(some(left_out))
    runs = [run for _, _, run in sorted(dated, key=lambda each: each[:2])]
    restriction.check(record.case for run in runs for record in run.records)
    series = _series(runs, restriction, left_out)
    return Gathered(tuple(series), tuple(runs), tuple(left_out))


def _date(run: Run) -> datetime:
    """Read when a run was started.

    Raises:
        UnreadableRun: it does not say so.
    """
    date = moment(run.meta.get("created"))
    if date is None:
        raise UnreadableRun(f"{run.path}: it has no date, so it has no place among the others")
    return date


def _series(runs: Sequence[Run], restriction: Restriction, left_out: list[str]) -> list[Series]:
    """Put the records of all runs into series, by device and case."""
    versions = _measurements(runs)
    found: dict[tuple[str, str], list[tuple[int, Run, Record]]] = {}
    for number, run in enumerate(runs):
        odd = sorted({device for device in _devices(run) if versions[device] != _measurement(run)})
        left_out += [
            f"{run.path}: on {device}, it measured in another way than the last run there (measurement "
            f"{_measurement(run)}, not {versions[device]})"
            for device in odd
        ]
        for record in run.records:
            device = _device(run, record)
            if device not in odd and restriction.keeps(record.case):
                found.setdefault((device, record.case.id), []).append((number, run, record))
    made = (_one(device, members, left_out) for (device, _), members in found.items())
    return sorted((each for each in made if each is not None), key=_order)


def _order(series: Series) -> tuple[Any, ...]:
    case = series.case
    names = (series.device, case.suite, case.subject, case.backend, case.dtype, case.pass_)
    return (*names, tuple(case.shape.items()), case.id)


def _one(device: str, members: Sequence[tuple[int, Run, Record]], left_out: list[str]) -> Series | None:
    """Make the series of one case; None if nothing ranks it, or it never was ok."""
    case = members[-1][2].case
    rank = rank_fields(members[-1][1].meta).get(case.suite)
    if rank is None:
        return None
    kept = []
    for number, run, record in members:
        for value in values_of([record], rank):
            if LEAST < value < MOST:
                kept.append((number, run, record))
            else:
                text = f"{one_line(str(case))} ({case.id[:8]}) of {run.path} is left out"
                left_out.append(f"{text}: its {rank} is {value:.3g}, which is no measurement")
    if not kept:
        return None
    return Series(
        case,
        device,
        rank,
        tuple(_point(run, record, rank) for _, run, record in kept),
        tuple(number for number, _, _ in kept),
        tuple((run, record) for _, run, record in kept),
    )


def _point(run: Run, record: Record, rank: str) -> Point:
    stem, _, unit = rank.rpartition("_")
    low, high = (_number(record.numbers.get(f"{stem}_{end}_{unit}")) for end in ("low", "high"))
    return Point(run.path, _date(run), Origin.of(run, record), float(record.numbers[rank]), low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _measurements(runs: Sequence[Run]) -> Mapping[str, Any]:
    """Give for each device how its last run measured."""
    return {device: _measurement(run) for run in runs for device in _devices(run)}


def _measurement(run: Run) -> Any:
    return run.meta.get("measurement", 1)


def _devices(run: Run) -> list[str]:
    ok = (record for record in run.records if record.status is Status.OK)
    return list(dict.fromkeys(_device(run, record) for record in ok))


def _device(run: Run, record: Record) -> str:
    """Name the hardware that a record was measured on."""
    environment: Any = run.environments.get(environment_of(run, record) or "")
    try:
        return device_name(environment)
    except (KeyError, TypeError, AttributeError):  # an environment that names no device
        return UNKNOWN_DEVICE
