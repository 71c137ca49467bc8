"""A planned launch hands the driver the same arguments as Triton's own launch of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from support.without_gpu.compiled import Device
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl
from ssmperf.impls._triton import plan as plans
from ssmperf.impls._triton.launch import Blocks, Launch
from ssmperf.impls._triton.plan import Plan, Slot, planned
from triton import knobs
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

STREAM = 77


class Pair(NamedTuple):
    x: Any
    step: Any


@triton.jit(do_not_specialize=["count"])
def add(to, x, other, group, count, n, one, SIZE: tl.constexpr, SIGN: tl.constexpr = 1):
    at = tl.arange(0, SIZE) * one
    total = tl.load(x + at, mask=at < n, other=0.0) + SIGN * tl.load(group.x + at * group.step + count)
    if other is not None:
        total += tl.load(other + at)
    tl.store(to + at, total, mask=at < n)


@triton.jit
def copy_block(to, source, R: tl.constexpr, C: tl.constexpr):
    tl.store(to + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], source.load([0, 0]))


@pytest.fixture
def handed() -> Iterator[list[tuple[Any, ...]]]:
    """Record the arguments that compiled kernels hand to the driver; they are loaded as function 5."""
    calls: list[tuple[Any, ...]] = []

    def run(kernel: CompiledKernel) -> Any:
        kernel._init_handles()
        return lambda *given: calls.append(given)

    with (
        mock.patch.object(driver, "_active", Device(90)),
        mock.patch.object(Device, "get_current_stream", lambda self, index: STREAM),
        mock.patch.object(plans, "current_stream", lambda device: STREAM),
        mock.patch.object(CompiledKernel, "run", property(run)),
        mock.patch.object(CompiledKernel, "_init_handles", lambda self: setattr(self, "function", 5)),
    ):
        yield calls


def plain(argument: Any) -> Any:
    """A handed argument with addresses for tensors; a hook that does nothing as None."""
    if isinstance(argument, Tensor):
        return argument.data_ptr()
    if isinstance(argument, TensorDescriptor):
        fields = (argument.base, argument.shape, argument.strides, argument.block_shape, argument.padding)
        return tuple(map(plain, fields))
    if isinstance(argument, (tuple, list, torch.Size)):
        return tuple(map(plain, argument))
    return None if getattr(argument, "calls", None) == [] else argument


# Place of `launch_metadata`, which no launch without hooks needs.
METADATA = 6


def comparable(call: tuple[Any, ...]) -> list[Any]:
    return [plain(each) for place, each in enumerate(call) if place != METADATA]


@planned
def added(plan: Plan, x: Slot, other: Slot | None, y: Slot, *, step: int, n: int) -> tuple[Slot]:
    to = plan.like(x)
    plan.launch(add, (3, 2), to, x, other, Pair(y, step), 16, n, one=1, SIZE=32, num_warps=2)
    return (to,)


def both(handed: list[tuple[Any, ...]], x: Tensor, other: Tensor | None, y: Tensor, **sizes: int) -> None:
    """Launch as planned and by Triton itself, and compare."""
    (to,) = added(x, other, y, **sizes)
    add[(3, 2)](
        to, x, other, Pair(y, sizes["step"]), 16, sizes["n"], one=1, SIZE=32, num_warps=2
    )  # fmt: skip
    ours, theirs = handed[-2:]
    assert comparable(ours) == comparable(theirs)
    assert comparable(ours)[:3] == [3, 2, 1] and ours[3] == STREAM
    assert len(ours) == 9 + len(add.arg_names)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("with_other", [True, False])
@pytest.mark.parametrize("n", [1, 16, 31, 2**31 + 16])
def test_the_same_is_handed_over(
    handed: list[tuple[Any, ...]], offset: int, with_other: bool, n: int
) -> None:
    """Twice, so that the second is a kept plan; memory is another one each time."""
    for _ in range(2):
        x, y = torch.rand(40)[offset : offset + 32], torch.rand(200)
        both(handed, x, torch.rand(32) if with_other else None, y, step=2, n=n)
    assert len(added.plans) == 1


def test_no_jit_binding_at_a_further_call(handed: list[tuple[Any, ...]]) -> None:
    x = torch.rand(32)
    added(x, None, x, step=1, n=32)
    with mock.patch.object(JITFunction, "run", side_effect=AssertionError("bound again")):
        added(torch.rand(32), None, torch.rand(32), step=1, n=32)
    assert len(handed) == 2


def test_descriptors_of_blocks(handed: list[tuple[Any, ...]]) -> None:
    @planned
    def copied(plan: Plan, x: Slot) -> tuple[Slot]:
        to = plan.empty((16, 16), x.dtype)
        plan.launch(copy_block, (1,), to, Blocks(x, (64, 32), (16, 16)), R=16, C=16)
        return (to,)

    for _ in range(2):
        x = torch.rand(2, 32, 32)
        (to,) = copied(x)
        copy_block[(1,)](to, TensorDescriptor(x, [64, 32], [32, 1], [16, 16]), R=16, C=16)
        ours, theirs = handed[-2:]
        assert comparable(ours) == comparable(theirs)


def test_hooks_see_every_launch(handed: list[tuple[Any, ...]]) -> None:
    """The driver calls them; it gets the chain, and what describes the launch."""
    chain = knobs.runtime.launch_enter_hook
    x = torch.rand(32)
    added(x, None, x, step=1, n=32)
    assert handed[-1][6:9] == (None, None, None)

    def hook(metadata: Any) -> None: ...

    chain.add(hook)
    try:
        added(x, None, x, step=1, n=32)
    finally:
        chain.remove(hook)
    metadata, enter, leave = handed[-1][6:9]
    assert (enter, leave) == (chain, None)
    described = metadata.get()
    assert (described["name"], described["stream"], described["function"]) == ("add", STREAM, 5)


def test_a_kernel_that_a_hook_keeps_from_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JITFunction, "run", lambda *arguments, **constants: None)
    with pytest.raises(RuntimeError, match="a hook kept Triton from compiling add"):
        Launch(add, (1,), (), {})


class Loads:
    """A device that takes notes of the kernels that it loads, and says what they need."""

    def __init__(self, shared: int = 1 << 16, threads: int = 1024) -> None:
        self.shared, self.threads, self.loaded = shared, threads, list[str]()

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, ...]:
        assert kernel[:4] == b"\x7fELF" and device == 90
        self.loaded.append(name)
        return 3, 40 + len(self.loaded), 24, 8, self.threads


@pytest.fixture
def compiled() -> Iterator[Launch]:
    """A launch whose kernel is compiled and loaded nowhere."""
    with mock.patch.object(driver, "_active", Device(90)):
        slot = Slot(torch.Size((32,)), (1,), torch.float32, torch.device("cpu"), index=0)
        launch = Launch(add, (1,), (slot, slot, None, Pair(slot, 1), 0, 32), {"one": 1, "SIZE": 32})
        launch.settle()
        kernel = launch.compiled
        kept = kernel.module, kernel.function, kernel._run
        kernel.module = kernel.function = kernel._run = None
        yield launch
        kernel.module, kernel.function, kernel._run = kept


def test_a_kernel_that_is_launched_with_others_is_loaded_once_and_without_a_launcher(
    compiled: Launch,
) -> None:
    """What it needs is known, as reports say what spills."""
    device = Loads()
    with (
        mock.patch.object(Device, "utils", device, create=True),
        mock.patch.object(Device, "launcher_cls", side_effect=AssertionError("a launcher"), create=True),
    ):
        assert (compiled.load_alone(), compiled.load_alone()) == (41, 41)
    assert device.loaded == ["add"]
    assert (compiled.compiled.n_regs, compiled.compiled.n_spills) == (24, 8)


@pytest.mark.parametrize(
    ("device", "lacks"), [(Loads(shared=-1), "shared memory"), (Loads(threads=64), "threads")]
)
def test_a_kernel_that_needs_too_much_is_not_loaded(compiled: Launch, device: Loads, lacks: str) -> None:
    with mock.patch.object(Device, "utils", device, create=True), pytest.raises(OutOfResources, match=lacks):
        compiled.load_alone()
    assert compiled.compiled.function is None


def test_a_hook_sees_what_is_loaded(compiled: Launch) -> None:
    """By Triton's own way, which calls it."""
    seen: list[Any] = []

    def load(kernel: Any) -> None:
        seen.append(knobs.runtime.kernel_load_start_hook)
        kernel.function, kernel._run = 5, lambda *given: None

    def hook(*given: Any) -> None: ...

    knobs.runtime.kernel_load_start_hook.add(hook)
    try:
        with mock.patch.object(CompiledKernel, "_init_handles", load):
            assert compiled.load_alone() == 5
    finally:
        knobs.runtime.kernel_load_start_hook.remove(hook)
    assert len(seen) == 1
