"""Decide from pairs of fresh processes which cases have changed, without alarms where nothing has.

The unit is a pair: both sides are measured in fresh processes, one right after the other, in random order.
Each case contributes the log of the ratio of its two medians (new over base). The interval of one process is
not used, since it does not cover changes between processes. A comparison has two stages:

1. `screen`: a few pairs of all cases. A case is screened if its point lies beyond half the threshold and a
   loose test finds it. Nothing is decided on these pairs.
2. `confirm`: fresh pairs of the screened cases alone. If nothing has changed, exchanging the two sides of a
   pair is as likely as leaving them, because their order was random. So the observed values are compared
   with all exchanges of whole pairs, the same for all cases (Westfall and Young 1993, step-down). The
   probability of any false `slower` among all cases is then at most 5 %, whatever the noise is and however
   the cases depend on each other. The same holds for `faster`.

The point is the mean over pairs, not the median: where processes stick in one of two states 6 % apart, four
of seven pairs show 6 % too little with a probability of 7 %, and a median then misses a change by 10 %.
docs/measurement.md explains the procedure, and tests/proofs/simulate_verdicts.py puts it to the proof.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FIRST_PAIRS = 5
FRESH_PAIRS, MANY_FRESH_PAIRS = 7, 10
MANY_CASES = 100  # above this, real changes are harder to tell among the many screened cases

SIGNIFICANCE = 0.05  # allowed probability of any false verdict in one direction
_SCREENING = 0.1  # one-sided level of the first stage, for each case
_MISSED = 0.03  # share of least changes that a stage may miss; for normal noise 0.05 would suffice
_FEWEST_FRESH = 5  # pairs; the best p of four is 1/16
_EXACT = 13  # pairs; the flips of more are 2¹³ random ones
_SAMPLE = 0
_TINY = 1e-5  # smallest variance that enters the common one, relative to the median variance
_ROUNDING = 1e-9  # relative; statistics this near to each other are equal

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Values = Sequence[Sequence[float]] | Array


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """The verdict of one case's pairs on its ratio, new over base.

    verdict: `slower`, `faster`, `same` or `ambiguous`.
    ratio: the geometric mean over the pairs that the verdict rests on: the fresh ones of a screened case, the
        first ones of another.
    low, high: an interval of the ratio from the same pairs. Each end fails with a probability of at most 5 %
        (3 % for five pairs, whose whole range it is). It is not corrected for the number of cases.
    p: adjusted for all cases that were screened in the same direction; None if this one was not screened.
    least_change: a true change by this much (0.03: 3 % slower) is found with a probability of at least 90 %,
        on average over cases.
    pairs: how many pairs the verdict rests on.
    """

    verdict: str
    ratio: float
    low: float
    high: float
    p: float | None
    least_change: float
    pairs: int


@dataclass(frozen=True, slots=True)
class _Spread:
    """The variances of single log ratios, one per case, and the degrees of freedom of each."""

    variances: Array
    degrees: float


def fresh_pairs(screened_of: int) -> int:
    """Choose the number of fresh pairs by the number of cases in the whole comparison."""
    return FRESH_PAIRS if screened_of <= MANY_CASES else MANY_FRESH_PAIRS


def screen(log_ratios: Values, threshold: float) -> BoolArray:
    """Choose the cases that deserve fresh pairs, because they may have become slower or faster.

    Args:
        log_ratios: (cases, pairs), natural logs of new over base.
        threshold: the least change that matters, as a ratio minus 1.

    Returns:
        (cases,): whether a point lies beyond half the threshold, and beyond zero at the one-sided level 0.1.

    Raises:
        ValueError: a value is not finite, there are fewer than two pairs, or the threshold is not positive.
    """
    values = _checked(log_ratios, 2)
    hurdles = _first_hurdles(_moderated(values), values.shape[1], _log_threshold(threshold))
    return np.asarray(np.abs(values.mean(axis=1)) > hurdles, dtype=np.bool_)


def confirm(
    first: Values, fresh: Values, screened: Sequence[bool] | BoolArray, threshold: float
) -> list[PairVerdict]:
    """Decide every case of a comparison, those that were screened on their fresh pairs alone.

    A screened case is tested in the direction of its first point only. The first pairs also enter the scale
    by which the fresh ones are divided; a wrong scale costs power, but raises no alarms.

    Args:
        first: (cases, pairs), the natural logs of new over base on which `screen` decided.
        fresh: (screened cases, fresh pairs), in the same order of cases.
        screened: (cases,), what `screen` returned.
        threshold: the one given to `screen`.

    Raises:
        ValueError: a value is not finite, the shapes do not fit each other, there are fewer than five fresh
            pairs (which can confirm nothing), or the threshold is not positive.
    """
    limit = _log_threshold(threshold)
    before, chosen = _checked(first, 2), np.asarray(screened, dtype=np.bool_)
    cases, pairs = before.shape
    rows = np.flatnonzero(chosen)
    if chosen.shape != (cases,):
        raise ValueError(f"{chosen.size} screenings of {cases} cases")
    after = _checked(fresh, _FEWEST_FRESH) if len(rows) else np.empty((0, fresh_pairs(cases)))
    if len(after) != len(rows):
        raise ValueError(f"fresh pairs of {len(after)} cases, but {len(rows)} were screened")
    spread = _moderated(before)
    points = before.mean(axis=1)
    slower = points >= 0
    adjusted = np.full(cases, np.nan)
    tests = np.full(cases, 1.0 + max(np.sum(chosen & slower), np.sum(chosen & ~slower)))
    for sign, direction in ((1.0, slower), (-1.0, ~slower)):
        mine = direction[rows]
        adjusted[rows[mine]] = _adjusted(sign * after[mine], spread.variances[rows[mine]], spread.degrees)
        tests[rows[mine]] = mine.sum()
    least = _least_changes(before, after, spread, rows, tests, limit)
    low, high = _intervals(before)
    points[rows] = after.mean(axis=1)
    low[rows], high[rows] = _intervals(after)
    counts = np.where(chosen, after.shape[1], pairs)
    found = chosen & (adjusted <= SIGNIFICANCE)
    within = np.abs(points) <= limit
    verdicts = np.where(within & (least <= 2 * threshold), "same", "ambiguous")
    verdicts[found & slower & (points > limit)] = "slower"
    verdicts[found & ~slower & (points < -limit)] = "faster"
    return [
        PairVerdict(
            str(verdicts[case]), math.exp(points[case]), math.exp(low[case]), math.exp(high[case]),
            float(adjusted[case]) if chosen[case] else None, float(least[case]), int(counts[case]),
        )
        for case in range(cases)
    ]  # fmt: skip


def interval(log_ratios: Sequence[float], level: float) -> tuple[float, float]:
    """Compute an interval of the centre of one case's pairs, in logs.

    level: the largest probability with which each end may fail. Where so few pairs cannot show that, the
        interval is infinite: six pairs are the fewest for 0.0167.
    """
    values = np.asarray(log_ratios, dtype=np.float64)[None, :]
    if level * 2 ** values.shape[1] < 1:
        return -math.inf, math.inf
    low, high = _intervals(values, level)
    return float(low[0]), float(high[0])


def _adjusted(fresh: Array, prior: Array, degrees: float) -> Array:
    """Compute the adjusted p of every case: one-sided, for an increase.

    The statistic is the mean over pairs, divided by a standard error that is computed again after each flip,
    from the variance of the flipped values and the prior one, which no flip changes. So a noisy case has no
    larger statistics than a quiet one, and the test stays exact.

    Args:
        fresh: (cases, pairs).
        prior: (cases,), variances of single values from other pairs.
        degrees: of freedom of each prior variance.
    """
    cases, n = fresh.shape
    if cases == 0:
        return np.empty(0)
    means = fresh @ _flips(n) / n
    squares = (fresh**2).sum(axis=1, keepdims=True)
    within = np.maximum(squares - n * means**2, 0)
    errors = np.sqrt((degrees * prior[:, None] + within) / (degrees + n - 1) / n)
    statistics = _quotients(means, errors)
    order = np.argsort(-statistics[:, 0], kind="stable")
    # Row i: the maximum over the case of rank i and all that rank below, the step-down family of that case.
    largest = np.maximum.accumulate(statistics[order][::-1], axis=0)[::-1]
    observed = statistics[order, :1]
    with np.errstate(invalid="ignore"):  # infinite statistics
        reached = largest >= observed - _ROUNDING * np.abs(observed)
    reached |= largest == observed
    p = np.empty(cases)
    p[order] = np.maximum.accumulate(reached.mean(axis=1))
    return p


def _quotients(means: Array, errors: Array) -> Array:
    """Divide means by standard errors; without an error, a mean is infinitely significant or zero."""
    size = np.abs(means).max(axis=1, keepdims=True)
    exact = errors <= _ROUNDING * size
    safe = np.where(exact, 1.0, errors)
    certain = np.where(np.abs(means) > _ROUNDING * size, np.copysign(np.inf, means), 0.0)
    return np.where(exact, certain, means / safe)


@functools.lru_cache(maxsize=16)
def _flips(n: int) -> Array:
    """List the exchanges of sides of n pairs as signs, (n, flips); the first one exchanges nothing.

    Up to 13 pairs these are all 2ⁿ. For more pairs they are 2¹³ random ones, always the same; the test stays
    valid, because the first one is among them (Phipson and Smyth 2010).
    """
    if n <= _EXACT:
        bits = np.arange(1 << n) >> np.arange(n)[:, None] & 1
    else:
        bits = np.random.default_rng(_SAMPLE).integers(0, 2, (n, 1 << _EXACT))
        bits[:, 0] = 0
    signs = np.asarray(1 - 2.0 * bits, dtype=np.float64)
    signs.flags.writeable = False  # callers share it
    return signs


def _intervals(values: Array, level: float = SIGNIFICANCE) -> tuple[Array, Array]:
    """Compute an interval of each case's centre, (cases,) and (cases,), in logs.

    The centre of a symmetric distribution is equally likely to lie in any gap between the sorted means of all
    subsets of the pairs (Hartigan 1969). Each end is the subset mean that leaves out at most the level. The
    lower end is above zero where the flip test of this case alone has p ≤ level.
    """
    chosen = (_flips(values.shape[1])[:, 1:] < 0).astype(np.float64)
    chosen = chosen[:, chosen.any(axis=0)]
    means = np.sort(values @ chosen / chosen.sum(axis=0), axis=1)
    depth = max(1, math.floor(level * (means.shape[1] + 1)))
    return means[:, depth - 1].copy(), means[:, -depth].copy()


def _least_changes(
    first: Array, fresh: Array, spread: _Spread, rows: npt.NDArray[np.intp], tests: Array, limit: float
) -> Array:
    """Compute the least change, as a ratio minus 1, that passes each of the two stages with 97 % probability.

    A case's variance is not taken to be smaller than its own pairs show it, whatever the other cases show.

    Args:
        first: (cases, pairs), and their spread.
        fresh: (screened cases, pairs); `rows` are the numbers of these cases.
        tests: (cases,), the number of cases among which the second stage would find this one.
        limit: log of the threshold.
    """
    pairs, n = first.shape[1], fresh.shape[1]
    variances = np.maximum(spread.variances, first.var(axis=1, ddof=1))
    degrees = np.full(len(first), spread.degrees)
    cautious = _Spread(variances.copy(), spread.degrees)
    screening = _first_hurdles(cautious, pairs, limit)
    screening += _t_quantile(1 - _MISSED, spread.degrees) * np.sqrt(variances / pairs)
    if len(rows):
        own = fresh.var(axis=1, ddof=1)
        degrees[rows] += n - 1
        pooled = (spread.degrees * variances[rows] + (n - 1) * own) / degrees[rows]
        variances[rows] = np.maximum(pooled, own)
    errors = np.sqrt(variances / n)
    critical, margin = np.empty_like(errors), np.empty_like(errors)
    for count in np.unique(tests):
        critical[tests == count] = _t_quantile(1 - SIGNIFICANCE / count, spread.degrees + n - 1)
    for freedom in np.unique(degrees):
        margin[degrees == freedom] = _t_quantile(1 - _MISSED, freedom)
    confirming = np.maximum(limit, critical * errors) + margin * errors
    return np.asarray(np.expm1(np.maximum(screening, confirming)), dtype=np.float64)


def _first_hurdles(spread: _Spread, pairs: int, limit: float) -> Array:
    """Compute how far each case's first point must lie from zero to be screened."""
    errors = np.sqrt(spread.variances / pairs)
    return np.maximum(limit / 2, _t_quantile(1 - _SCREENING, spread.degrees) * errors)


