"""The least step of a case that would have been found, so that "0 steps" is never read as "nothing changed".

It is simulated through the functions that find steps: normal noise, a step in the middle of the runs, its own
random orders, and those of the history's cases as they were. The size is counted in spreads between runs as
estimated, since that is all that is known of a case. Estimate and noise are drawn independently, so the share
that is found includes that a spread is estimated badly.
"""

from __future__ import annotations

import math

import numpy as np

from ssmperf.comparison.trends.noise import Array, SharedNoise
from ssmperf.comparison.trends.steps import SIGNIFICANCE, HistorySteps, chances_of

POWER = 0.8  # share of steps of the least size that are found, in the middle of the runs
FEWEST_RUNS = 9  # with fewer, too few orders of the runs differ for any step to stand out
_DRAWN = 0.94  # share that must stand out in the simulation: about a tenth of these are then taken for creeps
_TRIALS = 50
_LARGEST = 64.0  # spreads: far beyond the size from which on values are clipped
_SMALLEST = 0.5
_MOST = math.log(1e9)  # noise that hides such a ratio hides everything
_PRECISION = 1.05  # of the size, as a ratio
_LONGEST = 40  # runs that are simulated; beyond, the size falls with the root of their number
_COARSE = 4  # from 16 runs on, a multiple of this is simulated, so that many cases share one


def least_steps(found: HistorySteps, threshold: float) -> list[float | None]:
    """Compute the least step of each case as a log; None where none of any size would have been found.

    It is no smaller than the threshold, below which steps may not be reported.
    """
    known: dict[int, float | None] = {}
    sizes: list[float | None] = []
    for length, spread in zip(found.lengths, found.spreads, strict=True):
        runs = min(_LONGEST, length if length < 4 * _COARSE else length - length % _COARSE)
        if runs not in known:
            known[runs] = _in_spreads(runs, found)
        unit = known[runs]
        size = None if unit is None else unit * math.sqrt(runs / length) * spread
        sizes.append(None if size is None or size > _MOST else max(size, math.log1p(threshold)))
    return sizes


def _in_spreads(runs: int, found: HistorySteps) -> float | None:
    """Find the least size in a history of so many runs, in estimated spreads; None if there is none."""
    if runs < FEWEST_RUNS:
        return None
    random = np.random.default_rng(runs)
    noise = SharedNoise(float(found.noise.degrees > 0), found.noise.degrees)
    estimates = noise.spreads(np.diff(random.normal(size=(_TRIALS, runs)), axis=1))
    trials = random.normal(size=(_TRIALS, runs))
    step = estimates[:, None] * (np.arange(runs) >= runs // 2)
    low, high = _SMALLEST, _LARGEST
    if not _stand_out(trials + high * step, noise, found):
        return None
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _stand_out(trials + middle * step, noise, found) else (middle, high)
    return high


def _stand_out(trials: Array, noise: SharedNoise, found: HistorySteps) -> bool:
    """Tell whether enough histories stand out, each one beside the cases that were found."""
    alone = len(found.lengths) == 1
    chances = chances_of(trials, noise, np.zeros(1) if alone else found.chance)
    return float((chances <= SIGNIFICANCE).mean()) >= _DRAWN
