"""Find where the times of cases have stepped, in histories of many runs.

Each history is split again and again where it differs most (binary segmentation): the runs just before a
place are compared with those just after it, over windows of several lengths, in units of the spread between
runs. Values far away count as if they were nearer, so a single odd run makes no step. A split is kept if so
large a difference, anywhere in any case, is seen in at most 2 % of the random orders of the runs (Westfall
and Young 1993): whatever the noise is, and however cases depend on each other, at most 2 % of histories in
which nothing changed show any step. Then each place is chosen anew between its neighbours.

docs/history.md has the rates, and tests/proofs/simulate_history.py counts them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ssmperf.comparison.trends.noise import CONFIDENCE_REACH, ORDERS, Array, IntArray, SharedNoise, Shuffles

SIGNIFICANCE = 0.02  # allowed probability of any step in a history without one, over all its cases
LEAST_SIDE = 3  # runs on either side of a step
_WINDOWS = (3, 4, 6, 9, 13, 19, 28, 41, 60, 90, 130)  # runs on either side that are compared
_FAR = 4.0  # spreads beyond which a value counts no more
_BENT = 2.0  # the same for the level of a stretch
_TAILS = 3.0  # degrees of freedom of the loss that places a step
_RAMP = 3  # parameters of a ramp: level, slope, and where it begins or ends
_ROUNDING = 1e-9
_FEW_ORDERS = 199  # of each history of many


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A step of a history.

    position: number of the first value after it. size: log of the ratio, after over before.
    error: the standard error of the size. p: adjusted for all places and cases.
    creeps: whether a ramp describes the values around it better, so that no single run made it.
    """

    position: int
    size: float
    error: float
    p: float
    creeps: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """An interval of the size at 99 %."""
        reach = CONFIDENCE_REACH * self.error
        return self.size - reach, self.size + reach

    def reaches(self, threshold: float) -> bool:
        """Tell whether the interval of the size reaches a threshold, such as 0.05."""
        return max(map(abs, self.interval)) >= math.log1p(threshold)


@dataclass
class _Split:
    """The best place to split a stretch of a history: its evidence, and that in random orders of the runs."""

    position: int
    evidence: float
    chance: Array


@dataclass
class _History:
    """The log values of a case, and between which bounds it has one level, as far as is known."""

    values: Array
    runs: IntArray
    bounds: list[int] = field(default_factory=list)
    found: dict[int, float] = field(default_factory=dict)  # p by position
    splits: dict[tuple[int, int], _Split] = field(default_factory=dict)

    def stretches(self) -> Iterator[tuple[int, int]]:
        return itertools.pairwise(self.bounds)

    def differences(self) -> Array:
        """List the differences of neighbours of one level."""
        return np.concatenate([np.diff(self.values[a:b]) for a, b in self.stretches()])


@dataclass(frozen=True, slots=True)
class HistorySteps:
    """The steps of each case in their order, and what another step would have had to stand out from.

    noise: between runs. spreads: of single runs of each case. lengths: runs of each case on its longest
    level. chance: the largest evidence of any place in any case, in each random order of the runs.
    """

    changes: list[list[ChangePoint]]
    noise: SharedNoise
    spreads: list[float]
    lengths: list[int]
    chance: Array


def find_changes(logs: Sequence[Array], runs: Sequence[IntArray], shuffles: Shuffles) -> HistorySteps:
    """Find the steps of every case, of all sizes that stand out from the noise.

    logs: the log values of each case in the order of its runs. runs: the numbers of these runs.
    """
    histories = [
        _History(np.asarray(values, dtype=np.float64), np.asarray(numbers), [0, len(values)])
        for values, numbers in zip(logs, runs, strict=True)
    ]
    noise = SharedNoise.of([each.differences() for each in histories])
    found = True
    while found:
        found, chance = _split(histories, noise, shuffles)
    noise = SharedNoise.of([each.differences() for each in histories])
    return HistorySteps(
        [_changes(each, noise) for each in histories],
        noise,
        [
            float(noise.spreads(each.differences())) if len(each.values) > 1 else math.nan
            for each in histories
        ],
        [max(b - a for a, b in each.stretches()) for each in histories],
        chance,
    )


