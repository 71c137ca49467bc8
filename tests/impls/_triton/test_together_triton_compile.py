"""All launches of a plan in one call hand the driver what Triton's own launcher would, kernel by kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.without_gpu.compiled_cases import CASES, TritonCase
from support.without_gpu.driver import STREAM, RecordingDriver, plain, recording_driver
from torch import Tensor

pytest.importorskip("triton")

import triton
import triton.language as tl
from ssmperf.impls._triton import plan as plans
from ssmperf.impls._triton import together
from ssmperf.impls._triton.launch import Blocks, Launch
from ssmperf.impls._triton.plan import Plan, Slot, planned
from ssmperf.impls._triton.together import APART, Buffer, Together, arranged
from ssmperf.impls.delta_rule._cuda.program import KERNELS
from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

# How Triton's launcher passes a parameter, by Triton's name of its type.
TYPES: dict[str, Any] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
MAIN = [case for case in CASES if isinstance(case, TritonCase) and case.main]


@triton.jit(do_not_specialize=["count"])
def scaled(to, x, group, factor, count, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    row = tl.load(x + at, mask=at < n, other=0.0) * factor + tl.load(group[0] + at * group[1] + count)
    tl.store(to + at, row, mask=at < n)


@triton.jit
def copy_block(to, source, R: tl.constexpr, C: tl.constexpr):
    tl.store(to + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], source.load([0, 0]))


@planned
def twice(plan: Plan, x: Slot, y: Slot, *, factor: float = 0.1, count: int = -3, grid: int = 3) -> Any:
    """x scaled, through scratch memory, and the same without."""
    middle, result = plan.like(x), plan.like(x)
    for source, to in ((x, middle), (middle, result)):
        plan.launch(scaled, (grid, 2), to, source, (y, 1 << 40), factor, count, 31, SIZE=32, num_warps=2)
    return result, 7, x


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    with recording_driver() as made:
        yield made


def by_triton(launch: Any, addresses: dict[int, int]) -> tuple[Any, ...]:
    """What Triton's launcher would pass to the driver in a launch on slots at some addresses."""
    handed: list[tuple[Any, ...]] = []
    pointers = [addresses.get(index) for index in range(max(addresses) + 1)]
    launch.load()
    with mock.patch.object(launch, "run", lambda *given: handed.append(given)):
        launch([None] * len(pointers), pointers, STREAM)
    *grid, stream, function, packed = handed[0][:6]
    warps, _, shared = packed
    kinds = plain(launch.compiled.src.signature[name] for name in launch.kernel.arg_names)
    return function, tuple(grid), (32 * warps, 1, 1), shared, stream, tuple(kinds), handed[0][9:]


