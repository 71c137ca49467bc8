"""Compare times of two runs that were measured one after the other, at any distance in time.

The interval of a median covers what varies within one process. Two processes differ by more: clocks, memory
placement, neighbours. With one round per side that spread cannot be seen in the times, so it is given: as the
machine was calibrated, or as assumed. The comparison's own ratios can widen it, all together and by kind of
case: most cases do not change between two runs, and the scatter of those shows what this pair of runs can
tell apart. With several rounds on both sides their scatter is counted too, and the given spread is a prior.
All decisions are one-sided and corrected for the number of cases (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from ssmperf.comparison.outcome import percent
from ssmperf.engine.measure.statistics import CONFIDENCE, MIN_INTERVAL, summarise

ALPHA = 0.05  # of any false alarm in a comparison
LEAST_BULK = 6  # cases whose scatter says anything about the noise
PRIOR_DEGREES = 4  # degrees of freedom that the given spread is worth beside the rounds' own scatter
MOST_RESOLUTION = 2.0  # `same` needs that this multiple of the threshold would have been found
_NORMAL = NormalDist()
_LARGEST_LOG = 50.0  # keeps the interval of a hopeless comparison finite
_MAD_SCALE = 1.4826  # of the median absolute deviation to the standard deviation of a normal distribution


@dataclass(frozen=True, slots=True)
class CaseSide:
    """A case in one run. value: its median; error: standard error of the logarithm of that median within its
    process, None if unknown; rounds: the values of all rounds if there were several."""

    value: float
    error: float | None = None
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Timed:
    """A case in both runs.

    spread: between processes, as a standard deviation of logs. kind: name shared by cases with similar noise.
    """

    base: CaseSide
    new: CaseSide
    spread: float
    kind: str = ""

    @property
    def values(self) -> tuple[float, float]:
        """The value of each side: the geometric mean of its rounds if both have several, else its median."""
        if self.rounds == 1:
            return self.base.value, self.new.value
        one, other = (
            math.exp(math.fsum(map(math.log, s.rounds)) / len(s.rounds)) for s in (self.base, self.new)
        )
        return one, other

    @property
    def log_ratio(self) -> float:
        base, new = self.values
        return math.log(new / base)

    @property
    def rounds(self) -> int:
        """The rounds on each side that count: 1 unless both sides have several."""
        least = min(len(self.base.rounds), len(self.new.rounds))
        return least if least > 1 else 1


@dataclass(frozen=True, slots=True)
class Change:
    """The ratio of two values, new over base, and its meaning.

    low, high: its interval; `slower` needs low > 1. p: probability of a ratio as far on that side without any
        change, times the number of cases. least_change: the least increase, such as 0.08, for which the ratio
        would have counted as slower. All are None where the noise is unknown. rounds: on each side; None for
        numbers without noise.
    """

    verdict: str
    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    least_change: float | None = None
    rounds: int | None = None


def compare(cases: Sequence[Timed], threshold: float) -> tuple[list[Change], float | None]:
    """Judge the cases of a comparison together; less is better.

    Returns:
        One change per case, in order; and the largest scatter of the comparison's own ratios, as the spread
        of one process, None below six cases.
    """
    overall = _scatter([case.log_ratio for case in cases])
    kinds: dict[str, list[float]] = {}
    for case in cases:
        kinds.setdefault(case.kind, []).append(case.log_ratio)
    scatters = {kind: max(overall or 0.0, _scatter(ratios) or 0.0) for kind, ratios in kinds.items()}
    changes = [_judge(case, threshold, len(cases), scatters[case.kind]) for case in cases]
    return changes, None if overall is None else max(scatters.values()) / math.sqrt(2)


def why(change: Change, threshold: float, *, paired: bool) -> str:
    """Say on what a verdict rests, or why there is none. paired: whether rounds of both sides were pairs."""
    if change.verdict == "ambiguous" and change.least_change is None:
        return "one sample does not show its noise"
    within = not _beyond(change.ratio, threshold)
    if change.verdict == "ambiguous":
        hidden = f"its noise could hide a change of {percent(change.least_change or 0.0)}"
        return hidden if within else "beyond the threshold but within its noise"
    limit = f"the threshold of {percent(threshold, 3)}"
    if change.rounds is None or change.least_change is None:
        equal = "equal in both runs" if change.ratio == 1 else f"within {limit}"
        return equal if within else f"{_times(change.ratio)}, beyond {limit}"
    number = "1 round" if change.rounds == 1 else f"{change.rounds} rounds"
    pairs = f"{change.rounds} {'fresh ' if change.p is not None else ''}pairs"
    rests = f"from {pairs}" if paired else f"from {number} on each side"
    if within:
        return f"a slow-down by {percent(change.least_change)} would have been found, {rests}"
    return f"{_times(change.ratio)}, beyond {limit}, {rests}"


def _times(ratio: float) -> str:
    return f"{ratio:.3f} times" if 0.1 <= ratio < 10 else f"{ratio:.3g} times"


def exact(base: float, new: float, threshold: float) -> Change:
    """Compare two numbers that have no noise, such as bytes; less is better."""
    ratio = new / base
    return Change(_beyond(ratio, threshold) or "same", ratio, ratio, ratio, least_change=threshold)


def error_of(samples: Sequence[float]) -> float | None:
    """Estimate the standard error of the logarithm of a median from the samples of one process.

    It is derived from the interval of the median; below five samples from their range, which covers the
    median with probability 1 − 2^(1 − n). A single sample says nothing: None.
    """
    if len(samples) < 2 or min(samples) <= 0:
        return None
    if len(samples) < MIN_INTERVAL:
        return _error(min(samples), max(samples), 1 - 2.0 ** (1 - len(samples)))
    found = summarise(samples)
    assert found.low is not None and found.high is not None
    return error_of_interval(found.low, found.high)


def error_of_interval(low: float, high: float) -> float:
    """Estimate the standard error of the logarithm of a median from its 95 % interval."""
    return _error(low, high, CONFIDENCE)


def _error(low: float, high: float, confidence: float) -> float:
    return math.log(high / low) / 2 / _NORMAL.inv_cdf((1 + confidence) / 2)


def _scatter(log_ratios: Sequence[float]) -> float | None:
    """Estimate the standard deviation of log ratios around their median, whatever a minority of them does."""
    if len(log_ratios) < LEAST_BULK:
        return None
    middle = median(log_ratios)
    return _MAD_SCALE * median(abs(each - middle) for each in log_ratios)


def _judge(case: Timed, threshold: float, cases: int, scatter: float) -> Change:
    base, new = case.values
    ratio = new / base
    found = _deviation(case, scatter)
    if found is None:
        return Change("ambiguous", ratio, rounds=case.rounds)
    deviation, degrees = found
    critical = min(_quantile(1 - ALPHA / max(cases, 1), degrees) * deviation, _LARGEST_LOG)
    size = abs(case.log_ratio)
    tail = 0.5 if size == 0 else 0.0 if deviation == 0 else 1 - _probability(size / deviation, degrees)
    least = max(threshold, math.expm1(critical))
    verdict = "ambiguous"
    if size > critical and (beyond := _beyond(ratio, threshold)):
        verdict = beyond
    elif not _beyond(ratio, threshold) and least <= MOST_RESOLUTION * threshold:
        verdict = "same"
    low, high = ratio * math.exp(-critical), ratio * math.exp(critical)
    return Change(verdict, ratio, low, high, min(1.0, cases * tail), least, case.rounds)


def _beyond(ratio: float, threshold: float) -> str | None:
    """Name the side on which a ratio lies beyond the threshold."""
    most = 1 + threshold
    return "slower" if ratio > most else "faster" if ratio < 1 / most else None


def _deviation(case: Timed, scatter: float) -> tuple[float, float] | None:
    """Compute the standard deviation of a log ratio without a change, and its degrees of freedom."""
    if case.rounds > 1:
        sides = [[math.log(value) for value in side.rounds] for side in (case.base, case.new)]
        degrees = sum(len(side) - 1 for side in sides)
        squares = sum((x - sum(side) / len(side)) ** 2 for side in sides for x in side)
        variance = (PRIOR_DEGREES * case.spread**2 + squares) / (PRIOR_DEGREES + degrees)
        variance *= sum(1 / len(side) for side in sides)
        return math.sqrt(max(variance, scatter**2)), PRIOR_DEGREES + degrees
    errors = case.base.error, case.new.error
    if errors[0] is None or errors[1] is None:
        return None
    between = max(2 * case.spread**2, scatter**2)
    return math.sqrt(between + errors[0] ** 2 + errors[1] ** 2), math.inf


def _quantile(probability: float, degrees: float) -> float:
    if math.isinf(degrees):
        return _NORMAL.inv_cdf(probability)
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def _probability(value: float, degrees: float) -> float:
    if math.isinf(degrees):
        return _NORMAL.cdf(value)
    from scipy.special import stdtr

    return float(stdtr(degrees, value))
