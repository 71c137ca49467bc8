"""The driver's own clock: the slope of two windows, whatever surrounds the calls."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.lane import DeviceState, Lane
from ssmperf.engine.execute.worker_process import WorkerProcess
from ssmperf.engine.plan.parts.household import Household
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.trial.windows import LEAST_S, LONG_S, REPLAYS, ROW, least_call_s, too_fast


class Worker:
    """Makes calls and writes of known length, each window with so much around them.

    cold_s: by how much a write takes longer behind a call. kept: whether answers for the same values are.
    """

    def __init__(
        self, call_s: float, write_s: float = 1e-5, cold_s: float = 0.0, *, kept: bool = False
    ) -> None:
        self.now_s, self.call_s, self.write_s, self.cold_s, self.kept = 0.0, call_s, write_s, cold_s, kept
        self.noise_s = cycle([0.0])
        self.calls = 0

    def make(self, calls: int, writes: int) -> None:
        self.calls += calls
        computed = min(calls, writes) if self.kept else calls
        written = writes * self.write_s + min(calls, writes) * self.cold_s
        self.now_s += 5e-5 + computed * self.call_s + written + next(self.noise_s)

    def now(self) -> float:
        return self.now_s

    def least_s(self) -> float:
        return least_call_s(self.make, self.now)


@pytest.mark.parametrize("call_s", [1e-6, 1e-4, 2e-3, 0.015])
def test_the_slope_is_the_time_of_a_call(call_s: float) -> None:
    assert Worker(call_s).least_s() == pytest.approx(call_s)


@pytest.mark.parametrize("call_s", [2e-3, 0.015, 5.0])
def test_answers_that_are_kept_for_the_same_values_do_not_lower_it(call_s: float) -> None:
    assert 0.7 * call_s <= Worker(call_s, kept=True).least_s() <= call_s


@pytest.mark.parametrize("call_s", [1e-5, 1e-4, 2e-3])
def test_writes_that_take_longer_behind_a_call_do_not_raise_it(call_s: float) -> None:
    assert Worker(call_s, write_s=1e-4, cold_s=2e-4).least_s() <= call_s * 1.001


def test_a_long_call_is_made_once_and_bounded_from_below() -> None:
    worker = Worker(5.0)
    assert 5.0 - 3 * LEAST_S <= worker.least_s() <= 5.0 and worker.calls == 1
    assert LONG_S > LEAST_S


def test_a_window_that_was_disturbed_does_not_count() -> None:
    worker = Worker(1e-3)
    worker.noise_s = cycle([0.0, 0.0, 0.0, 0.5, 0.0, 0.0])
    assert worker.least_s() <= 1e-3 * 1.001


def test_calls_that_take_no_time_bound_nothing() -> None:
    assert Worker(0.0).least_s() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("median_s", "issue_s", "least_s", "reason"),
    [
        (1.0, None, {ROW: 1.2}, None),
        (1.0, None, {ROW: 1.5}, "its clock is wrong"),
        (1.0, None, {}, "cannot be confirmed"),
        (1.0, None, {REPLAYS: 0.1}, "cannot be confirmed"),
        (1.0, None, {ROW: 0.0}, None),
        (None, None, {}, None),
        # on a GPU: a call behind a spin waits for the host only where the spin has ended
        (1e-5, 6e-5, {ROW: 6e-5, REPLAYS: 1e-5}, None),
        (1e-3, 4e-3, {ROW: 4e-3, REPLAYS: 1e-3}, None),
        (3.1e-3, 8e-3, {ROW: 8e-3, REPLAYS: 1e-3}, None),
        (1e-3, 8e-3, {ROW: 8e-3, REPLAYS: 1e-3}, "a call takes 0.003 s"),
        (9e-3, 3e-2, {ROW: 3e-2, REPLAYS: 9e-3}, "a call takes 0.025 s"),
        (9e-3, 1.0, {ROW: 3e-2}, "a call takes 0.025 s"),
        (1e-3, 1.0, {ROW: 3e-3, REPLAYS: 2e-3}, "a call takes 0.002 s"),
        (2e-6, 1e-4, {ROW: 1e-4, REPLAYS: 1e-5}, None),
    ],
)
def test_a_median_far_below_the_bound_is_wrong(
    median_s: float | None, issue_s: float | None, least_s: dict[str, float], reason: str | None
) -> None:
    found = too_fast(median_s, issue_s, least_s)
    assert found is None if reason is None else reason in str(found)


def test_only_a_case_in_turns_is_without_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a side of `ab`: a GPU takes no turns within a case, nor does a side that alone has it."""
    ends = socket.socketpair()
    partner, asked = Partner(ends[0].fileno()), []
    case = Case("throughput", "scan", "sequential", Shape(B=1, T=8, C=2))

    def note(call: Callable[[], Any], fresh: Callable[[], None], replayed: bool) -> None:
        asked.append(partner.pair)

    ceilings = Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0)
    context = Context("cpu", "e", Settings(0.0, 0.02), ceilings, partner=partner, on_windows=note)
    monkeypatch.setattr(Context, "is_guest", lambda *ignored: True)
    worker = object.__new__(WorkerProcess)
    worker.__dict__.update(_partner=partner, least_s={ROW: 1.0})
    lane: Any = Lane(SimpleNamespace(), DeviceState("cpu"), 1.0)  # type: ignore[arg-type]
    lane.household = Household((), "scan/foreign")
    fast, timing = Record(case, Status.OK, None, "e", {"latency_s": 0.1}), SimpleNamespace(graph_s=None)
    found = {}
    for partner.pair in (None, 3):
        context.confirm(case, lambda: None, lambda: None, timing, 0)  # type: ignore[arg-type]
        found[partner.pair] = lane._is_too_fast(fast, worker)
    for end in ends:
        end.close()
    assert asked == [None] and found[3] is None and "its clock is wrong" in found[None]
