"""Calls that must not wait for the device: without reads on the host, and replayed in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.table import random_like, widened

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__index__", "__float__")
Function = Callable[..., tuple[Tensor, Tensor]]


def assert_reads_nothing_on_the_host(patch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Call once, and once more where whatever a GPU would be waited for raises."""
    from ssmperf.impls.scan import common

    patch.setattr(common, "is_on_host", lambda x: False)
    call()

    def refuse(name: str) -> Any:
        def read(*arguments: Any, **options: Any) -> None:
            raise AssertionError(f"the host reads a tensor by Tensor.{name}")

        return read

    with pytest.MonkeyPatch.context() as guard:
        for name in READS:
            guard.setattr(Tensor, name, refuse(name))
        call()


def assert_follows_other_lengths(
    function: Function, definition: Function, operands: Mapping[str, Any], bounds: Sequence[Tensor],
    close: Callable[[Tensor, Tensor], bool],
) -> None:  # fmt: skip
    """Capture forward and backward with the first bounds in a CUDA graph, and replay it with each of them.

    operands: leaves on the device, and options.
    """
    given, side = bounds[0].clone(), torch.cuda.Stream()
    weights = [
        random_like(x.detach(), seed) for seed, x in enumerate(function(**operands, cu_seqlens=given), 1)
    ]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            both_passes(function, operands, given, weights)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both_passes(function, operands, given, weights)
    for each in (*bounds, bounds[0]):
        given.copy_(each)
        graph.replay()
        expected = both_passes(definition, widened(operands), each, weights)
        for number, (got, want) in enumerate(zip(found, expected, strict=True)):
            assert close(got, want), f"result {number} with bounds {each.tolist()}"


def both_passes(
    function: Function, operands: Mapping[str, Any], bounds: Tensor, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Outputs and gradients, with nothing copied from the host."""
    outputs = function(**operands, cu_seqlens=bounds)
    leaves = [x for x in operands.values() if isinstance(x, Tensor)]
    given = [weight.to(x.dtype) for weight, x in zip(weights, outputs, strict=True)]
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, leaves, given)]
