"""Launch plans: decide once per kind of call on allocations and launches, and keep them.

    @planned
    def forward(plan, log_a, b, *, chained):           # runs once per kind of call
        h = plan.empty(b.shape, b.dtype)
        plan.launch(kernel, (programs,), log_a, b, h, b.shape[1], num_warps=4)
        return (h,)

    (h,) = forward(log_a, b, chained=True)             # allocates, takes the stream, launches

The planning function sees operands as `Slot`s: shape, strides, dtype, alignment and device, but no memory.
So it may decide by these, by its keyword arguments and by configurations, and by nothing else: they are the
key under which its plan is kept. Keyword arguments must be hashable.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssmperf.authoring import Place, UsageError, consulting, in_force, note_again

from .slots import ALIGNMENT, Key, Pick, Step, key_of, picker
from .slots import Slot as Slot

if TYPE_CHECKING:
    from .launch import Launch
    from .together import Together

MOST_PLANS = 512  # of a planned function; the oldest go first


class Plan:
    """The allocations and launches of one kind of call. A buffer lives from its first launch to its last.

    doubtful: places of operands that may be negated, see `Slot.may_be_negated`.
    one_by_one: why launches are made one after another, by Triton's own launcher; nothing where a call makes
    all of them together (see `together`), unless a hook wants to see each of them.
    """

    def __init__(self, operands: Sequence[Slot | None]) -> None:
        given = [slot for slot in operands if slot is not None]
        devices = {slot.device for slot in given}
        if len(devices) != 1:
            raise UsageError(f"operands on several devices: {', '.join(sorted(map(str, devices)))}")
        self.device: torch.device = devices.pop()
        self.doubtful = [at for at, slot in enumerate(operands) if slot is not None and slot.may_be_negated]
        self.operands = len(operands)
        self.consulted: dict[Place, Any] = {}
        self.makers: list[Callable[[], Tensor]] = []
        self.steps: list[Step] = []
        self.launches: list[Launch] = []
        self.compiling = ExitStack()
        self.expected: list[tuple[Planned, tuple[Slot | None, ...], dict[str, Any]]] = []
        self.schedule: list[tuple[Step, list[tuple[int, Callable[[], Tensor]]], list[int]]] = []
        self.pick: Pick = tuple
        self.pick_together: Pick = tuple
        self.plain: dict[int, Slot] = {}
        self.together: Together | None = None
        self.one_by_one = "it is not finished"

    def empty(self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Slot:
        """Room for a tensor, contiguous unless strides are given."""
        size = torch.Size(shape)
        dense = tuple(math.prod(size[axis + 1 :]) for axis in range(len(size)))
        steps = dense if strides is None else tuple(strides)
        make = partial(torch.empty_strided, size, steps, dtype=dtype, device=self.device)
        slot = self._buffer(Slot(size, steps, dtype, self.device), make)
        self.plain[slot.index] = slot
        return slot

    def full(self, shape: Sequence[int], value: int, dtype: torch.dtype) -> Slot:
        """Room for a contiguous tensor that begins as `value` everywhere."""
        slot = self.empty(shape, dtype)
        self._replace(slot, partial(torch.full, slot.shape, value, dtype=dtype, device=self.device))
        return slot

    def constant(self, x: Tensor) -> Slot:
        """A contiguous tensor that the plan keeps on its device, for every call to read."""
        slot, kept = self.empty(x.shape, x.dtype), x.to(self.device)
        self._replace(slot, lambda: kept)
        return slot

    def like(self, slot: Slot, dtype: torch.dtype | None = None) -> Slot:
        """Room for a contiguous tensor of the same shape."""
        return self.empty(slot.shape, dtype or slot.dtype)

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Launch a kernel of Triton: see `launch.Launch`. All kernels of a plan are compiled side by side."""
        from .launch import Launch, compiling_together

        if not self.launches:
            self.compiling.enter_context(compiling_together(self._beside()))
        self.launches.append(Launch(kernel, grid, arguments, constants))
        self.steps.append(self.launches[-1])

    def _beside(self) -> Callable[[], object] | None:
        """Give the launcher (in C), which the first plan on a GPU needs besides its kernels."""
        from .together import launcher, on_gpu

        return launcher if on_gpu(self.device) else None

    def expect(self, planned: Planned, *slots: Slot | None, **flags: Any) -> None:
        """Plan another call that is likely to follow, such as a backward pass, beside this plan.

        Its kernels are compiled together with those of this plan. If that fails, nothing happens: the call
        meets the failure again and reports it.

        slots: its operands, also buffers of this plan.
        """
        self.expected.append((planned, slots, flags))

    def _buffer(self, slot: Slot, make: Callable[[], Tensor]) -> Slot:
        self.makers.append(make)
        return replace(slot, index=self.operands + len(self.makers) - 1)

    def _replace(self, slot: Slot, make: Callable[[], Tensor]) -> None:
        """Make the last slot's tensor in another way."""
        self.makers[-1] = make
        del self.plain[slot.index]

    def finish(self, results: Sequence[Any]) -> None:
        """Take the planning function's results, and schedule the buffers.

        Raises:
            ValueError: it launched nothing.
        """
        if not self.steps:
            raise ValueError("a plan launches at least one kernel")
        for planned, slots, flags in self.expected:
            with suppress(Exception):  # whatever it is, the call that is expected meets it again
                planned.prepare(*slots, **flags)
        self.expected.clear()
        self.compiling.close()
        for launch in self.launches:
            launch.settle()
        kept = {each.index for each in results if isinstance(each, Slot)}
        first = {
            index: place for place in reversed(range(len(self.steps))) for index in self.steps[place].uses
        }
        last = {index: place for place in range(len(self.steps)) for index in self.steps[place].uses}
        buffers = {self.operands + number: make for number, make in enumerate(self.makers)}
        for place, step in enumerate(self.steps):
            fresh = [(at, make) for at, make in buffers.items() if first.get(at, 0) == place]
            spent = [at for at in buffers if last.get(at, 0) == place and at not in kept]
            self.schedule.append((step, fresh, spent))

        self.room: list[Any] = [None] * len(self.makers)
        self.constants = [each for each in results if not isinstance(each, Slot)]
        self.pick = self._picker(results, len(self.makers), {at: at for at in range(self._slots)})
        self.one_by_one = next(filter(None, (step.obstacle() for step in self.steps)), "")
        if not self.one_by_one:
            from .together import gathered

            lives = {at: (first.get(at, 0), last.get(at, 0)) for at in buffers}
            self.together, self.one_by_one = gathered(self, lives, kept)
        if self.together is not None:
            self.pick_together = self._picker(results, len(self.together.makers), self.together.at)

    @property
    def _slots(self) -> int:
        return self.operands + len(self.makers)

    def _picker(self, results: Sequence[Any], made: int, at: Mapping[int, int]) -> Pick:
        """Pick the results from the operands, so many tensors that were made, and the constants."""
        constants = iter(range(self.operands + made, self.operands + made + len(results)))
        return picker([at[each.index] if isinstance(each, Slot) else next(constants) for each in results])

    def run(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None]) -> tuple[Any, ...]:
        """Allocate and launch on the current stream of the device. pointers: addresses of the tensors."""
        if self.device.type == "cuda" and current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._run(tensors, pointers)
        return self._run(tensors, pointers)

    def _run(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None]) -> tuple[Any, ...]:
        together = self.together
        if together is not None and not together.hooked():
            own = [make() for make in together.makers]
            together(current_stream(self.device), [*pointers, *[x.data_ptr() for x in own]])
            return self.pick_together([*tensors, *own, *self.constants])
        pool = [*tensors, *self.room]
        places = [*pointers, *self.room]
        stream = current_stream(self.device)
        for step, fresh, spent in self.schedule:
            for index, make in fresh:
                made = pool[index] = make()
                places[index] = made.data_ptr()
            step(pool, places, stream)
            for index in spent:
                pool[index] = None
        return self.pick(pool + self.constants)