def _spread(history: _History, noise: SharedNoise) -> float:
    differences = history.differences()
    return float(noise.spreads(differences)) if len(differences) else math.nan


def chances_of(trials: Array, noise: SharedNoise, others: Array) -> Array:
    """Compute the p of the first step of each history of one case, (trials, runs) to (trials,).

    others: the chance of cases beside it, as in `HistorySteps`.
    """
    count, runs = trials.shape
    orders = trials[:, Shuffles(runs, _FEW_ORDERS).orders(np.arange(runs))]
    spreads = noise.spreads(np.diff(orders, axis=2))
    scaled = (orders - np.median(trials, axis=1)[:, None, None]) / spreads[..., None]
    evidence, _ = _evidence(np.clip(scaled, -_FAR, _FAR).reshape(-1, runs))
    true, own = np.split(evidence.reshape(count, -1), [1], axis=1)
    beyond = [(chance >= true - _ROUNDING).mean(axis=1) for chance in (own, others[None])]
    either = 1 - (1 - beyond[0]) * (1 - beyond[1])
    return np.asarray((1 + ORDERS * either) / (1 + ORDERS), dtype=np.float64)


def _split(histories: Sequence[_History], noise: SharedNoise, shuffles: Shuffles) -> tuple[bool, Array]:
    """Split every stretch that stands out from chance; tell whether there was any, and the chance."""
    candidates = []
    chance = np.zeros(1)
    for history in histories:
        if not history.splits:
            history.splits = _best_splits(history, noise, shuffles)
        candidates += [(history, split) for split in history.splits.values()]
    for _, split in candidates:
        chance = np.maximum(chance, split.chance)
    found = False
    for history, split in candidates:
        p = float(1 + (chance >= split.evidence - _ROUNDING).sum()) / (1 + len(chance))
        if p <= SIGNIFICANCE:
            history.found[split.position] = p
            history.bounds = sorted([*history.bounds, split.position])
            history.splits = {}
            found = True
    return found, chance


def _best_splits(history: _History, noise: SharedNoise, shuffles: Shuffles) -> dict[tuple[int, int], _Split]:
    """Find the best split of each stretch that is long enough for one."""
    stretches = list(history.stretches())
    if all(b - a < 2 * LEAST_SIDE for a, b in stretches):
        return {}
    parts = [history.values[a:b][shuffles.orders(history.runs[a:b])] for a, b in stretches]
    spreads = noise.spreads(np.concatenate([np.diff(part, axis=1) for part in parts], axis=1))
    found = {}
    for (a, b), part in zip(stretches, parts, strict=True):
        if b - a >= 2 * LEAST_SIDE:
            scaled = (part - np.median(part[0])) / spreads[:, None]
            evidence, place = _evidence(np.clip(scaled, -_FAR, _FAR))
            found[a, b] = _Split(a + place, float(evidence[0]), evidence[1:])
    return found


def _evidence(values: Array) -> tuple[Array, int]:
    """Compare the windows before and after each place, in rows of values (orders, runs).

    Returns:
        The largest difference of each row in standard errors, (orders,), and its place in the first row.
    """
    length = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    places = np.arange(LEAST_SIDE, length - LEAST_SIDE + 1)
    best, place = np.zeros(len(values)), LEAST_SIDE
    for window in (*(each for each in _WINDOWS if each < length / 2), length):
        start, end = np.maximum(0, places - window), np.minimum(length, places + window)
        before = (sums[:, places] - sums[:, start]) / (places - start)
        after = (sums[:, end] - sums[:, places]) / (end - places)
        errors = np.sqrt(1 / (places - start) + 1 / (end - places))
        sizes = np.abs(after - before) / errors
        largest = sizes.max(axis=1)
        if largest[0] > best[0]:
            place = int(places[sizes[0].argmax()])
        best = np.maximum(best, largest)
    return best, place


