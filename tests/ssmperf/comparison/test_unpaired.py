"""Judging times of two runs that were not measured in pairs: false alarms, power, and what is left open."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ssmperf.comparison.unpaired import CaseSide, Change, Timed, compare, error_of, error_of_interval, exact

THRESHOLD = 0.05


def families(
    spread: Any, cases: int, *, assumed: float = 0.02, rounds: int = 1, effect: float = 1.0, trials: int = 400
) -> list[list[Change]]:
    """Judge simulated comparisons in which the first case becomes slower by a factor.

    spread: between processes, of each case. Cases of different spread are of different kinds.
    """
    chance = np.random.default_rng(cases + rounds)
    spreads = np.broadcast_to(spread, cases)
    found = []
    for _ in range(trials):
        logs = chance.normal(0, 1, (2, rounds, cases)) * spreads
        logs[1, :, 0] += math.log(effect)
        base, new = np.exp(logs)
        sides = [
            [
                CaseSide(float(np.median(side[:, i])), 0.002, tuple(side[:, i]) if rounds > 1 else ())
                for i in range(cases)
            ]
            for side in (base, new)
        ]
        timed = [
            Timed(one, other, assumed, f"{each}") for one, other, each in zip(*sides, spreads, strict=True)
        ]
        found.append(compare(timed, THRESHOLD)[0])
    return found


def alarms(found: list[list[Change]]) -> float:
    return sum(any(change.verdict == "slower" for change in family) for family in found) / len(found)


def power(found: list[list[Change]]) -> float:
    return sum(family[0].verdict == "slower" for family in found) / len(found)


LIMIT = 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / 400)  # 99 % of Monte-Carlo error


@pytest.mark.slow(but=("0.02-6-*", "0.04-5-*"))
@pytest.mark.parametrize(
    ("spread", "cases", "options"),
    [
        (0.02, 6, {}),
        (0.02, 40, {}),
        (0.04, 40, {"assumed": 0.04}),
        (0.02, 6, {"rounds": 5}),
        (0.04, 40, {"rounds": 5}),
        (0.04, 5, {"rounds": 5, "assumed": 0.04}),
    ],
)
def test_equal_runs_raise_few_alarms(spread: float, cases: int, options: dict[str, Any]) -> None:
    assert alarms(families(spread, cases, **options)) <= LIMIT


def test_the_scatter_of_the_ratios_widens_what_was_assumed_for_each_kind() -> None:
    spreads = np.repeat([0.01, 0.06], 30)
    widened = families(spreads, 60, trials=100)
    assert alarms(widened) <= 0.25  # nearly every family, if two per cent were believed
    noisy = [change.least_change or 0.0 for family in widened for change in family[30:]]
    quiet = [change.least_change or 0.0 for family in widened for change in family[:30]]
    assert np.median(noisy) > 2 * np.median(quiet)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "cases", "options", "least"),
    [(1.2, 6, {}, 0.95), (1.2, 40, {}, 0.98), (1.1, 6, {"rounds": 5}, 0.95), (1.2, 40, {"rounds": 5}, 0.99)],
)
def test_slow_downs_are_found(effect: float, cases: int, options: dict[str, Any], least: float) -> None:
    assert power(families(0.02, cases, effect=effect, trials=200, **options)) >= least


def test_noise_that_could_hide_twice_the_threshold_is_no_sameness() -> None:
    (quiet,), _ = compare([Timed(CaseSide(1.0, 0.0), CaseSide(1.0, 0.0), 0.02)], THRESHOLD)
    (noisy,), _ = compare([Timed(CaseSide(1.0, 0.0), CaseSide(1.0, 0.0), 0.06)], THRESHOLD)
    assert (quiet.verdict, noisy.verdict) == ("same", "ambiguous")
    assert quiet.least_change is not None and quiet.least_change <= 2 * THRESHOLD
    assert noisy.least_change is not None and noisy.least_change > 2 * THRESHOLD


def test_a_verdict_needs_the_threshold_and_the_noise() -> None:
    def verdict(ratio: float, spread: float) -> str:
        return compare([Timed(CaseSide(1.0, 0.001), CaseSide(ratio, 0.001), spread)], THRESHOLD)[0][0].verdict

    assert verdict(1.04, 0.001) == "same"  # certain, and small
    assert verdict(1.06, 0.001) == "slower"
    assert verdict(1 / 1.06, 0.001) == "faster"
    assert verdict(1.06, 0.03) == "ambiguous"
    assert verdict(1.2, 0.02) == "slower"


def test_the_least_change_is_where_slower_begins() -> None:
    (found,), _ = compare([Timed(CaseSide(1.0, 0.01), CaseSide(1.0, 0.01), 0.03)], THRESHOLD)
    assert found.least_change is not None
    for factor, verdict in ((0.999, "ambiguous"), (1.001, "slower")):
        new = CaseSide(1 + factor * found.least_change, 0.01)
        assert compare([Timed(CaseSide(1.0, 0.01), new, 0.03)], THRESHOLD)[0][0].verdict == verdict


def test_more_cases_ask_for_more_evidence() -> None:
    one = Timed(CaseSide(1.0, 0.001), CaseSide(1.06, 0.001), 0.02)
    alone, among = compare([one], THRESHOLD)[0][0], compare([one] * 5, THRESHOLD)[0][0]
    assert alone.p is not None and among.p == pytest.approx(5 * alone.p)
    assert (alone.verdict, among.verdict) == ("slower", "ambiguous")
    assert (among.low or 0.0) < (alone.low or 0.0) < alone.ratio < (alone.high or 0.0) < (among.high or 0.0)


def test_the_noise_of_one_sample_is_unknown() -> None:
    assert error_of([1.0]) is None
    (found,), _ = compare([Timed(CaseSide(1.0, None), CaseSide(3.0, 0.01), 0.02)], THRESHOLD)
    assert (found.verdict, found.ratio, found.low) == ("ambiguous", 3.0, None)


def test_the_error_of_a_median_shrinks_with_its_samples() -> None:
    chance = np.random.default_rng(0)
    errors = [error_of(list(np.exp(chance.normal(0, 0.1, n)))) or 0.0 for n in (3, 20, 400)]
    assert errors[0] > errors[1] > errors[2] > 0
    # the standard error of the median of normal samples is 1.25 σ/√n
    assert errors[2] == pytest.approx(0.125 / 20, rel=0.5)
    assert error_of_interval(0.9, 1.1) == pytest.approx(math.log(1.1 / 0.9) / 2 / 1.96, rel=1e-3)


def test_rounds_are_compared_by_their_geometric_mean() -> None:
    base, new = CaseSide(1.0, None, (1.0, 1.0, 1.21)), CaseSide(1.1, None, (1.1, 1.1, 1.331))
    (found,), _ = compare([Timed(base, new, 0.02)], THRESHOLD)
    assert found.ratio == pytest.approx(1.1) and found.rounds == 3
    single, _ = compare([Timed(CaseSide(1.0, 0.01), new, 0.02)], THRESHOLD)
    assert single[0].rounds == 1  # one side has no rounds


@pytest.mark.parametrize(("new", "verdict"), [(100, "same"), (104, "same"), (106, "slower"), (90, "faster")])
def test_numbers_without_noise_compare_as_they_are(new: float, verdict: str) -> None:
    found = exact(100, new, THRESHOLD)
    assert (found.verdict, found.ratio, found.rounds) == (verdict, new / 100, None)
