"""Launch plans: when one is kept, when another is made, what it allocates, and where it runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from ssmperf.impls._triton import plan as plans
from ssmperf.impls._triton.plan import Plan, Planned, Slot, packed
from ssmperf.impls._triton.slots import Step
from torch import Tensor

from ssmperf import UsageError
from ssmperf.engine.tune import tables as configurations
from ssmperf.engine.tune.tables import Table, noted, using


class Note(Step):
    """A step that writes its operands' sum to its last slot, and notes the stream."""

    def __init__(self, *slots: Slot, streams: list[int] | None = None) -> None:
        self.indices = [slot.index for slot in slots]
        self.uses = frozenset(self.indices)
        self.streams = streams

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        *given, to = (tensors[index] for index in self.indices)
        assert [x.data_ptr() for x in (*given, to)] == [pointers[index] for index in self.indices]
        to.copy_(sum(given))
        if self.streams is not None:
            self.streams.append(stream)


@dataclass(frozen=True)
class Cut:
    size: int


class Adder:
    """A planned function that adds tensors of one shape, and counts how often it is planned."""

    def __init__(self) -> None:
        self.table = Table("scan/adder", Cut, {("forward",): Cut(2)})
        self.planned = 0
        self.streams: list[int] = []
        self.call = Planned(self.plan)

    def plan(self, plan: Plan, *slots: Slot | None, scale: int = 1) -> tuple[Any, ...]:
        self.planned += 1
        given = [slot for slot in slots if slot is not None]
        to = plan.like(given[0])
        plan.steps.append(Note(*given, to, streams=self.streams))
        return to, self.table["forward",].size * scale, None


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Adder:
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))
    monkeypatch.setattr(plans, "_planned", list(plans._planned))
    return Adder()


def test_a_further_call_of_a_kind_takes_the_plan_and_its_own_memory(adder: Adder) -> None:
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    first, size, nothing = adder.call(x, None, y)
    second, *_ = adder.call(y, None, y)
    assert torch.equal(first, x + y) and torch.equal(second, y + y)
    assert (size, nothing) == (2, None)
    assert adder.planned == 1


@pytest.mark.parametrize(
    "other",
    [
        torch.rand(3, 2),
        torch.rand(3, 2).T,
        torch.rand(2, 3).half(),
        torch.rand(7)[1:].view(2, 3),
        None,
    ],
    ids=["shape", "strides", "dtype", "alignment", "presence"],
)
def test_another_kind_of_call_takes_another_plan(adder: Adder, other: Tensor | None) -> None:
    x = torch.rand(2, 3)
    adder.call(x, x)
    adder.call(x if other is None else other, other)
    assert adder.planned == 2
    adder.call(x, x)
    assert adder.planned == 2


def test_devices_have_plans_of_their_own() -> None:
    class On:
        dtype, shape, stride = torch.float32, torch.Size((3,)), staticmethod(lambda: (1,))

        def __init__(self, device: int) -> None:
            self.get_device = lambda: device

    keys = [plans.key_of(On(device), 512) for device in (0, 1, 0)]
    assert keys[0] == keys[2] != keys[1]
    on_second = Slot(On.shape, (1,), On.dtype, torch.device("cuda", 1))
    assert on_second.key == keys[1]


def test_flags_are_part_of_the_kind(adder: Adder) -> None:
    x = torch.rand(3)
    assert [adder.call(x, scale=scale)[1] for scale in (1, 5, 1)] == [2, 10, 2]
    assert adder.planned == 2


def test_other_rows_in_force_take_another_plan_and_the_same_ones_do_not(adder: Adder) -> None:
    x, place = torch.rand(3), ("scan/adder", ("forward",))
    assert adder.call(x)[1] == 2
    with using({place: Cut(7)}):
        assert [adder.call(x)[1] for _ in range(2)] == [7, 7]
        with using({place: Cut(8)}):
            assert adder.call(x)[1] == 8
        assert adder.call(x)[1] == 7
    assert adder.call(x)[1] == 2
    assert adder.planned == 3


def test_a_kept_plan_notes_what_it_consulted(adder: Adder) -> None:
    x, place = torch.rand(3), ("scan/adder", ("forward",))
    adder.call(x)
    for _ in range(2):
        with noted() as consulted:
            adder.call(x)
        assert consulted == {place: Cut(2)}
    assert adder.planned == 1


def test_what_another_thread_looks_up_meanwhile_is_no_part_of_a_plan(adder: Adder) -> None:
    with configurations.consulting() as found:
        other = threading.Thread(target=lambda: adder.table["forward",])
        other.start()
        other.join(60)
    assert found == {}


def test_a_plan_made_ahead_is_the_one_that_the_call_takes(adder: Adder) -> None:
    x, y = torch.rand(2, 3), torch.rand(2, 3)
    for _ in range(2):
        adder.call.prepare(Slot.of(x), None, Slot.of(y), scale=3)
    assert (adder.planned, adder.streams) == (1, [])
    assert torch.equal(adder.call(x, None, y, scale=3)[0], x + y)
    assert (adder.planned, adder.streams) == (1, [0])


def test_the_oldest_plans_go_first(adder: Adder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 3)
    for size in (1, 2, 3, 4):
        adder.call(torch.rand(size))
    assert len(adder.call.plans) == 3
    adder.call(torch.rand(4))
    assert adder.planned == 4
    adder.call(torch.rand(1))
    assert adder.planned == 5


