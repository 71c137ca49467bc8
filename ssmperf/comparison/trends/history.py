"""The history of cases over many runs: steps with their commits, and the cumulative alarm."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmperf.comparison.environments import differences
from ssmperf.comparison.outcome import percent
from ssmperf.comparison.trends.creep import find_creeps
from ssmperf.comparison.trends.least_step import FEWEST_RUNS, POWER, least_steps
from ssmperf.comparison.trends.noise import Shuffles
from ssmperf.comparison.trends.series import Point, Series, gather
from ssmperf.comparison.trends.steps import ChangePoint, find_changes
from ssmperf.engine.cases.case import Case
from ssmperf.engine.runs.scope import Restriction
from ssmperf.engine.runs.store import Run
from ssmperf.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import pandas

ALARMS = ("show", "fail")
FRESH_RUNS = 10  # a slow-down is fresh as long as no more runs have followed its first one, itself included
COMMIT_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """A place at which the times of a case have stepped.

    before, after: the last run before it, and the first one after it; the latter's commit made it, or one
        between both.
    place: number of the first point after it. ratio: after over before, over all runs to the next steps.
    low, high: an interval of the ratio at 99 %. p: adjusted for all places and cases.
    fresh: whether it slowed the case down, is the last step, and few runs have followed.
    changes: what else differs between both runs and makes times incomparable, such as a driver.
    """

    case: Case
    device: str
    place: int
    before: Point
    after: Point
    ratio: float
    low: float
    high: float
    p: float
    fresh: bool
    changes: tuple[str, ...] = ()

    @property
    def slower(self) -> bool:
        """Whether the case became slower."""
        return self.ratio > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "case_id": self.case.id,
            "device": self.device,
            "direction": "slower" if self.slower else "faster",
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "fresh": self.fresh,
            "run": str(self.after.run),
            "date": self.after.origin.date,
            "commit": self.after.commit,
            "tag": self.after.origin.tag,
            "previous_run": str(self.before.run),
            "previous_commit": self.before.commit,
            "changes": list(self.changes),
        }


@dataclass(frozen=True, slots=True)
class Alarm:
    """A case that has become slower since a baseline, by however small changes.

    baseline: the run from which on it counts. since: the run at which the rise begins, as far as is known.
    ratio: end over beginning of the rise. low, high: an interval of it at 99 %. p: adjusted for all cases.
    """

    baseline: Point
    since: Point
    ratio: float
    low: float
    high: float
    p: float

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": str(self.baseline.run),
            "since": str(self.since.run),
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "p": self.p,
        }


@dataclass(frozen=True, slots=True)
class CaseHistory:
    """The history of one case on one device.

    points: in the order of their dates. least_step: ratio from which on a step would have been found; see
        `ssmperf.comparison.trends.least_step`. None if a step of any size would have been missed.
    """

    case: Case
    device: str
    field: str
    points: tuple[Point, ...]
    least_step: float | None
    steps: tuple[Step, ...] = ()
    alarm: Alarm | None = None

    @property
    def change(self) -> float:
        """The last value over the first one."""
        return self.points[-1].value / self.points[0].value

    @property
    def overlooks(self) -> str:
        """Say which steps would not have been found."""
        return "any step" if self.least_step is None else f"steps below {_size_text(self.least_step)}"

    @property
    def behind(self) -> bool:
        """Whether the last run stands behind a fresh slow-down, or the cumulative alarm is raised."""
        return self.alarm is not None or any(step.fresh for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "case_id": self.case.id,
            **self.case.to_json(),
            "device_name": self.device,
            "field": self.field,
            "points": [point.to_json() for point in self.points],
            "change": self.change,
            "least_step": self.least_step,
            "steps": [step.to_json() for step in self.steps],
            "alarm": self.alarm.to_json() if self.alarm else None,
        }


@dataclass(frozen=True)
class History:
    """Many runs, as one history per case and device.

    runs: those that were read, in the order of their dates. left_out: runs, and parts of runs, that were not
        used, and why.
    threshold: steps whose interval does not reach it are not reported.
    alarm: "fail" if a fresh slow-down or a raised alarm is a failure, else "show".
    """

    cases: tuple[CaseHistory, ...]
    runs: tuple[Run, ...]
    left_out: tuple[str, ...]
    threshold: float
    alarm: str = "show"

    @property
    def steps(self) -> list[Step]:
        """All steps, in the order of their dates."""
        found = [step for each in self.cases for step in each.steps]
        return sorted(found, key=lambda step: step.after.date)

    @property
    def behind(self) -> list[CaseHistory]:
        """The cases that stand behind a fresh slow-down, or whose cumulative alarm is raised."""
        return [each for each in self.cases if each.behind]

    @property
    def ok(self) -> bool:
        return not self.behind

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.REGRESSION if self.behind and self.alarm == "fail" else ExitCode.OK

    @property
    def conclusion(self) -> str:
        """One sentence with the numbers of all that was found."""
        fresh = sum(step.fresh for step in self.steps)
        creeping = sum(each.alarm is not None for each in self.cases)
        parts = [_count(len(self.steps), "step"), f"{fresh} fresh", _count(creeping, "cumulative alarm")]
        shown = {point.run for each in self.cases for point in each.points}
        runs = [run for run in self.runs if run.path in shown] or self.runs
        days = [run.meta["created"][:10] for run in (runs[0], runs[-1])]
        over = f"{_count(len(self.cases), 'case')} over {_count(len(runs), 'run')}"
        return f"{over}, {days[0]} to {days[1]}: {', '.join(parts)} (threshold {percent(self.threshold)})"

    @property
    def could_have_found(self) -> str:
        """One sentence: from which size on would a step in the middle have been found, 4 times in 5?"""
        lengths = sorted(len(each.points) for each in self.cases)
        if not lengths:
            return "no case has a time, so there was no step to find"
        least, most = lengths[0], lengths[-1]
        runs = _count(most, "run") if least == most else f"{least} to {_count(most, 'run')}"
        sizes = sorted(each.least_step for each in self.cases if each.least_step is not None)
        blind = len(lengths) - len(sizes)
        if not sizes:
            why = f"too few, it takes {FEWEST_RUNS}" if most < FEWEST_RUNS else "too few for such noise"
            return f"{runs}: could have found no step of any size ({why})"
        texts = [_size_text(sizes[place]) for place in (0, len(sizes) // 2, -1)]
        found = f"{runs}: could have found a step from {texts[0]}"
        if texts[0] != texts[2]:
            found += f" in the steadiest case, {texts[1]} in half of them, {texts[2]} in the noisiest"
        if blind:
            found += f", and none of any size in {_count(blind, 'case')} with too few runs"
        return f"{found} ({percent(POWER)} of such steps, in the middle of the runs)"

    def frame(self) -> pandas.DataFrame:
        """Make a tidy DataFrame with one row per case and run.

        Beside the axes of a case it has the columns of `ssmperf.Origin`, `device_name`, `run`, `field`,
        `value`, `low`, `high`; `step`, the ratio of a step that begins with this run; and `alarm`, the ratio
        of a raised alarm, in the last row of its case.
        """
        import pandas

        rows = []
        for each in self.cases:
            steps = {step.place: step.ratio for step in each.steps}
            last = len(each.points) - 1
            for place, point in enumerate(each.points):
                rows.append(
                    {
                        "case_id": each.case.id,
                        **each.case.to_json(),
                        "shape": str(each.case.shape),
                        "device_name": each.device,
                        "field": each.field,
                        **point.to_json(),
                        "step": steps.get(place),
                        "alarm": each.alarm.ratio if each.alarm and place == last else None,
                    }
                )
        return pandas.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "conclusion": self.conclusion,
            "could_have_found": self.could_have_found,
            "exit_code": int(self.exit_code),
            "threshold": self.threshold,
            "runs": [str(run.path) for run in self.runs],
            "left_out": list(self.left_out),
            "cases": [each.to_json() for each in self.cases],
        }


def trace(
    paths: Sequence[Path],
    *,
    threshold: float,
    restriction: Restriction,
    baseline: Path | None = None,
    alarm: str = "show",
) -> History:
    """Find the steps and creeps in all runs that are named, or lie in folders that are named.

    baseline: the run from which on the cumulative alarm counts; None for each case's first run after its last
        step, or its first run of all.

    Raises:
        UnreadableRun: as from `load_all`; or no run has a date.
        UsageError: the baseline is none of the runs or several, no case has a name of the restriction, or
            `alarm` is neither "show" nor "fail".
    """
    if alarm not in ALARMS:
        raise UsageError(f"--alarm must be {' or '.join(ALARMS)}, got {alarm!r}")
    gathered = gather(paths, restriction)
    pinned = None if baseline is None else _number_of(baseline, gathered.runs)
    cases: list[CaseHistory] = []
    for _, members in itertools.groupby(gathered.series, key=lambda series: series.device):
        cases += _analysed(list(members), len(gathered.runs), threshold, pinned)
    return History(tuple(cases), gathered.runs, gathered.left_out, threshold, alarm)


def _number_of(baseline: Path, runs: Sequence[Run]) -> int:
    """Find a run among the others by its folder, or by a tag that no other has."""
    tagged = []
    for number, run in enumerate(runs):
        if run.path.resolve() == baseline.resolve():
            return number
        if run.meta.get("tag") == str(baseline):
            tagged.append(number)
    if len(tagged) > 1:
        paths = ", ".join(str(runs[number].path) for number in tagged)
        raise UsageError(f"{len(tagged)} runs have the tag {baseline}: pass the folder of one ({paths})")
    if not tagged:
        raise UsageError(
            f"the baseline {baseline} is none of the {len(runs)} runs that were read, nor a tag of one"
        )
    return tagged[0]


def _analysed(
    members: Sequence[Series], runs: int, threshold: float, pinned: int | None
) -> list[CaseHistory]:
    """Find steps and creeps in all cases of a device together, so that the number of cases counts."""
    logs = [np.log([point.value for point in each.points]) for each in members]
    numbers = [np.array(each.numbers, dtype=np.intp) for each in members]
    shuffles = Shuffles(runs)
    findings = find_changes(logs, numbers, shuffles)
    least = least_steps(findings, threshold)
    reported = [
        [change for change in found if change.reaches(threshold) and not change.creeps]
        for found in findings.changes
    ]
    baselines = [
        (found[-1].position if found else 0) if pinned is None else int(np.searchsorted(each.numbers, pinned))
        for each, found in zip(members, reported, strict=True)
    ]
    positions = [[change.position for change in found] for found in findings.changes]
    creeps = find_creeps(logs, numbers, baselines, positions, findings.noise, shuffles, threshold)
    every = sorted({number for each in members for number in each.numbers})  # runs of the device
    cases = []
    for each, found, start, creep, size in zip(members, reported, baselines, creeps, least, strict=True):
        steps = tuple(
            _step(each, change, every, last=change is found[-1], start=0 if pinned is None else start)
            for change in found
        )
        alarm = None
        if creep is not None and _since(every, each.numbers[-1]) <= FRESH_RUNS:
            rise, reach = creep.rise, creep.reach
            alarm = Alarm(
                each.points[start],
                each.points[creep.position],
                math.exp(rise),
                math.exp(rise - reach),
                math.exp(rise + reach),
                creep.p,
            )
        ratio = None if size is None else math.exp(size)
        cases.append(CaseHistory(each.case, each.device, each.rank, each.points, ratio, steps, alarm))
    return cases


def _since(every: Sequence[int], number: int) -> int:
    """Count the runs of a device from a run on, itself included, whether they have a certain case or not."""
    return len(every) - bisect.bisect_left(every, number)


def _step(series: Series, change: ChangePoint, every: Sequence[int], *, last: bool, start: int) -> Step:
    """Describe a step. every: runs of the device. last: whether no other follows. start: of the baseline."""
    place = change.position
    (base, old), (new, now) = series.records[place - 1], series.records[place]
    low, high = change.interval
    followed = _since(every, series.numbers[place])
    return Step(
        series.case,
        series.device,
        place,
        series.points[place - 1],
        series.points[place],
        math.exp(change.size),
        math.exp(low),
        math.exp(high),
        change.p,
        last and change.size > 0 and followed <= FRESH_RUNS and place >= start,
        differences(base, new, old, now).breaking,
    )


def commit_text(point: Point) -> str:
    """Name the code of a point: its commit, with a plus sign if there were changes beyond it, or its hash."""
    if point.commit:
        return point.commit[:COMMIT_DIGITS] + ("+" if point.dirty else "")
    return point.origin.plugin_sha256 or "unknown"


def _size_text(ratio: float) -> str:
    """Write the size of a step that would have been found, such as 4.1 % or 2.5 times."""
    return percent(float(f"{ratio - 1:.2g}")) if ratio < 2 else f"{ratio:.2g} times"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
