"""Medians with honest intervals, and tests for samples that no median describes.

The interval is distribution-free: it uses order statistics only, so heavy tails, skew and outliers widen it
but do not reduce its coverage. It is valid for a number of samples that was fixed before they were taken.
`needed` derives this number from a pilot, so that nobody has to peek at the interval (measure/sampling.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
STOPPED_CONFIDENCE = 0.96  # nominal; stopping at a narrow interval costs up to 1.5 points, so 95 % are left
MOST_EXACT = 10_000  # samples; with more, exact sums take long
MIN_INTERVAL = 5  # samples; the range of five covers their median with 93.75 %, that of four with 87.5 %

# The half-width of the median's interval is about 1.96 / (2 f √n), and the density f at the median is about
# 0.54 / IQR for bell-shaped noise.
_HALF_WIDTH_IQR = 1.82
# The width of the interval scatters (by 20 % at a hundred samples); the quartiles of a small pilot scatter
# more. The margins keep most first intervals inside the goal, so that few are selected by their width.
_MARGIN, _PILOT_MARGIN = 2.0, 3.0
_OUTLIER_FENCE = 1.5  # Tukey's, in interquartile ranges beyond the quartiles
_ALPHA = 1e-3  # significance level of the tests for drift and for two modes
_MINORITY = 0.1  # a smaller share of the samples is a tail of outliers, not a mode
_WIDE_GAP = 2.0  # gap between two groups, in widths of the wider group

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of n samples, with its interval and quartiles.

    low, high: 95 % confidence interval of the median; None below five samples.
    outliers: number of samples more than 1.5 interquartile ranges beyond the quartiles. They are counted, but
        not removed.
    """

    median: float
    low: float | None
    high: float | None
    quartile_low: float
    quartile_high: float
    n: int
    outliers: int

    @property
    def relative_width(self) -> float:
        """Distance to the farther end of the interval, relative to the median; inf without an interval."""
        if self.low is None or self.high is None:
            return math.inf
        distance = max(self.high - self.median, self.median - self.low)
        if distance == 0:
            return 0.0
        return distance / abs(self.median) if self.median else math.inf