def current_device() -> int:
    return torch._C._cuda_getDevice()


def current_stream(device: torch.device) -> int:
    """The address of the current stream of a CUDA device; 0 elsewhere."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


class Planned:
    """A function of tensors whose plans are kept: see `planned`."""

    def __init__(self, function: Callable[..., Sequence[Any]]) -> None:
        self.function = function
        self.plans: dict[Key, Plan] = {}
        self.lock = threading.Lock()
        _planned.append(self)

    def __call__(self, *tensors: Tensor | None, **flags: Any) -> tuple[Any, ...]:
        """Run the plan of such a call. Results are tensors where the planning function gave slots."""
        pointers = [None if x is None else x.data_ptr() for x in tensors]
        key = (in_force(), tuple(flags.items()), *map(key_of, tensors, pointers))
        plan = self.plans.get(key)
        if plan is None:
            plan = self._plan(key, [None if x is None else Slot.of(x) for x in tensors], flags)
        else:
            note_again(plan.consulted)
        if plan.doubtful and any(x is not None and x.is_neg() for x in tensors):
            return self(*[None if x is None else x.resolve_neg() for x in tensors], **flags)
        return plan.run(tensors, pointers)

    def prepare(self, *slots: Slot | None, **flags: Any) -> None:
        """Make the plan of such a call, which compiles its kernels, and run nothing."""
        keys = [None if slot is None else slot.key for slot in slots]
        key = (in_force(), tuple(flags.items()), *keys)
        if key not in self.plans:
            self._plan(key, slots, flags)

    def _plan(self, key: Key, operands: Sequence[Slot | None], flags: dict[str, Any]) -> Plan:
        plan = Plan(operands)
        slots = [None if slot is None else replace(slot, index=at) for at, slot in enumerate(operands)]
        device = plan.device.index if plan.device.type == "cuda" else -1
        with torch.cuda.device(device), plan.compiling, consulting() as plan.consulted:
            results = self.function(plan, *slots, **flags)
            plan.finish(results)
        with self.lock:
            while len(self.plans) >= MOST_PLANS:
                del self.plans[next(iter(self.plans))]
            self.plans[key] = plan
        return plan


def packed(x: Tensor) -> Tensor:
    """x contiguous and without a pending conjugation, copied only if it is not."""
    if x.is_conj():
        x = x.resolve_conj()
    return x if x.is_contiguous() else x.contiguous()


def aligned(x: Tensor) -> Tensor:
    """x from a multiple of 16 bytes on, copied only if it is not."""
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


_planned: list[Planned] = []


def planned(function: Callable[..., Sequence[Any]]) -> Planned:
    """Make a planning function `(plan, *slots, **flags) -> results` a function of tensors."""
    return Planned(function)


def forget() -> None:
    """Drop all plans, such as those that were made under a test's patches."""
    for each in _planned:
        with each.lock:
            each.plans.clear()
