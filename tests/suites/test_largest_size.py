"""The search for the largest length and batch: against fake capacities, on fake clocks, on fake operands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ssmperf.suites import largest_size
from ssmperf.suites.largest_size import (
    GRID,
    Attempt,
    SearchEnded,
    largest_fitting,
    largest_sizes,
    ranges,
    run_at,
    search,
)
from ssmperf.suites.memory_growth import Growth, growth_exponent
from support.processes.in_process import CEILINGS

from ssmperf import Case, Shape, Unsupported
from ssmperf.authoring import backend
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.suitekit import registry


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    lengths = (64, 128, 256, 1024)
    assert growth_exponent(lengths, [int(1e9 * T**power) for T in lengths]) == pytest.approx(power, abs=1e-6)


def test_no_exponent_without_two_lengths() -> None:
    assert growth_exponent((64,), [100]) is None
    assert growth_exponent((64, 128), [0, 100]) is None


@pytest.mark.parametrize("peak", [lambda T: T, lambda T: T * T + 9 * T, lambda T: T * T.bit_length()])
def test_lengths_that_agree_give_one_prediction(peak: Callable[[int], int]) -> None:
    sizes = [64, 128, 256]
    assert ranges(sizes, [0] * 3, [peak(T) for T in sizes], 10**12) == {}


def test_lengths_below_and_above_a_chunk_give_a_range() -> None:
    """The workspace of chunks of 64 steps has a least size, and at T = 96 is that of 128 steps."""
    sizes = [24, 48, 96]
    chunks = [-(-T // 64) for T in sizes]
    peaks = [4000 * chunk * 64 if T > 64 else 3000 * T for T, chunk in zip(sizes, chunks, strict=True)]
    found = ranges(sizes, [0] * 3, peaks, 4000 * 1_000_000)
    assert found["growth_exponent_low"] == 1 and found["growth_exponent_high"] > 1.8
    assert found["predicted_largest_T_low"] < 100_000 and found["predicted_largest_T_high"] > 700_000


@pytest.mark.parametrize("start", [1, 7, 64, 5000, 10**6])
@pytest.mark.parametrize("limit", [1, 3, 100, 4096, 123_457])
def test_the_search_brackets_the_limit(start: int, limit: int) -> None:
    low, high = search(lambda length: length <= limit, start)
    assert low is not None and high is not None
    assert low <= limit < high and high - low <= max(1, low // GRID)


def test_the_search_ends_where_nothing_or_everything_fits() -> None:
    assert search(lambda length: False, 100) == (None, 1)
    assert search(lambda length: True, 100, most=1000) == (1000, None)
    assert search(lambda length: True, 48, most=1000, doubling=True) == (768, None)


def test_the_search_keeps_what_it_found_when_its_time_is_up() -> None:
    tried: list[int] = []

    def fits(length: int) -> bool:
        if len(tried) == 3:
            raise SearchEnded
        tried.append(length)
        return length <= 300

    assert search(fits, 100) == (200, 400)
    assert tried == [100, 200, 400]


def test_a_search_by_doubling_tries_nothing_else() -> None:
    tried: list[int] = []

    def fits(length: int) -> bool:
        tried.append(length)
        return length <= 700

    assert search(fits, 64, doubling=True) == (512, 1024)
    assert tried == [64, 128, 256, 512, 1024]


def test_a_search_near_the_answer_takes_two_attempts() -> None:
    tried: list[int] = []

    def fits(length: int) -> bool:
        tried.append(length)
        return length <= 1010

    assert search(fits, 1000, near=True) == (1000, 1125)
    assert tried == [1000, 1125]


@pytest.mark.parametrize("seed", range(20))
def test_a_fake_device_is_filled_as_predicted(seed: int) -> None:
    """Memory of a fixed part, operands that grow linearly and a peak that grows as a power of the size."""
    draw = random.Random(seed)
    fixed, power = draw.choice([0, 10**6]), draw.choice([1.0, 1.5, 2.0])
    operands, peak = draw.randrange(100, 10**4), draw.randrange(100, 10**4)

    def peak_bytes(size: int) -> int:
        return int(fixed + peak * size**power)

    def run(size: int) -> None:
        if operands * size + peak_bytes(size) > capacity:
            raise torch.OutOfMemoryError("planted")

    capacity, sizes = draw.randrange(10**8, 10**10), (64, 128, 256)
    growth = Growth.fitted(
        sizes,
        [operands * size for size in sizes],
        [peak_bytes(size) for size in sizes],
    )
    assert growth is not None and growth.exponent == pytest.approx(power, abs=1e-3)
    predicted = largest_fitting(growth.predicted_bytes, capacity, 256)
    assert predicted is not None
    attempt = Attempt(run, known=(256, 0.0), clock=lambda: 0.0)
    largest, failed = search(attempt, predicted, near=True)
    assert largest is not None and failed is not None and attempt.reason is None and not attempt.broken
    assert largest <= predicted * (1 + 1 / GRID) and predicted < failed * (1 + 1 / GRID)
    run(largest)
    with pytest.raises(torch.OutOfMemoryError):
        run(failed)


def test_a_search_ends_before_a_call_that_would_outlast_it() -> None:
    """A call takes a second at 100, and would take four at 200, by a clock that only the calls move."""
    now = [0.0]

    def run(size: int) -> None:
        now[0] += (size / 100) ** 2

    attempt = Attempt(run, known=(100, 1.0), exponent=2.0, budget_s=4.5, clock=lambda: now[0])
    assert search(attempt, 100) == (100, None)
    assert attempt.reason == "the search ended after 4.5 s" and now[0] == 1.0


def test_a_small_call_that_takes_the_time_of_its_host_does_not_end_the_search() -> None:
    """At 100 the host takes 20 ms, and the device 1 µs per unit; judged by that, 100,000 would take 20 s."""
    now, tried = [0.0], list[int]()

    def run(size: int) -> None:
        tried.append(size)
        now[0] += 0.02 + 1e-6 * size
        if size > 100_000:
            raise torch.OutOfMemoryError("planted")

    attempt = Attempt(run, known=(100, 0.02), clock=lambda: now[0])
    assert search(attempt, 100_000, near=True) == (100_000, 112_500)
    assert 100 < tried[0] < 10_000 and tried[0] % 100 == 0
    slow = Attempt(run, known=(100, 0.2), clock=lambda: now[0])
    assert search(slow, 100_000, near=True) == (None, None) and tried[-1] == 112_500


@pytest.mark.parametrize(
    ("error", "words", "broken"),
    [
        (RuntimeError("integer out of range"), "400 failed, but not for memory", True),
        (Unsupported("nothing above 300"), "the backend refuses 400: nothing above 300", False),
    ],
)
def test_an_error_other_than_memory_ends_the_search(error: Exception, words: str, broken: bool) -> None:
    def run(size: int) -> None:
        if size > 300:
            raise error

    attempt = Attempt(run, known=(100, 0.0))
    assert search(attempt, 100) == (200, None)
    assert words in str(attempt.reason) and attempt.broken is broken


@pytest.mark.parametrize("dimension", ["T", "B"])
def test_a_gpu_is_searched_in_either_dimension(dimension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake GPU, full at 300; beyond 1000 it would fail otherwise, and then no further size is tried."""

    def run(size: int) -> None:
        if size > 300:
            raise torch.OutOfMemoryError("planted") if size <= 1000 else RuntimeError("illegal address")

    monkeypatch.setattr(largest_size, "run_at", lambda *arguments: run)
    case = Case("memory", "scan", "sequential", Shape(B=64, T=64, C=4), "hgrn", device="cuda")
    context = Context("cuda", "env", Settings(), CEILINGS)
    growth = Growth(64, 640, 10, 640, 0, 1.0)

    def found(capacity_bytes: int) -> dict[str, Any]:
        return largest_sizes(
            case, context, dimension, growth, lambda size: 40 * size,
            capacity_bytes=capacity_bytes, small=1, call_s=0.0,
        )  # fmt: skip

    numbers = found(6000)
    assert 250 < numbers[f"predicted_largest_{dimension}"] <= 300
    assert numbers[f"declared_largest_{dimension}"] <= 150
    largest, failed = numbers[f"largest_{dimension}"], numbers[f"least_failed_{dimension}"]
    assert largest <= 300 < failed <= largest * (1 + 1 / GRID) + 1
    assert not context.broken
    numbers = found(60000)
    assert "illegal address" in str(numbers[f"largest_{dimension}_reason"]) and context.broken
    assert "not tried" in str(found(6000)[f"largest_{dimension}_reason"])