def summarise(samples: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Compute the median of samples, its interval at a confidence, the quartiles and the outliers.

    Raises:
        ValueError: there are no samples, or one is not finite.
    """
    ordered = _ordered(samples)
    quartile_low, median, quartile_high = (float(q) for q in np.quantile(ordered, (0.25, 0.5, 0.75)))
    fence = _OUTLIER_FENCE * (quartile_high - quartile_low)
    outside = (ordered < quartile_low - fence) | (ordered > quartile_high + fence)
    low, high = _interval(ordered, confidence)
    return Summary(
        median, low, high, quartile_low, quartile_high, n=len(ordered), outliers=int(outside.sum())
    )


def needed(pilot: Sequence[float], relative_width: float) -> int:
    """Estimate from a pilot how many fresh samples give an interval within ±relative_width of the median.

    A pilot of fewer than four samples says nothing about the spread; the estimate is then 1.
    """
    if len(pilot) < 4:
        return 1
    ordered = _ordered(pilot)
    quartile_low, median, quartile_high = (float(q) for q in np.quantile(ordered, (0.25, 0.5, 0.75)))
    spread = quartile_high - quartile_low
    goal = relative_width * abs(median)
    if spread == 0:
        return 1
    if goal == 0:
        raise ValueError("a relative width of 0, or around a median of 0, is never reached")
    margin = _MARGIN * (1 + _PILOT_MARGIN / math.sqrt(len(ordered)))
    return math.ceil(margin * (_HALF_WIDTH_IQR * spread / goal) ** 2)


def drifts(samples: Sequence[float], relative_size: float) -> bool:
    """Test whether samples, in the order taken, move by more than relative_size of their median.

    If the order does not matter, the running sum of centred ranks is a Brownian bridge (Kolmogorov's limit).
    The test sees both trends and steps. Below about 20 samples nothing is significant.
    """
    values = _finite(samples)
    ranks = _mid_ranks(values)
    spread = float(ranks.std())
    if spread == 0:
        return False
    walk = np.abs(np.cumsum(ranks - ranks.mean())[:-1]) / (spread * math.sqrt(len(values)))
    turn = int(walk.argmax()) + 1
    step = abs(float(np.median(values[turn:]) - np.median(values[:turn])))
    significant = 2 * math.exp(-2 * float(walk.max()) ** 2) < _ALPHA
    return significant and step > relative_size * abs(float(np.median(values)))


def bimodal(samples: Sequence[float], relative_size: float) -> bool:
    """Test whether samples fall into two modes that are farther apart than relative_size of the median.

    The samples are split where they are sparsest. The two groups are modes if the gap between them is much
    wider than both groups, which even few samples can show, or if there is a valley between them. For the
    valley, the distance between the groups' medians is cut into three equal parts. Under a unimodal density
    the middle part never has the fewest samples; a sign test decides.
    """
    ordered = _ordered(samples)
    n = len(ordered)
    fewest = max(4, math.ceil(_MINORITY * n))
    reach = max(1, n // 50)
    splits = np.arange(fewest, n - fewest + 1)
    if len(splits) == 0:
        return False
    gaps = ordered[splits + reach - 1] - ordered[splits - reach]
    split = int(splits[gaps.argmax()])
    lower, upper = ordered[:split], ordered[split:]
    left, right = float(np.median(lower)), float(np.median(upper))
    if right - left <= relative_size * abs(float(np.median(ordered))):
        return False
    widest = max(float(np.ptp(np.quantile(group, (0.1, 0.9)))) for group in (lower, upper))
    if upper[0] - lower[-1] > _WIDE_GAP * widest:
        return True
    third = (right - left) / 3
    edges = np.searchsorted(ordered, (left, left + third, right - third, right), side="left")
    low, middle, high = (int(count) for count in np.diff(edges))
    least = min(low, high)
    return 2 * middle <= least and _binomial_tail(middle, middle + least) < _ALPHA


def _interval(ordered: Array, confidence: float) -> tuple[float | None, float | None]:
    """Compute the interval between interpolated order statistics (Hettmansperger and Sheather 1986)."""
    n = len(ordered)
    if n < MIN_INTERVAL:
        return None, None
    depth, weight = _depth(n, confidence)
    inner = min(depth, n - depth - 1)
    low = (1 - weight) * ordered[depth - 1] + weight * ordered[inner]
    high = (1 - weight) * ordered[n - depth] + weight * ordered[n - 1 - inner]
    return float(low), float(high)


@functools.lru_cache(maxsize=4096)
def _depth(n: int, confidence: float) -> tuple[int, float]:
    """Find the order statistics whose interval just reaches a confidence.

    Of more samples than any run takes, by the normal approximation of the binomial distribution.

    Returns:
        Their depth, and the weight of the next order statistics inwards.
    """
    if n > MOST_EXACT:
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(n) / 2
        return math.floor((n + 1) / 2 - reach), 0.0
    whole = 1 << n
    term, tail = 1, 1  # C(n, k) and its running sum, exact
    depth = 1
    outer = 1 - 2 * tail / whole
    while True:
        term = term * (n - depth + 1) // depth
        tail += term
        inner = 1 - 2 * tail / whole
        if inner < confidence:
            break
        depth, outer = depth + 1, inner
    share = (outer - confidence) / (outer - inner)
    if share <= 0:  # the range of five samples covers a little less than the confidence
        return depth, 0.0
    return depth, (n - depth) * share / (depth + (n - 2 * depth) * share)


def _binomial_tail(successes: int, trials: int) -> float:
    """Compute P(at most `successes` heads in `trials` tosses of a fair coin)."""
    return sum(math.comb(trials, k) for k in range(successes + 1)) / (1 << trials)


def _mid_ranks(values: Array) -> Array:
    """Rank values from 1; equal values share their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], dtype=np.float64)


def _finite(samples: Sequence[float]) -> Array:
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples")
    if not np.isfinite(values).all():
        raise ValueError("a sample is not finite")
    return values


def _ordered(samples: Sequence[float]) -> Array:
    return np.sort(_finite(samples))
