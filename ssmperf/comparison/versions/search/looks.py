"""Measure one case of two versions in pairs of rounds, until the interval of its ratio settles a question.

The pairs are looked at three times at most: when there are so many as asked for, twice and four times as
many. Whoever may stop at any of several looks needs intervals that hold at all of them. So an end may fail at
each look with a third of 5 %: with a probability of at least 95 %, the low ends of all looks lie below the
truth, and with the same one the high ends above it. Fewer than six pairs show no interval at that level.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssmperf.comparison.versions.procedure import Pairs, Versions, common_values, open_pairs
from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.measure import paired
from ssmperf.engine.runs import store
from ssmperf.errors import SsmperfError

LOOKS = (1, 2, 4)  # times as many pairs as at first
LEVEL = paired.SIGNIFICANCE / len(LOOKS)  # with which each end of an interval may fail at each look


class NotMeasured(SsmperfError):
    """The case was not ok in a round."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio new / base of a case, from pairs of rounds.

    low, high: the ends of its interval; 0 and infinite if so few pairs show none.
    """

    ratio: float
    low: float
    high: float
    pairs: int


Settled = Callable[[Ratio], bool]


def settle(measure: Callable[[int], Sequence[float]], pairs: int, settled: Settled, *, exact: bool) -> Ratio:
    """Look at a growing number of pairs until they settle a question, or there are four times as many.

    measure: returns the natural logs of the ratios of so many pairs; those of an earlier call come first.
    exact: whether the numbers have no noise, such as bytes; their interval is their range.
    """
    for times in LOOKS:
        logs = measure(pairs * times)
        low, high = (min(logs), max(logs)) if exact else paired.interval(logs, LEVEL)
        found = Ratio(math.exp(sum(logs) / len(logs)), math.exp(low), math.exp(high), len(logs))
        if settled(found):
            break
    return found


def measure_case(
    wanted: Versions,
    out: Path,
    id_: str,
    pairs: int,
    settled: Settled,
    *,
    exact: bool,
    begin: int = 0,
    progress: Progress | None = None,
) -> Ratio:
    """Measure one case of two versions until a question is settled. What the folder has is not repeated.

    out: the folder, as of `compare_versions`. begin: number of the first pair that counts.

    Raises:
        NotMeasured: the case was not ok in some round of either version.
        UsageError, VersionFailed, VersionEnded: as `compare_versions`.
    """
    most = begin + pairs * LOOKS[-1]
    with contextlib.ExitStack() as stack:
        opened: list[Pairs] = []  # once something is missing

        def measure(count: int) -> list[float]:
            numbers = range(begin, begin + count)
            values = _kept_values(out, id_, numbers)
            if values is None:
                if not opened:
                    opened.append(stack.enter_context(
                        open_pairs(wanted, out, most, resume=True, progress=progress)
                    ))  # fmt: skip
                    if begin:  # the comparison of all cases was measured before
                        opened[0].progress.drop(2 * wanted.first * len(opened[0].common))
                values = opened[0].measure(id_, numbers)
            if values is None:
                raise NotMeasured(_failure(out, id_))
            return [math.log(new / base) for base, new in zip(*values, strict=True)]

        return settle(measure, pairs, settled, exact=exact)


def _failure(out: Path, id_: str) -> str:
    """Say in which version a case was not ok, and why."""
    for side, text in (("new", ""), ("base", "its base is ")):
        for record in store.load(out / side).rounds.get(id_, ()):
            if record.status is not Status.OK:
                return f"{text}{record.status}: {record.reason}"
    return "it has not the number by which its suite ranks"


def _kept_values(out: Path, id_: str, numbers: Iterable[int]) -> tuple[list[float], list[float]] | None:
    """Read both sides' measurements of a case in these rounds, if a comparison's folder has all of them."""
    if not all((out / name / store.RUN_FILE).exists() for name in ("base", "new")):
        return None
    return common_values(store.load(out / "base"), store.load(out / "new"), numbers).get(id_)
