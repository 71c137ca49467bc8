"""Planned launches in Triton's interpreter, or on a GPU: arguments of every kind reach the kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from ssmperf.suitekit import registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := registry.backend("scan", "triton").missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from ssmperf.impls._triton.host import loop_bound, strides  # noqa: E402
from ssmperf.impls._triton.plan import Plan, Slot, planned  # noqa: E402


class Rows(NamedTuple):
    x: Any
    by_row: Any
    by_column: Any


@triton.jit
def sums(to, bits, rows, offset, count, C: tl.constexpr, TWICE: tl.constexpr):
    """Sums over rows, plus an offset, if there is one; and a copy of a complex64 as bits."""
    column = tl.arange(0, C)
    total = tl.zeros([C], tl.float32)
    for row in range(count):
        total += tl.load(rows.x + row * rows.by_row + column * rows.by_column)
    if offset is not None:
        total += tl.load(offset + column)
    if TWICE:
        total *= 2
    tl.store(to + column, total)
    tl.store(bits, tl.load(bits + 1))


@planned
def summed(plan: Plan, x: Slot, offset: Slot | None, z: Slot, *, twice: bool) -> tuple[Slot]:
    R, C = x.shape
    to = plan.empty((C,), torch.float32)
    plan.launch(
        sums, (1,), to, z.bits(), Rows(x, *strides(x, 0, 1)), offset, count=loop_bound(R), C=C, TWICE=twice,
        num_warps=1,
    )  # fmt: skip
    return (to,)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_offset", [False, True])
def test_groups_strides_flags_and_bits(twice: bool, transposed: bool, with_offset: bool) -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.rand(8, 8, device=DEVICE)
        x = x.T if transposed else x
        offset = torch.rand(8, device=DEVICE) if with_offset else None
        z = torch.rand(2, dtype=torch.complex64, device=DEVICE)
        (found,) = summed(x, offset, z, twice=twice)
        want = (x.sum(0) + (0 if offset is None else offset)) * (2 if twice else 1)
        torch.testing.assert_close(found, want)
        assert z[0] == z[1]
    assert len(summed.plans) == 1


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
class TestOnDevice:
    def test_a_kept_plan_runs_in_a_graph(self) -> None:
        x, z = torch.rand(8, 8, device=DEVICE), torch.rand(2, dtype=torch.complex64, device=DEVICE)
        summed(x, None, z, twice=False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (found,) = summed(x, None, z, twice=False)
        x.add_(1)
        graph.replay()
        torch.testing.assert_close(found, x.sum(0))

    def test_it_runs_on_the_current_stream(self) -> None:
        x, z = torch.rand(8, 8, device=DEVICE), torch.rand(2, dtype=torch.complex64, device=DEVICE)
        summed(x, None, z, twice=False)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            (found,) = summed(x, None, z, twice=False)
            assert not stream.query()
        stream.synchronize()
        torch.testing.assert_close(found, x.sum(0))

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_operands_on_a_device_that_is_not_current(self) -> None:
        x, z = torch.rand(8, 8, device="cuda:1"), torch.rand(2, dtype=torch.complex64, device="cuda:1")
        for _ in range(2):
            (found,) = summed(x, None, z, twice=False)
            assert found.device == x.device and torch.cuda.current_device() == 0
            torch.testing.assert_close(found, x.sum(0))
