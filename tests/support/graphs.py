"""Calls that must not wait for the device: without reads on the host, and replayed in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__index__", "__float__")


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
    call: Callable[[Tensor], Sequence[Tensor]], bounds: Sequence[Tensor],
    expected: Callable[[Tensor], Sequence[Tensor]], close: Callable[[Tensor, Tensor], bool],
) -> None:  # fmt: skip
    """Capture a call with the first bounds in a CUDA graph, and replay it with each of them."""
    given = bounds[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(given)
    for each in (*bounds, bounds[0]):
        given.copy_(each)
        graph.replay()
        for number, (got, want) in enumerate(zip(found, expected(each), strict=True)):
            assert close(got, want), f"result {number} with bounds {each.tolist()}"