def test_a_call_that_would_take_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of attention, whose memory grows with T, and whose work grows with its square."""
    tried: list[int] = []
    monkeypatch.setattr(largest_size, "run_at", lambda *arguments: tried.append)
    case = Case("memory", "scan", "sequential", Shape(B=4, T=64, C=4), "hgrn", device="cuda")
    growth = Growth(64, 640, 10, 640, 0, 1.0)
    call_s = 0.09
    for power, sizes in ((1.0, [568, 639]), (2.0, [])):
        context = Context("cuda", "env", Settings(), CEILINGS)
        found = largest_sizes(
            case, context, "T", growth, None,
            capacity_bytes=12800, small=1, call_s=call_s, work_exponent=power,
        )  # fmt: skip
        assert tried[:2] == sizes and found["predicted_largest_T"] == 640
        assert power == 1.0 or "a call at 568 would take 7.1 s" in found["largest_T_reason"]
        tried.clear()


def test_why_no_size_is_tried_is_recorded() -> None:
    case = Case("memory", "scan", "sequential", Shape(B=4, T=64, C=4), "hgrn", device="cuda")
    context = Context("cuda", "env", Settings(), CEILINGS)
    found = largest_sizes(
        case, context, "B", None, None, capacity_bytes=1, small=1, call_s=0.0, untried="for a reason"
    )
    assert found["largest_B"] is None and found["largest_B_reason"] == "not tried: for a reason"


@pytest.mark.parametrize("layout", ["channels_last", "time_last"])
@pytest.mark.parametrize(("dimension", "size"), [("T", 21), ("T", 3), ("B", 7), ("B", 1)])
def test_operands_of_any_size_repeat_drawn_ones(
    dimension: str, size: int, layout: str, own_registrations: None
) -> None:
    """Like those that are drawn at that size in names, shapes, dtypes and order in memory."""
    seen: list[dict[str, torch.Tensor]] = []

    @backend("scan", name="looks")
    def looks(log_a, b, initial_state=None, *, phase=None):  # type: ignore[no-untyped-def]
        seen.append({"log_a": log_a.detach(), "b": b.detach()})
        return registry.recurrence("scan").definition(log_a, b, initial_state, phase=phase)

    shape = Shape(B=2, T=8, C=4)
    case = Case("memory", "scan", "looks", shape, "hgrn", pass_="forward_backward", layout=layout)
    context = Context("cpu", "env", Settings(), CEILINGS)
    run_at(case, context, dimension, 4 if dimension == "T" else 1)(size)
    there = Case("memory", "scan", "looks", shape.with_(**{dimension: size}), "hgrn", layout=layout)
    drawn = context.subject(there).values(0, with_state=False).tensors
    for name, value in seen[-1].items():
        assert (value.shape, value.dtype) == (drawn[name].shape, drawn[name].dtype)
        long = [dim for dim in range(value.dim()) if value.shape[dim] > 1]
        assert [value.stride(dim) for dim in long] == [drawn[name].stride(dim) for dim in long]
        axis = "BT".index(dimension)
        period = 4 if dimension == "T" else 1
        repeated = value.index_select(axis, torch.arange(size) % period)
        assert torch.equal(value, repeated)