def _moderated(values: Array) -> _Spread:
    """Compute each case's variance over pairs, shrunk towards the variance that is common to the cases.

    The more the variances differ beyond their own scatter, the less they are shrunk (Smyth 2004). The common
    variance counts for no more degrees of freedom than the other cases have, so the variances of a few cases
    are hardly shrunk, and that of a single one not at all.
    """
    own, degrees = values.var(axis=1, ddof=1), values.shape[1] - 1
    common, prior_degrees = common_variance(own, degrees)
    total = prior_degrees + degrees
    return _Spread((prior_degrees * common + degrees * own) / total, total)


def common_variance(own: Array, degrees: float) -> tuple[float, float]:
    """Estimate the common part of cases' variances, and for how many degrees of freedom it counts.

    own: (cases,), each with so many degrees of freedom. The result is (0, 0) where nothing is common.
    """
    typical = float(np.median(own))
    most = (len(own) - 1) * degrees
    if most == 0 or typical == 0:
        return 0.0, 0.0
    logs = np.log(np.maximum(own, _TINY * typical)) - _log_bias(degrees)
    excess = float(logs.var(ddof=1)) - _trigamma(degrees / 2)
    common = math.exp(float(logs.mean()))
    if excess <= 0:
        return common, float(most)
    half = _inverse_trigamma(excess)
    return common * math.exp(_log_bias(2 * half)), min(2 * half, float(most))


