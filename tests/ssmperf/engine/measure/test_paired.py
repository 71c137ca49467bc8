"""Verdicts on pairs keep their error rates whatever the noise is, and depend on no order, side or scale."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
from proofs import simulate_verdicts

from ssmperf.engine.measure import paired

THRESHOLD = 0.05
Array = npt.NDArray[np.float64]


def compare(first: Array, fresh: Array, threshold: float = THRESHOLD) -> list[paired.PairVerdict]:
    """Both stages, with fresh pairs given for all cases."""
    screened = paired.screen(first, threshold)
    return paired.confirm(first, fresh[screened], screened, threshold)


def noise(cases: int, pairs: int, spread: float = 0.04, seed: int = 0) -> Array:
    return spread * np.random.default_rng(seed).standard_normal((cases, pairs))


def shifted(values: Array, cases: int, change: float) -> Array:
    """The same values, with a change planted in the first cases."""
    moved = values.copy()
    moved[:cases] += math.log1p(change)
    return moved


@pytest.mark.parametrize("noise_of_cases", ["independent", "common", "one noisy", "skewed"])
def test_of_all_exchanges_of_sides_at_most_one_in_twenty_is_significant(noise_of_cases: str) -> None:
    """The test is exact: enumerate the exchanges of one fixed data set, whose cases depend on each other."""
    values = noise(12, 7)
    if noise_of_cases == "common":
        values = 0.1 * values + values[:1]
    elif noise_of_cases == "one noisy":
        values[3] *= 100
    elif noise_of_cases == "skewed":
        values = np.exp(30 * values)
    first = noise(12, 5, seed=1) + 10.0  # all are screened as slower
    everything = np.ones(12, dtype=bool)
    significant = 0
    for exchange in range(2**7):
        signs = 1 - 2 * (exchange >> np.arange(7) & 1)
        verdicts = paired.confirm(first, values * signs, everything, THRESHOLD)
        significant += min(verdict.p for verdict in verdicts if verdict.p is not None) <= 0.05
    assert significant == 6  # the largest number of 128 that is no more than 5 %


@pytest.mark.parametrize("name", ["4 %", "drift", "two states, processes", "heavy tails", "unequal"])
def test_alarms_are_rare(name: str) -> None:
    row = simulate_verdicts.simulate(name, 40, 0.0, 200, seed=1)
    assert row["alarms"][1] <= 0.05


@pytest.mark.parametrize(("name", "least"), [("2 %", 0.95), ("drift", 0.95), ("4 %", 0.9)])
def test_changes_by_ten_percent_are_found(name: str, least: float) -> None:
    row = simulate_verdicts.simulate(name, 6, 0.1, 300, seed=1)
    assert row["power"][0] >= least
    assert row["alarms"][1] <= 0.05


@pytest.mark.parametrize("name", ["2 %", "4 %", "two states, cases", "unequal", "heavy tails"])
@pytest.mark.parametrize("cases", [6, 40])
def test_the_least_change_is_found(name: str, cases: int) -> None:
    row = simulate_verdicts.simulate(name, cases, simulate_verdicts.LEAST, 150, seed=1)
    assert row["power"][0] >= 0.9


def test_the_least_change_is_no_larger_than_needed() -> None:
    """At ±2 % a change by half more than the threshold is found, and the claim says so."""
    least = [verdict.least_change for verdict in compare(noise(40, 5, 0.028), noise(40, 7, 0.028, 1))]
    assert THRESHOLD < np.median(least) < 1.5 * THRESHOLD


def test_a_slow_down_of_every_case_is_found_in_every_case() -> None:
    """Cases that are found leave the family, so that they do not hide those with less evidence."""
    first, fresh = (noise(40, n, 0.045, seed) + math.log(1.1) for n, seed in ((5, 0), (7, 1)))
    assert [verdict.verdict for verdict in compare(first, fresh)] == ["slower"] * 40


def test_one_noisy_case_hides_no_other() -> None:
    first, fresh = (shifted(noise(20, n, 0.02, n), 1, 0.1) for n in (5, 7))
    quiet = compare(first, fresh)[0]
    first[1], fresh[1] = 100 * abs(first[1]), 100 * fresh[1]  # screened
    assert compare(first, fresh)[0].verdict == quiet.verdict == "slower"


def test_nothing_is_decided_on_the_first_pairs() -> None:
    """Five pairs that say ×1.3 are not confirmed by fresh pairs without a change."""
    alarms = 0
    for seed in range(200):
        verdicts = compare(noise(10, 5, seed=seed) + math.log(1.3), noise(10, 7, seed=1000 + seed))
        assert all(verdict.p is not None and verdict.pairs == 7 for verdict in verdicts)
        alarms += any(verdict.verdict == "slower" for verdict in verdicts)
    assert alarms <= 17  # 5 % of 200, and the 2 % quantile beyond


def test_the_ratio_of_a_screened_case_is_that_of_its_fresh_pairs() -> None:
    first, fresh = noise(3, 5, 0.001) + math.log(1.3), noise(3, 7, 0.001, 1) + math.log(1.1)
    for row, verdict in zip(fresh, compare(first, fresh), strict=True):
        assert verdict.ratio == pytest.approx(math.exp(row.mean()))
        assert (verdict.verdict, verdict.pairs) == ("slower", 7)


def test_a_case_is_tested_in_the_direction_of_its_first_pairs_only() -> None:
    first, fresh = noise(2, 5, 0.01) + 0.1, noise(2, 7, 0.01, 1) - 0.1
    assert [verdict.verdict for verdict in compare(first, fresh)] == ["ambiguous"] * 2


def test_swapping_the_sides_swaps_the_verdicts() -> None:
    first, fresh = (shifted(noise(30, n, 0.03, n), 6, 0.15) for n in (5, 7))
    there, back = compare(first, fresh), compare(-first, -fresh)
    names = {"slower": "faster", "faster": "slower"}
    assert {verdict.verdict for verdict in there} >= {"slower", "same"}
    for one, other in zip(there, back, strict=True):
        assert other.verdict == names.get(one.verdict, one.verdict)
        assert (other.ratio, other.low, other.high) == pytest.approx(
            (1 / one.ratio, 1 / one.high, 1 / one.low)
        )
        assert (other.p, other.least_change) == pytest.approx((one.p, one.least_change))


def test_changes_and_threshold_scale_together() -> None:
    first, fresh = (shifted(noise(30, n, 0.03, n), 6, 0.15) for n in (5, 7))
    scaled = compare(3 * first, 3 * fresh, math.expm1(3 * math.log1p(THRESHOLD)))
    for one, other in zip(compare(first, fresh), scaled, strict=True):
        assert math.log(other.ratio) == pytest.approx(3 * math.log(one.ratio))
        assert math.log1p(other.least_change) == pytest.approx(3 * math.log1p(one.least_change))
        assert other.p == one.p
        assert (other.verdict == "slower") == (one.verdict == "slower")


def test_the_order_of_pairs_and_of_cases_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    first, fresh = (shifted(noise(30, n, 0.04, n), 6, 0.1) for n in (5, 7))
    cases = rng.permutation(30)
    expected = [compare(first, fresh)[case] for case in cases]
    moved = compare(first[cases][:, rng.permutation(5)], fresh[cases][:, rng.permutation(7)])
    for one, other in zip(expected, moved, strict=True):
        assert other.verdict == one.verdict
        assert dataclasses.astuple(other)[1:] == pytest.approx(dataclasses.astuple(one)[1:])


def test_a_single_case_is_screened_by_students_test() -> None:
    """Without other cases there is nothing to shrink a variance towards."""
    for seed in range(300):
        values = noise(1, 5, 0.05, seed) + 0.03
        p = scipy.stats.ttest_1samp(values[0], 0).pvalue / 2  # in the direction of the point
        expected = p < 0.1 and abs(values.mean()) > math.log1p(THRESHOLD) / 2
        assert paired.screen(values, THRESHOLD).tolist() == [expected]


def test_cases_of_equal_noise_share_their_variance() -> None:
    """A case whose five pairs agree by luck is no more significant than others at the same point."""
    values = noise(200, 5, 0.06, 1)
    values[0] = 0.03 + 0.01 * np.array([-2, -1, 0, 1, 2])
    assert not paired.screen(values, THRESHOLD)[0]
    assert paired.screen(values[:1], THRESHOLD)[0]


def test_intervals_cover_the_truth_and_agree_with_the_verdict() -> None:
    below = above = 0
    for seed in range(100):
        for pairs in (7, 10):
            first, fresh = noise(10, 5, seed=seed) + 0.1, noise(10, pairs, seed=1000 + seed) + 0.1
            verdicts = paired.confirm(first, fresh, [True] * 10, THRESHOLD)
            below += sum(verdict.high < math.exp(0.1) for verdict in verdicts)
            above += sum(verdict.low > math.exp(0.1) for verdict in verdicts)
            assert all(verdict.low <= verdict.ratio <= verdict.high for verdict in verdicts)
            assert all(verdict.low > 1 for verdict in verdicts if verdict.verdict == "slower")
    assert 60 <= below <= 120 and 60 <= above <= 120  # of 2,000, nominally 6/128 and 51/1024


@pytest.mark.parametrize("pairs", [7, 10])
def test_the_interval_of_a_single_case_ends_above_one_where_its_test_is_significant(pairs: int) -> None:
    outcomes = set()
    for seed in range(300):
        first, fresh = noise(1, 5, seed=seed), noise(1, pairs, seed=1000 + seed) + 0.03
        (verdict,) = paired.confirm(np.abs(first), fresh, [True], THRESHOLD)
        assert verdict.p is not None
        assert (verdict.p <= 0.05) == (verdict.low > 1)
        outcomes.add(verdict.low > 1)
    assert outcomes == {True, False}


@pytest.mark.parametrize("pairs", [5, 10, 13, 15, 20])
def test_any_number_of_pairs_from_five(pairs: int) -> None:
    first, fresh = (shifted(noise(4, n, 0.02, n), 1, 0.15) for n in (5, pairs))
    changed = compare(first, fresh)[0]
    assert changed.p is not None
    assert changed.verdict == "slower"
    assert 2.0**-pairs <= changed.p <= max(2.0**-pairs, 3 * 2.0**-13)


def test_more_cases_take_more_fresh_pairs() -> None:
    assert [paired.fresh_pairs(cases) for cases in (1, 100, 101, 1000)] == [7, 7, 10, 10]
    assert paired.FIRST_PAIRS + paired.fresh_pairs(10**6) == 15


def test_pairs_without_any_noise() -> None:
    first = np.repeat(np.log([[1.1], [1.0], [0.9], [1.04], [1.01]]), 5, axis=1)
    fresh = np.repeat(first[:, :1], 7, axis=1)
    verdicts = compare(first, fresh)
    assert [verdict.verdict for verdict in verdicts] == ["slower", "same", "faster", "same", "same"]
    assert [verdict.p for verdict in verdicts] == [1 / 128, None, 1 / 128, 1 / 128, None]
    assert [verdict.least_change for verdict in verdicts] == pytest.approx([THRESHOLD] * 5)
    assert (verdicts[1].low, verdicts[1].ratio, verdicts[1].high) == (1, 1, 1)


def test_one_constant_case_among_noisy_ones() -> None:
    first, fresh = noise(10, 5), noise(10, 7, seed=1)
    first[0] = fresh[0] = 0.0
    assert compare(first, fresh)[0].verdict in ("same", "ambiguous")
    first[0] = fresh[0] = math.log(1.2)
    assert compare(first, fresh)[0].verdict == "slower"


def test_noise_that_hides_twice_the_threshold_is_ambiguous() -> None:
    verdicts = compare(noise(40, 5, 0.3), noise(40, 7, 0.3, 1))
    assert {verdict.verdict for verdict in verdicts} == {"ambiguous"}
    assert min(verdict.least_change for verdict in verdicts) > 2 * THRESHOLD


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    good, broken = noise(2, 7), noise(2, 7)
    broken[1, 2] = bad
    with pytest.raises(ValueError, match="finite"):
        paired.screen(broken, THRESHOLD)
    for first, fresh in ((broken, good), (good, broken)):
        with pytest.raises(ValueError, match="finite"):
            paired.confirm(first, fresh, [True, True], THRESHOLD)
    with pytest.raises(ValueError, match="threshold"):
        paired.screen(good, bad)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        paired.screen(noise(2, 1), THRESHOLD)
    with pytest.raises(ValueError, match="shape"):
        paired.screen(noise(2, 5)[0], THRESHOLD)
    with pytest.raises(ValueError, match="too few"):
        paired.confirm(noise(2, 5), noise(2, 4), [True, True], THRESHOLD)
    with pytest.raises(ValueError, match="2 were screened"):
        paired.confirm(noise(2, 5), noise(1, 7), [True, True], THRESHOLD)
    with pytest.raises(ValueError, match="3 screenings of 2 cases"):
        paired.confirm(noise(2, 5), noise(2, 7), [True, True, False], THRESHOLD)
    with pytest.raises(ValueError, match="threshold"):
        paired.screen(noise(2, 5), 0.0)


def test_the_inverse_of_the_trigamma_function() -> None:
    for x in (0.01, 0.5, 2.0, 7.7, 300.0):
        assert paired._inverse_trigamma(paired._trigamma(x)) == pytest.approx(x, rel=1e-6)