def _changes(history: _History, noise: SharedNoise) -> list[ChangePoint]:
    """Place each step anew between its neighbours, and compute its size."""
    if len(history.bounds) == 2:
        return []
    values, spread = history.values, float(noise.spreads(history.differences()))
    bounds = _placed(values, history.bounds, spread)
    evidence = [history.found[position] for position in history.bounds[1:-1]]
    levels = [_level(values[a:b], spread) for a, b in itertools.pairwise(bounds)]
    changes = [
        ChangePoint(
            bounds[i],
            levels[i] - levels[i - 1],
            spread * math.sqrt(1 / (bounds[i] - bounds[i - 1]) + 1 / (bounds[i + 1] - bounds[i])),
            evidence[i - 1],
        )
        for i in range(1, len(bounds) - 1)
    ]
    return _marked_creeping(changes, values, bounds, spread)


def _placed(values: Array, bounds: Sequence[int], spread: float) -> list[int]:
    """Move each inner bound to where two levels around it fit best, until none moves."""
    found = list(bounds)
    for _ in range(len(bounds)):
        before = list(found)
        for i in range(1, len(found) - 1):
            low, high = found[i - 1], found[i + 1]
            places = range(low + LEAST_SIDE, high - LEAST_SIDE + 1)
            found[i] = min(
                places, key=lambda place: _misfit_of_levels(values[low:high], [place - low], spread)
            )
        if found == before:
            break
    return found


def _marked_creeping(
    changes: Sequence[ChangePoint], values: Array, bounds: Sequence[int], spread: float
) -> list[ChangePoint]:
    """Mark steps in one direction in a row, where a ramp fits better than their levels.

    Fits are compared by Schwarz's criterion (1978), since several levels have more freedom than a ramp.
    """
    marked: list[ChangePoint] = []
    for _, group in itertools.groupby(changes, key=lambda change: change.size > 0):
        row = list(group)
        first = bounds.index(row[0].position)
        start, end = bounds[first - 1], bounds[first + len(row)]
        stretch = values[start:end]
        inner = [change.position - start for change in row]
        more = (2 * len(row) + 1) - _RAMP  # parameters of the levels
        penalty = 0.5 * more * math.log(len(stretch))
        creeps = _misfit_of_ramp(stretch, spread) < _misfit_of_levels(stretch, inner, spread) + penalty
        marked += [replace(change, creeps=creeps) for change in row]
    return marked


def _misfit_of_levels(values: Array, positions: Sequence[int], spread: float) -> float:
    parts = np.split(values, positions)
    return sum(_misfit(part - _level(part, spread), spread) for part in parts)


def _misfit_of_ramp(values: Array, spread: float) -> float:
    """Compute the misfit of the best ramp: a slope over all runs, from some run on, or up to one."""
    length = len(values)
    lengths = np.arange(2 * LEAST_SIDE, length + 1)[:, None]
    late = np.maximum(0.0, np.arange(length) - (length - lengths))
    ramps = np.concatenate([late, -late[:, ::-1]])
    ramps -= ramps.mean(axis=1, keepdims=True)
    slopes = ramps @ (values - values.mean()) / (ramps * ramps).sum(axis=1)
    rests = values - slopes[:, None] * ramps
    return min(_misfit(rest - _level(rest, spread), spread) for rest in rests)


def _misfit(residuals: Array, spread: float) -> float:
    """Compute the negative log likelihood under Student's distribution, up to a constant."""
    return (_TAILS + 1) / 2 * float(np.log1p((residuals / spread) ** 2 / _TAILS).sum())


def _level(values: Array, spread: float) -> float:
    """Compute the mean of values; those far away count as if they were nearer (Huber 1964)."""
    level = float(np.median(values))
    for _ in range(3):
        level += spread * float(np.clip((values - level) / spread, -_BENT, _BENT).mean())
    return level