def _log_bias(degrees: float) -> float:
    """Compute the mean of log(s²/σ²) of a variance s² with some degrees of freedom."""
    from scipy.special import digamma

    half = degrees / 2
    return float(digamma(half)) - math.log(half)


def _trigamma(x: float) -> float:
    from scipy.special import polygamma

    return float(polygamma(1, x))


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value, which lies between 1/x and 1/x + 1/x²."""
    from scipy.optimize import brentq

    low, high = 1 / (value + math.sqrt(value)), 1 / value + 1
    return float(brentq(lambda x: _trigamma(x) - value, low, high))


def _t_quantile(probability: float, degrees: float) -> float:
    """Compute a quantile of Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def _log_threshold(threshold: float) -> float:
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError(f"a threshold is a positive number, not {threshold}")
    return math.log1p(threshold)


def _checked(values: Values, fewest: int) -> Array:
    """Make an array (cases, pairs) of finite numbers, with some number of pairs at least."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or len(array) == 0:
        raise ValueError(f"log ratios have the shape (cases, pairs), not {array.shape}")
    if array.shape[1] < fewest:
        raise ValueError(f"{array.shape[1]} pairs are too few: at least {fewest} are needed")
    if not np.isfinite(array).all():
        raise ValueError("a log ratio is not finite")
    return array
