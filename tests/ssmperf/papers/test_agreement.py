"""The rule by which measurements agree with papers: disjoint intervals decide, anything else does not."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssmperf import Case, Record, Shape, Status
from ssmperf.papers.reproduction.agreement import taken_together
from ssmperf.suitekit import (
    Agreement,
    Estimate,
    Finding,
    agree_on_equality,
    agree_on_limit,
    agree_on_number,
    agree_on_order,
    agree_on_range,
    over_seeds,
)

YES, NO, UNSURE = Agreement.AGREES, Agreement.DISAGREES, Agreement.CANNOT_TELL
OPPOSITE = {YES: NO, NO: YES, UNSURE: UNSURE}
anything = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
positive = st.floats(1e-6, 1e6)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    low, value, high = sorted(draw(st.tuples(positive, positive, positive)))
    return Estimate(value, low, high)


def finding(agreement: Agreement, decides: bool = True) -> Finding:
    return Finding("what", "1", {}, (agreement, "because"), decides)


@anything
@given(estimates(), estimates())
def test_an_order_is_told_by_disjoint_intervals_alone(one: Estimate, other: Estimate) -> None:
    found, reason = agree_on_order(one, other)
    assert agree_on_order(other, one)[0] is OPPOSITE[found] and reason
    (low, high), (other_low, other_high) = one.bounds or (0, 0), other.bounds or (0, 0)
    overlap = max(low, other_low) <= min(high, other_high)
    assert (found is UNSURE) == overlap
    if not overlap:
        assert (found is YES) == (one.value > other.value)


@anything
@given(estimates(), st.floats(1.0001, 3))
def test_a_wider_interval_never_decides_what_a_narrower_one_leaves_open(one: Estimate, factor: float) -> None:
    assert one.low is not None and one.high is not None
    wider = Estimate(one.value, one.low / factor, one.high * factor)
    other = Estimate(one.value * 1.5, one.value * 1.4, one.value * 1.6)
    for judge in (lambda each: agree_on_order(each, other), lambda each: agree_on_range(1, 2, each)):
        narrow, wide = judge(one)[0], judge(wider)[0]
        assert wide is not NO or narrow is NO
    assert agree_on_equality(wider, 0.1)[0] is not YES or agree_on_equality(one, 0.1)[0] is YES


@pytest.mark.parametrize(
    "missing", [None, Estimate(2.0), over_seeds([3.0])], ids=["nothing", "no interval", "one seed"]
)
def test_without_an_interval_nothing_is_told(missing: Estimate | None) -> None:
    exact = Estimate.exact(1.0)
    assert agree_on_order(missing, exact)[0] is agree_on_order(exact, missing)[0] is UNSURE
    assert agree_on_number("2", missing)[0] is agree_on_range(0, 9, missing)[0] is UNSURE
    assert agree_on_equality(missing, 9.0)[0] is UNSURE
    if missing is None:
        assert agree_on_order(missing, exact, "no such kernel") == (UNSURE, "no such kernel")


def test_a_printed_number_stands_for_all_that_round_to_it() -> None:
    found = {
        value: agree_on_number("44.66", Estimate.exact(value))[0]
        for value in (44.655, 44.661, 44.6651, 44.64)
    }
    assert found == {44.655: YES, 44.661: YES, 44.6651: NO, 44.64: NO}
    assert agree_on_number("1,361", Estimate.exact(1361.4))[0] is YES
    assert agree_on_number("128.6", Estimate(130.0, 128.0, 132.0))[0] is YES
    assert agree_on_number("44.66", Estimate.exact(44.66), full_size=False)[0] is UNSURE
    with pytest.raises(ValueError, match="no number"):
        agree_on_number("about 3", Estimate.exact(3))


@pytest.mark.parametrize(("half", "verdict"), [(0.17, YES), (0.19, UNSURE)])
def test_a_wide_interval_reaches_no_number(half: float, verdict: Agreement) -> None:
    """By more than a tenth of 1.8 either way; a wide one that does not hold the number still refutes it."""
    wide = Estimate(1.8, 1.8 - half, 1.8 + half)
    assert agree_on_number("1.8", wide)[0] is agree_on_range(1.7, 1.9, wide)[0] is verdict
    assert agree_on_number("4.0", wide)[0] is NO


def test_a_limit_is_one_sided() -> None:
    """Half of the time is at most as long; a tenth more is within the margin, and a fifth more is not."""
    near = {value: agree_on_limit(Estimate.exact(value), 0.1)[0] for value in (0.5, 1.0, 1.09, 1.2)}
    assert near == {0.5: YES, 1.0: YES, 1.09: YES, 1.2: NO}
    assert agree_on_limit(Estimate(1.1, 1.0, 1.2), 0.1)[0] is UNSURE
    assert agree_on_limit(None, 0.1, "not run") == (UNSURE, "not run")


@anything
@given(st.floats(0.01, 100), st.floats(0.01, 0.5))
def test_the_same_is_what_lies_within_the_margin_both_ways(ratio: float, margin: float) -> None:
    there = agree_on_equality(Estimate.exact(ratio), margin)[0]
    assert there is agree_on_equality(Estimate.exact(1 / ratio), margin)[0] or math.isclose(
        abs(math.log(ratio)), math.log1p(margin), rel_tol=1e-9
    )
    assert there is not UNSURE
    across = Estimate(1 + margin, 1.0, 1 + 2 * margin)
    assert agree_on_equality(across, margin)[0] is UNSURE


def test_a_claim_agrees_only_if_all_that_decides_does() -> None:
    assert taken_together([finding(YES), finding(YES)])[0] is YES
    assert taken_together([finding(YES), finding(UNSURE)]) == (UNSURE, "1 agrees, 1 cannot be told")
    assert taken_together([finding(YES), finding(NO), finding(NO), finding(UNSURE)])[0] is NO
    assert taken_together([finding(YES), finding(NO, decides=False)])[0] is YES
    assert taken_together([])[0] is taken_together([finding(YES, decides=False)])[0] is UNSURE


def test_an_interval_over_seeds_holds_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(0)
    for n in (2, 3, 5):
        inside = 0
        for _ in range(2000):
            low, high = over_seeds([draw.gauss(7.0, 2.0) for _ in range(n)]).bounds or (0, 0)
            inside += low <= 7.0 <= high
        assert 0.935 < inside / 2000 < 0.965, n
    with pytest.raises(ValueError, match="finite"):
        over_seeds([1.0, math.nan])


@anything
@given(estimates(), estimates())
def test_a_quotient_holds_all_quotients_and_survives_json(one: Estimate, other: Estimate) -> None:
    ratio = one.over(other)
    low, high = ratio.bounds or (math.inf, -math.inf)
    for above in (one.low, one.value, one.high):
        for below in (other.low, other.value, other.high):
            assert above is not None and below is not None
            assert low * (1 - 1e-12) <= above / below <= high * (1 + 1e-12)
    assert Estimate.from_json(ratio.to_json()) == ratio


def test_numbers_of_records_keep_their_interval_and_failed_ones_give_none() -> None:
    case = Case("throughput", "scan", "blelloch", Shape(B=1, T=2, C=3), model="hgrn")
    numbers = {"latency_s": 2.0, "latency_low_s": 1.5, "latency_high_s": 3.0, "samples": 40}
    ok = Record(case, Status.OK, numbers=numbers)
    assert Estimate.of_record(ok) == Estimate(2.0, 1.5, 3.0, "s", 40)
    assert Estimate.of_record(
        Record(case, Status.OK, numbers={**numbers, "latency_low_s": None})
    ) == Estimate(2.0, unit="s", n=40)
    assert Estimate.of_record(Record(case, Status.WRONG, "off")) is None
    assert Estimate.of_record(ok, "first_call_s") is None


def test_what_is_no_estimate_is_refused() -> None:
    for bad in ((math.inf, None, None), (1.0, 0.5, None), (1.0, 2.0, 3.0)):
        with pytest.raises(ValueError, match=r"finite|two ends|outside"):
            Estimate(*bad)
    with pytest.raises(ValueError, match="no estimate"):
        Estimate.from_json({"value": 1.0, "mean": 2.0})
    texts = [str(Estimate.exact(1048576)), str(Estimate(2.0, 1.0, 3.0, "s")), str(Estimate(2.0, unit="×"))]
    assert texts == ["1,048,576", "2 s [1, 3]", "2× (no interval)"]
    assert all(one != other for one, other in pairwise(texts))
