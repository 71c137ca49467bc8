"""Sums over many steps in the attention forms of linear_attention, which a GPU adds up one after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls.linear_attention.common import TERMS
from support.kernels.table import error
from torch.utils._python_dispatch import TorchDispatchMode

from ssmperf.suitekit import registry

T = 2 * TERMS + 77
CUDA = torch.cuda.is_available()
NAMES = ("surrogate", "surrogate_raw", "surrogate_softmax")


def few_letters(T: int, kind: str, device: str = "cpu") -> dict[str, Any]:
    """Keys and values of six letters, all positive; gates forget half of the text."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(6, (1, T, 1), generator=generator)
    operands = {
        "q": torch.rand(1, T, 1, 8, generator=generator),
        "k": torch.rand(6, 8, generator=generator)[text],
        "v": torch.rand(6, 3, generator=generator)[text],
    }
    if kind == "scalar":
        operands["log_a"] = torch.full((1, T, 1), -0.7 / T)
    return {name: x.to(device) for name, x in operands.items()}


class Terms(TorchDispatchMode):
    """The most terms that a matrix product added up."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.most = max(self.most, args[0].shape[-1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["none", "scalar"])
@pytest.mark.parametrize("name", NAMES)
def test_no_product_adds_up_a_long_text_at_once(name: str, kind: str) -> None:
    with Terms() as seen:
        registry.backend("linear_attention", name).function(**few_letters(T, kind))
    assert 8 <= seen.most <= TERMS


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_rounding_does_not_grow_with_a_text_whose_letters_repeat(name: str) -> None:
    backend = registry.backend("linear_attention", name)
    operands = few_letters(8 * TERMS + 3, "none", "cuda")
    output, state = backend.function(**operands)
    want, want_state = backend.function(**{name: x.double() for name, x in operands.items()})
    assert error(output, want) < 2e-6
    assert state is None or error(state, want_state) < 2e-6
