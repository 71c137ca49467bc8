"""Results of a peer, beside the definition's: output, final state and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssmperf.suitekit import registry


def outcome(
    function: Callable[..., Any], given: dict[str, Any], *, to_state: bool, wide: bool
) -> list[Tensor]:
    """Output, final state and gradients from random gradients at the output and, if wanted, at the state."""
    tensors = {
        name: value
        for name, value in given.items()
        if isinstance(value, Tensor) and value.is_floating_point()  # but no bounds of packed sequences
    }
    leaves = {
        name: (value.to(torch.promote_types(value.dtype, torch.float64)) if wide else value)
        .detach()
        .requires_grad_()
        for name, value in tensors.items()
    }
    output, state = function(**{**given, **leaves})
    random = torch.Generator().manual_seed(3)
    ends = [output, state] if to_state else [output]
    arriving = [torch.randn(end.shape, generator=random, dtype=torch.float64).to(end.dtype) for end in ends]
    gradients = torch.autograd.grad(ends, list(leaves.values()), arriving)
    return [output.detach(), state.detach(), *gradients]


def assert_right(recurrence: str, name: str, given: dict[str, Any], *, to_state: bool = True) -> None:
    """Compare a peer's results with the definition's in double precision."""
    found = outcome(registry.backend(recurrence, name).function, given, to_state=to_state, wide=False)
    wanted = outcome(registry.recurrence(recurrence).definition, given, to_state=to_state, wide=True)
    assert_close(found, wanted)


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for got, expected in zip(found, wanted, strict=True):
        assert got.shape == expected.shape
        difference = (got.to(expected.dtype) - expected).abs().max()
        assert difference <= 2e-5 * expected.abs().max().clamp(min=1)