def flat(kinds: Any, values: Any) -> Iterator[Any]:
    """The values of parameters that are no constants of the kernel."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from flat(kind, value)
        elif kind != "constexpr":
            yield value


@pytest.mark.slow(
    but=("* decode", "scan/triton * chain", "scan/triton * time_last", "ratio_scan/triton bf16 spans")
)
@pytest.mark.parametrize("case", MAIN, ids=lambda case: f"{case.backend} {case.name}")
def test_the_driver_gets_what_triton_would_pass(case: TritonCase, driver: RecordingDriver) -> None:
    calls: list[tuple[Together, list[int | None], int]] = []
    real = Together.__call__

    def noted(self: Together, stream: int, addresses: list[int | None]) -> None:
        before = len(driver.launches)
        real(self, stream, addresses)
        calls.append((self, addresses, before))

    with mock.patch.object(Together, "__call__", noted), case.calling() as call:
        call()
    reasons = [plan.one_by_one for each in plans._planned for plan in each.plans.values()]
    if "streamed" in case.name:
        assert all("tensordesc" in each for each in reasons) and not calls
    else:
        assert set(reasons) == {""}
        assert len({id(gathered) for gathered, *_ in calls}) == len(reasons)  # a plan may be followed again
    for gathered, addresses, first in calls:
        slots = {at: (addresses[to] or 0) + offset for at, (to, offset) in gathered.places.items()}
        for number, launch in enumerate(gathered.steps):
            found = driver.launches[first + number]
            function, grid, block, shared, stream, kinds, arguments = by_triton(launch, slots)
            assert (found.function, found.grid, found.block) == (function, grid, block)
            assert (found.shared, found.stream) == (shared, stream)
            signature = [launch.compiled.src.signature[name] for name in launch.kernel.arg_names]
            values = list(flat(signature, arguments))
            assert len(found.words) == len(values) + 2
            for kind, value, word in zip(kinds, values, found.words[:-2], strict=True):
                want = bytes(TYPES.get(kind, ctypes.c_uint64)(value))
                assert word[: len(want)] == want, (launch.kernel.__name__, kind, value)
            assert found.words[-2:] == (bytes(8), bytes(8))  # no scratch memory


@pytest.mark.parametrize("segments", [False, True])
def test_the_driver_gets_what_a_launch_of_cuda_from_python_passes(
    segments: bool, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssmperf.impls.delta_rule._cuda import function

    def loaded(kernel: Any, device: int) -> Any:
        handle = 1 + KERNELS.index(kernel)
        driver.lengths[handle] = next(
            len(step.parameters()) for step in function_steps() if step.kernel == kernel
        )
        return SimpleNamespace(handle=handle)

    def function_steps() -> Iterator[Any]:
        for each in (function.forward_pass, function.backward_pass):
            for plan in each.plans.values():
                yield from plan.steps

    monkeypatch.setattr(function, "loaded", loaded)
    monkeypatch.setattr(function, "processors", lambda device: 132)
    calls: list[tuple[Together, list[int | None], int]] = []
    real = Together.__call__

    def noted(self: Together, stream: int, addresses: list[int | None]) -> None:
        calls.append((self, addresses, len(driver.launches)))
        real(self, stream, addresses)

    B, T, H, K = 1, 4096 if segments else 130, 2, 64
    q, k, v = (torch.rand(B, T, H, K).bfloat16().requires_grad_() for _ in range(3))
    beta, log_a = torch.rand(B, T, H), -torch.rand(B, T, H)
    with monkeypatch.context() as patch:
        patch.setattr(Together, "__call__", noted)
        o, final = function.DeltaRule.apply(q, k, v, beta, log_a, None, None)
        torch.autograd.grad((o, final), (q, k, v), (torch.ones_like(o), torch.ones_like(final)))
    assert len(calls) == 2 and len(driver.launches) == (9 if segments else 5)
    for gathered, addresses, first in calls:
        slots = {at: (addresses[to] or 0) + offset for at, (to, offset) in gathered.places.items()}
        pointers = [slots.get(at) for at in range(max(slots) + 1)]
        for number, step in enumerate(gathered.steps):
            found = driver.launches[first + number]
            kernel = step.kernel
            assert (found.function, found.shared) == (1 + KERNELS.index(kernel), kernel.shared_bytes)
            assert (found.grid, found.block) == ((step.grid, 1, 1), (kernel.threads, 1, 1))
            assert [int.from_bytes(each, "little") for each in found.words] == step.given(pointers)


def test_numbers_of_every_kind_and_results(driver: RecordingDriver) -> None:
    x, y = torch.rand(32), torch.rand(99)
    result, seven, same = twice(x, y)
    (plan,) = twice.plans.values()
    assert plan.one_by_one == "" and seven == 7 and same is x
    first, second = driver.launches
    assert (first.grid, first.block, first.stream) == ((3, 2, 1), (64, 1, 1), STREAM)
    addresses = [int.from_bytes(word, "little") for word in first.words]
    assert addresses[1:3] == [x.data_ptr(), y.data_ptr()] and addresses[3] == 1 << 40
    assert first.words[4][:4] == bytes(ctypes.c_float(0.1))
    assert first.words[5][:4] == bytes(ctypes.c_int32(-3))
    assert first.words[0] == second.words[1]  # the scratch buffer
    assert int.from_bytes(second.words[0], "little") == result.data_ptr()


def test_a_further_call_makes_no_launch_in_python(driver: RecordingDriver) -> None:
    twice(torch.rand(32), torch.rand(99))
    x = torch.rand(32)
    with mock.patch.object(Launch, "__call__", side_effect=AssertionError("launched in Python")):
        twice(x, torch.rand(99))
    assert len(driver.launches) == 4
    assert int.from_bytes(driver.launches[2].words[1], "little") == x.data_ptr()


def test_a_grid_of_no_programs_is_not_launched(driver: RecordingDriver) -> None:
    twice(torch.rand(32), torch.rand(99), grid=0)
    assert driver.launches == []


def test_a_failed_launch_raises(driver: RecordingDriver) -> None:
    driver.code = 1
    with pytest.raises(RuntimeError, match=r"^CUDA cannot launch it: invalid argument$"):
        twice(torch.rand(32), torch.rand(99))
    assert len(driver.launches) == 1  # none after it


def test_a_thread_without_a_context_gets_the_device_s(driver: RecordingDriver) -> None:
    driver.context = 0
    for _ in range(2):
        twice(torch.rand(32), torch.rand(99))
    assert driver.bound == [103]  # device 3, once


def test_hooks_see_every_launch(driver: RecordingDriver) -> None:
    """While one is set, and no longer."""
    x, y = torch.rand(32), torch.rand(99)
    twice(x, y)
    made: list[Any] = []
    for chain in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook):

        def hook(metadata: Any) -> None: ...

        chain.add(hook)
        try:
            with mock.patch.object(Launch, "__call__", lambda *given: made.append(given)):
                twice(x, y)
        finally:
            chain.remove(hook)
    assert len(made) == 4 and len(driver.launches) == 2
    twice(x, y)
    assert len(driver.launches) == 4


def test_threads_keep_their_addresses_apart(driver: RecordingDriver) -> None:
    """Scratch memory and parameters are a call's own, though all threads run one plan."""
    y = torch.rand(99)
    twice(torch.rand(32), y)
    driver.launches.clear()
    found: dict[int, list[tuple[int, int]]] = {}

    def work() -> None:
        mine = found.setdefault(threading.get_ident(), [])
        for _ in range(50):
            x = torch.rand(32)
            result, *_ = twice(x, y)
            mine.append((x.data_ptr(), result.data_ptr()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for thread, pairs in found.items():
        words = [each.words for each in driver.launches if each.thread == thread]
        ends = [(first[1], second[0]) for first, second in zip(words[::2], words[1::2], strict=True)]
        assert ends == [(x.to_bytes(8, "little"), to.to_bytes(8, "little")) for x, to in pairs]
        assert all(first[0] == second[1] for first, second in zip(words[::2], words[1::2], strict=True))
    assert len(driver.launches) == 400


def reason(function: Any) -> str:
    (plan,) = function.plans.values()
    return plan.one_by_one


def test_without_a_gpu_launches_go_one_by_one(driver: RecordingDriver, monkeypatch: Any) -> None:
    monkeypatch.setattr(together, "on_gpu", lambda device: device.type == "cuda")
    twice(torch.rand(32), torch.rand(99))
    assert reason(twice) and driver.launches == []


def test_where_a_tool_guards_buffers_they_stay_apart(driver: RecordingDriver, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    twice(torch.rand(32), torch.rand(99))
    assert "buffers" in reason(twice) and driver.launches == []


def test_blocks_of_tensors_go_one_by_one(driver: RecordingDriver) -> None:
    @planned
    def copied(plan: Plan, x: Slot) -> tuple[Slot]:
        to = plan.empty((16, 16), x.dtype)
        plan.launch(copy_block, (1,), to, Blocks(x, (64, 32), (16, 16)), R=16, C=16)
        return (to,)

    copied(torch.rand(2, 32, 32))
    assert "tensordesc" in reason(copied) and driver.launches == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_ctas", 2),
        ("launch_cooperative_grid", True),
        ("launch_pdl", True),
        ("global_scratch_size", 64),
        ("profile_scratch_size", 64),
    ],
)
def test_kernels_that_need_more_than_a_launch_go_one_by_one(
    driver: RecordingDriver, name: str, value: Any
) -> None:
    twice(torch.rand(32), torch.rand(99))
    (plan,) = twice.plans.values()
    launch = plan.launches[0]
    assert launch.obstacle() == ""
    compiled = launch.compiled
    launch.compiled = SimpleNamespace(
        metadata=compiled.metadata._replace(**{name: value}), src=compiled.src, asm=compiled.asm
    )
    assert "scaled needs" in launch.obstacle()


def test_a_kernel_with_other_parameters_than_its_signature_goes_one_by_one(driver: RecordingDriver) -> None:
    twice(torch.rand(32), torch.rand(99))
    (plan,) = twice.plans.values()
    launch = plan.launches[0]
    ptx = launch.compiled.asm["ptx"]
    for changed in (ptx.replace(".param .u32", ".param .u64", 1), ptx.replace(".param", ".other", 1)):
        with mock.patch.dict(launch.compiled.asm, {"ptx": changed}):
            assert "other parameters" in launch.obstacle()


def test_memory_that_is_needed_at_different_times_is_not_added_up(driver: RecordingDriver) -> None:
    """Scratch buffers share a block; a late result of their size would come on top, and is allocated late."""

    @planned
    def chained(plan: Plan, x: Slot, *, scratch: int) -> tuple[Slot]:
        sources = [x, *(plan.like(x) for _ in range(scratch)), plan.like(x)]
        for source, to in pairwise(sources):
            plan.launch(scaled, (1,), to, source, (source, 1), 0.5, 0, 31, SIZE=32)
        return (sources[-1],)

    x = torch.rand(together.MOST_MORE // 4 + 1000)
    for scratch, want in ((1, ""), (4, "less memory")):
        chained.plans.clear()
        chained(x, scratch=scratch)
        assert want in reason(chained) and bool(reason(chained)) == bool(want)


BUFFERS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 6), st.integers(0, 3)), max_size=12)


@given(BUFFERS)
def test_buffers_in_one_block(drawn: list[tuple[int, int, int]]) -> None:
    """Those that are needed at once have bytes of their own, and the block is never larger than their sum."""
    buffers = {at: Buffer(size, first, first + more) for at, (size, first, more) in enumerate(drawn)}
    found, block = arranged(buffers)
    assert found.keys() == buffers.keys()
    for at, buffer in buffers.items():
        assert found[at] % APART == 0 and found[at] + buffer.size <= block
        for other, each in buffers.items():
            if other < at and buffer.meets(each):
                assert found[at] >= found[other] + each.size or found[other] >= found[at] + buffer.size
    assert block <= sum(-(-each.size // APART) * APART for each in buffers.values())


def test_one_after_another_they_share_bytes() -> None:
    found, block = arranged({at: Buffer(1000, 2 * at, 2 * at + 1) for at in range(5)})
    assert set(found.values()) == {0} and block == 1000


def test_results_keep_their_memory(driver: RecordingDriver) -> None:
    """A result is a tensor of its own, not a part of the scratch block."""
    result: Tensor = twice(torch.rand(32), torch.rand(99))[0]
    assert result.untyped_storage().nbytes() == 32 * 4 and result.shape == (32,)
