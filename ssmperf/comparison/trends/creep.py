"""The cumulative alarm: has a case become slower since a baseline, however slowly?

A change by 4 % a month passes every comparison with the month before. So all runs since a baseline that stays
are looked at together: the deviations of their log times from the middle are summed up, those of later runs
with more weight (the sum of all partial sums of a CUSUM). It grows with a creep and with a step that stays.
The sum is taken over all runs since the baseline, and over the last half, quarter … of them, since a creep
may begin late. The largest one counts, in units of the spread between runs.

The alarm is raised if so large a sum, in any case, is seen in at most 2 % of the random orders of the runs,
and the line behind it has risen by at least half the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ssmperf.comparison.trends.noise import CONFIDENCE_REACH, Array, IntArray, SharedNoise, Shuffles

SIGNIFICANCE = 0.02  # allowed probability of any alarm where nothing changed, over all cases
LEAST_RUNS = 10  # since the baseline; with fewer, a noise between runs of ±1 % hides a rise by 4 %
LEAST_SHARE = 0.5  # of the threshold: a smaller rise raises no alarm
_FAR = 4.0  # spreads beyond which a value counts no more
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Creep:
    """A rise since the baseline.

    rise: log of the ratio, last over first, of the line that fits best. error: its standard error.
    position: number of the value at which the line begins. p: adjusted for all cases.
    """

    rise: float
    error: float
    position: int
    p: float

    @property
    def reach(self) -> float:
        """The distance from the rise to the ends of its interval at 99 %."""
        return CONFIDENCE_REACH * self.error


def find_creeps(
    logs: Sequence[Array],
    runs: Sequence[IntArray],
    baselines: Sequence[int],
    steps: Sequence[Sequence[int]],
    noise: SharedNoise,
    shuffles: Shuffles,
    threshold: float,
) -> list[Creep | None]:
    """Find the cases that have become slower since their baselines; None for another case.

    Args:
        logs: the log values of each case in the order of its runs. runs: the numbers of these runs.
        baselines: number of the value with which each case begins to count.
        steps: numbers of the values before which each case steps. What lies before the baseline tells the
            spread between runs.
        threshold: the change that matters, such as 0.05.
    """
    found: list[tuple[Creep, float] | None] = []
    chance = np.zeros(1)
    for values, numbers, start, positions in zip(logs, runs, baselines, steps, strict=True):
        if len(values) - start < LEAST_RUNS:
            found.append(None)
            continue
        orders = np.asarray(values)[start:][shuffles.orders(np.asarray(numbers)[start:])]
        creep, evidence = _examined(orders, _steady_differences(values[:start], positions), noise)
        found.append((replace(creep, position=start + creep.position), float(evidence[0])))
        chance = np.maximum(chance, evidence[1:])
    least = LEAST_SHARE * math.log1p(threshold)
    return [None if each is None else _judged(*each, chance, least) for each in found]


def _judged(creep: Creep, evidence: float, chance: Array, least: float) -> Creep | None:
    """Give a creep its p, if it is significant and large enough."""
    p = float(1 + (chance >= evidence - _ROUNDING).sum()) / (1 + len(chance))
    return replace(creep, p=p) if p <= SIGNIFICANCE and creep.rise >= least else None


def _examined(orders: Array, before: Array, noise: SharedNoise) -> tuple[Creep, Array]:
    """Sum up the values in their true order, the first row, and in random ones.

    orders: (1 + orders, runs). before: differences of neighbouring runs before the baseline.

    Returns:
        The rise behind the largest sum of the true order, without p; and the largest sum of each row.
    """
    count, length = orders.shape
    differences = np.diff(orders, axis=1)
    differences = np.concatenate([np.broadcast_to(before, (count, len(before))), differences], axis=1)
    spreads = noise.spreads(differences)
    scaled = np.clip((orders - np.median(orders[0])) / spreads[:, None], -_FAR, _FAR)
    lengths = _lengths(length)
    ramps = np.maximum(0.0, np.arange(length) - (length - np.array(lengths, dtype=np.float64)[:, None]))
    ramps -= ramps.mean(axis=1, keepdims=True)
    norms = np.sqrt((ramps * ramps).sum(axis=1))
    sums = scaled @ ramps.T / norms
    best = int(sums[0].argmax())
    span, ramp, norm = lengths[best] - 1, ramps[best], norms[best]
    rise = float(orders[0] @ ramp / norm**2) * span
    error = float(spreads[0] / norm) * span
    return Creep(rise, error, length - lengths[best], math.nan), sums.max(axis=1)


def _lengths(runs: int) -> list[int]:
    """List over how many of the last runs to sum up: all, half of them, a quarter …"""
    found = [runs]
    while found[-1] // 2 >= LEAST_RUNS:
        found.append(found[-1] // 2)
    return found


def _steady_differences(values: Array, steps: Sequence[int]) -> Array:
    """List the differences of neighbours, but not across steps."""
    differences = np.diff(np.asarray(values, dtype=np.float64))
    across = [step - 1 for step in steps if 0 < step <= len(differences)]
    return np.asarray(np.delete(differences, across), dtype=np.float64)
