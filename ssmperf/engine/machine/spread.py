"""The distance between the medians of two processes, estimated from rounds of the same code.

A round is a fresh process, and gives one log median per case. Rounds of a case differ by the noise
between processes. An estimate from ten rounds of three cases is uncertain. Noise may be shared by all cases
of a round, last for several rounds, or change from one session to the next. `estimate` therefore counts how
much independent information the rounds hold, and returns an upper bound rather than the most likely value.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.9  # of the upper bound
ALPHA = 0.05  # probability of any false alarm in a comparison
WITNESSED_CASES = 20  # in a comparison of so many cases, no difference seen between rounds is an alarm
LEAST_OF_ONE_SESSION = 0.01  # spread; one session says nothing about changes between sessions
MOST_CORRELATION = 0.9  # of successive rounds; a higher estimate from a few rounds means nothing


@dataclass(frozen=True, slots=True)
class Spread:
    """An estimate of the noise between processes, for one kind of case.

    spread: upper bound of the standard deviation of one process's log median.
    largest: largest absolute log ratio of two rounds of one case.
    degrees: degrees of freedom of the bound, corrected for dependence between cases and between rounds.
    cases, rounds: number of cases, and of rounds of the case that has most.
    """

    spread: float
    largest: float
    degrees: float
    cases: int
    rounds: int

    def threshold(self, cases: int) -> float:
        """Compute the least relative change that one round per side shows in a comparison of `cases`."""
        return math.expm1(critical(cases) * math.sqrt(2) * self.spread)


def critical(cases: int) -> float:
    """Compute the one-sided critical value, in standard deviations, corrected for a number of cases."""
    return statistics.NormalDist().inv_cdf(1 - ALPHA / max(cases, 1))


def estimate(groups: Sequence[Sequence[Array]]) -> Spread:
    """Estimate the spread between processes for cases of one kind.

    groups: per group, sessions that measured the same code on the same software. Only these are compared with
        one another. Each session is an array of log medians (rounds, cases), NaN where a round has no value.

    Returns:
        The largest of three bounds: the chi-square bound of the variance pooled over cases, within and
        between sessions; the standard deviation of the noisiest case; and the spread at which the largest
        difference seen between two rounds would just be no alarm in a comparison of `WITNESSED_CASES` cases.
        It is at least `LEAST_OF_ONE_SESSION` unless some case was measured in two sessions of a group.

    Raises:
        ValueError: no case has two values in one group.
    """
    columns = [np.concatenate(list(group)) for group in groups]
    counts = [np.isfinite(values).sum(axis=0) for values in columns]
    repeated = [values[:, count > 1] for values, count in zip(columns, counts, strict=True)]
    if not any(values.size for values in repeated):
        raise ValueError("no case has two rounds")
    largest = max(float((np.nanmax(v, axis=0) - np.nanmin(v, axis=0)).max()) for v in repeated if v.size)
    noisiest = max(float(np.nanstd(v, axis=0, ddof=1).max()) for v in repeated if v.size)
    variance, degrees, compared = _variance(groups)
    bound = math.sqrt(variance * degrees / _chi_square(1 - CONFIDENCE, degrees))
    witnessed = largest / (math.sqrt(2) * critical(WITNESSED_CASES))
    measured = np.stack([count > 1 for count in counts]).any(axis=0)
    rounds = np.stack(counts).sum(axis=0)
    least = 0.0 if compared else LEAST_OF_ONE_SESSION
    spread = max(bound, noisiest, witnessed, least)
    return Spread(spread, largest, degrees, cases=int(measured.sum()), rounds=int(rounds.max()))


def _variance(groups: Sequence[Sequence[Array]]) -> tuple[float, float, bool]:
    """Estimate the variance of a process of any session around a case's mean.

    The part between sessions and the part within are estimated apart, since there are few sessions and many
    rounds. Satterthwaite's formula gives the degrees of freedom of their sum.

    Returns:
        The variance, its degrees of freedom, and whether sessions could be compared.
    """
    sessions = [session for group in groups for session in group]
    within = _Pooled(sessions)
    between = _Pooled([np.stack([_means(session) for session in group]) for group in groups])
    if not within.degrees:
        return between.variance, between.degrees, True
    inner, inner_degrees = _corrected(within)
    if not between.degrees:
        return inner, inner_degrees, False
    # The mean of a session varies by itself by the variance within, over the number of rounds.
    inner *= 1 - 1 / within.length
    total = between.variance + inner
    if total == 0:
        return 0.0, inner_degrees, True
    degrees = total**2 / (between.variance**2 / between.degrees + inner**2 / inner_degrees)
    return total, degrees, True


class _Pooled:
    """A variance pooled over cases, each around its own mean in each block of rounds (rounds, cases).

    degrees: the degrees of freedom of one case, times the number of cases that vary independently. With
        the covariance matrix S of the cases, that number is tr(S)² / tr(S²), as in Box's correction of an
        analysis of variance. It is 1 if all cases vary together, or if one case has all of the noise.
    length: mean number of rounds per block and case.
    residuals: deviations by block, NaN where there is no value.
    """

    def __init__(self, blocks: Sequence[Array]) -> None:
        self.residuals = [block - _means(block) for block in blocks]
        counts = np.stack([np.isfinite(block).sum(axis=0) for block in blocks])
        free = np.maximum(counts - 1, 0)
        self.length = float(counts[counts > 1].mean()) if (counts > 1).any() else 0.0
        filled = [np.nan_to_num(residual) for residual in self.residuals]
        products = sum((residual.T @ residual for residual in filled), np.zeros((free.shape[1],) * 2))
        trace, squares = float(np.trace(products)), float((products**2).sum())
        self.variance = trace / max(int(free.sum()), 1)
        varying = free.sum(axis=0) > 0
        per_case = float(free.sum(axis=0)[varying].mean()) if varying.any() else 0.0
        self.degrees = per_case * (trace**2 / squares if squares > 0 else 1.0)


def _corrected(within: _Pooled) -> tuple[float, float]:
    """Correct a variance and its degrees of freedom for rounds that resemble the rounds before them."""
    pairs = [np.diff(residual, axis=0) for residual in within.residuals]
    steps = np.concatenate([pair[np.isfinite(pair)] for pair in pairs])
    if not steps.size or within.variance == 0:
        return within.variance, within.degrees
    correlation = 1 - float((steps**2).mean()) / 2 / within.variance
    correlation = min(max(correlation, 0.0), MOST_CORRELATION)
    n = within.length
    effective = max(n * (1 - correlation) / (1 + correlation), min(n, 2.0))
    scale = (n - 1) / (n - n / effective)
    return within.variance * scale, within.degrees * (effective - 1) / (n - 1)


def _means(block: Array) -> Array:
    """Compute the mean of each column, NaN for a column without values."""
    counts = np.isfinite(block).sum(axis=0)
    means: Array = np.where(counts > 0, np.nansum(block, axis=0) / np.maximum(counts, 1), np.nan)
    return means


def _chi_square(probability: float, degrees: float) -> float:
    """Compute a quantile of the chi-square distribution."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(degrees / 2, probability))