def test_threads_that_plan_at_once_all_get_their_sums(adder: Adder) -> None:
    found: list[bool] = []

    def run(number: int) -> None:
        for size in range(1, 40):
            x = torch.full((size,), float(number))
            found.append(torch.equal(adder.call(x, x)[0], 2 * x))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 * 39 and all(found)


def test_operands_on_several_devices_are_refused(adder: Adder) -> None:
    x = torch.rand(3)
    with pytest.raises(UsageError, match="cpu, meta"):
        adder.call(x, x.to("meta"))


class Watched(Step):
    """A step that says which buffers live while it runs."""

    def __init__(self, uses: Sequence[Slot], living: list[list[bool]]) -> None:
        self.uses, self.living = frozenset(slot.index for slot in uses), living

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        self.living.append([x is not None for x in tensors[1:]])


def test_a_buffer_lives_from_its_first_launch_to_its_last_one() -> None:
    living: list[list[bool]] = []

    def function(plan: Plan, x: Slot) -> tuple[Slot, ...]:
        early, late, result = plan.like(x), plan.empty((5,), torch.int64), plan.full((2,), -1, torch.int32)
        for uses in ((x, early), (early, result), (late,), (late, x)):
            plan.steps.append(Watched(uses, living))
        return result, x

    x = torch.rand(3)
    result, same = Planned(function)(x)
    assert same is x and result.tolist() == [-1, -1]
    assert living == [[True, False, False], [True, False, True], [False, True, True], [False, True, True]]


class TestExpectedCalls:
    @staticmethod
    def expecting(follower: Planned, x: Tensor) -> None:
        """Run a planned function that expects the follower to be called with its result."""

        def plan_it(plan: Plan, given: Slot) -> tuple[Any, ...]:
            to = plan.like(given)
            plan.steps.append(Note(given, to))
            plan.expect(follower, to)
            return (to,)

        (found,) = Planned(plan_it)(x)
        assert torch.equal(found, x)

    def test_a_call_as_expected_needs_no_plan_of_its_own(self, adder: Adder) -> None:
        x = torch.rand(4)
        self.expecting(adder.call, x)
        assert adder.planned == 1 and not adder.streams
        assert torch.equal(adder.call(x)[0], x)
        assert adder.planned == 1

    def test_a_failure_is_left_to_the_call(self) -> None:
        def refuse(plan: Plan, given: Slot) -> tuple[Any, ...]:
            raise UsageError("refused")

        follower = Planned(refuse)
        self.expecting(follower, torch.rand(4))
        with pytest.raises(UsageError, match="refused"):
            follower(torch.rand(4))


def test_a_plan_that_launches_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Planned(lambda plan, x: (plan.like(x),))(torch.rand(2))


def test_a_slot_says_what_its_tensor_does() -> None:
    x = torch.rand(7, dtype=torch.complex64)[1:].view(2, 3).T
    slot = Slot.of(x)
    assert slot.key == plans.key_of(x, x.data_ptr())
    assert (slot.shape, slot.strides, slot.aligned) == (x.shape, x.stride(), False)
    assert (slot.dim(), slot.numel(), slot.element_size(), slot.stride(1)) == (2, 6, 8, 3)
    assert slot.is_complex() and slot.bits().dtype == torch.int64
    assert slot.data_ptr() % 16 != 0 and Slot.of(torch.rand(2)).data_ptr() % 16 == 0
    assert Slot.of(torch.rand(2)).bits().dtype == torch.float32


def test_packing_copies_only_what_is_not() -> None:
    x = torch.rand(2, 3, dtype=torch.complex64)
    assert packed(x) is x
    assert packed(x.T).is_contiguous() and torch.equal(packed(x.T), x.T)
    assert not packed(x.conj()).is_conj() and torch.equal(packed(x.conj()), x.conj())


class FakeDevice:
    """Stands in for CUDA devices: which one is current, and their streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.entered = 0, []
        monkeypatch.setattr(plans, "current_device", lambda: self.current)
        monkeypatch.setattr(plans, "current_stream", lambda device: 100 + self.current)
        monkeypatch.setattr(torch.cuda, "device", self.guard)

    @contextlib.contextmanager
    def guard(self, device: torch.device) -> Iterator[None]:
        self.entered.append(device.index)
        before, self.current = self.current, device.index
        yield
        self.current = before


@pytest.mark.parametrize(("index", "entered"), [(0, []), (1, [1])])
def test_it_runs_on_the_device_s_stream_and_guards_another_device(
    monkeypatch: pytest.MonkeyPatch, index: int, entered: list[int]
) -> None:
    """The plan of a CUDA device, with buffers on the CPU."""
    device = FakeDevice(monkeypatch)
    streams: list[int] = []
    x = torch.rand(3)
    plan = Plan([Slot.of(x)])
    to = plan.like(Slot.of(x))
    operand = Slot(x.shape, x.stride(), x.dtype, x.device, index=0)
    plan.steps.append(Note(operand, to, streams=streams))
    plan.finish((to,))
    plan.device = torch.device("cuda", index)
    (found,) = plan.run([x], [x.data_ptr()])
    assert torch.equal(found, x)
    assert (streams, device.entered, device.current) == ([100 + index], entered, 0)
