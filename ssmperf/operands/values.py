"""Values of a case: operands and the loss's gradients at the results; and one pass of a function on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.operands.contract import TIME
from ssmperf.operands.time_axis import steps
from ssmperf.registry.cost import Spec


@dataclass(frozen=True)
class Values:
    """Operands of a case (with `initial_state` if there is one) and the loss's gradients at its results.

    grad_state: None for a recurrence without a state.
    """

    operands: Mapping[str, Any]
    grad_output: Tensor
    grad_state: Tensor | None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.operands.items() if isinstance(value, Tensor)}

    def clone(self) -> Values:
        """Copy all tensors into new buffers."""
        operands = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self.operands.items()
        }
        return Values(
            operands, self.grad_output.clone(), None if self.grad_state is None else self.grad_state.clone()
        )

    def refill(self, values: Values) -> None:
        """Write other values into the same buffers."""
        for name, tensor in self.tensors.items():
            tensor.copy_(values.operands[name])
        self.grad_output.copy_(values.grad_output)
        if self.grad_state is not None and values.grad_state is not None:
            self.grad_state.copy_(values.grad_state)


def contract(definition: Callable[..., Any], operands: Mapping[str, Any], length: int) -> tuple[Any, Any]:
    """Run a definition's first step, whose results have the dtypes and trailing shapes of the contract.

    A state that grows is expanded to the rows that it has after all steps.
    """
    output, state = definition(**steps(operands, 0, 1, length))
    before = operands.get("initial_state")
    rows = 0 if before is None else before.shape[TIME]
    may_grow = isinstance(state, Tensor) and state.dim() > TIME + 1 and state.shape[TIME] == rows + 1
    if may_grow and length > 1 and grows(definition, operands, length):
        state = state[:, -1:].expand(-1, state.shape[TIME] + length - 1, *state.shape[TIME + 1 :])
    return output, state


def grows(definition: Callable[..., Any], operands: Mapping[str, Any], length: int) -> bool:
    """Tell whether the state gets a row (along its second axis) with every step, as a cache does.

    length: number of steps of the operands, at least two.
    """
    with torch.no_grad():
        sizes = [
            definition(**steps(operands, 0, count, length))[1].shape[TIME : TIME + 2] for count in (1, 2)
        ]
    return len(sizes[0]) == 2 and sizes[1][0] == sizes[0][0] + 1


def draw_cotangents(output: Tensor, state: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
    """Draw standard-normal gradients of the loss at the output and, if there is one, at the final state."""
    generator = torch.Generator(output.device).manual_seed(seed)

    def normal_like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)

    return normal_like(output), None if state is None else normal_like(state)


def spec(tensor: Tensor) -> Spec:
    """Describe a tensor by its shape and width in memory, where an expanded axis has size 1."""
    shape = tuple(
        1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return Spec(shape, tensor.element_size(), tensor.is_complex())


def specs(operands: Mapping[str, Any]) -> dict[str, Spec]:
    """Describe all operands that are tensors."""
    return {name: spec(value) for name, value in operands.items() if isinstance(value, Tensor)}


def call_of(pass_: str, function: Callable[..., Any], values: Values) -> Callable[[], Any]:
    """Make a function without arguments that runs one pass on these values. No gradient is accumulated.

    `forward` and `decode` run without a graph; `backward` uses a graph that is made once, here. The passes
    with gradients start from the gradient at the output, and return the gradients of all tensor operands
    (None where no gradient arrives).
    """
    if pass_ in ("forward", "decode"):

        def forward() -> Any:
            with torch.no_grad():
                return function(**values.operands)

        return forward

    leaves = {name: value.detach().requires_grad_() for name, value in values.tensors.items()}
    operands = {**values.operands, **leaves}

    def backward_of(output: torch.Tensor, *, keep: bool) -> Any:
        if not output.requires_grad:
            return (None,) * len(leaves)
        return torch.autograd.grad(
            output, list(leaves.values()), values.grad_output, retain_graph=keep, allow_unused=True
        )

    if pass_ == "backward":
        output = function(**operands)[0]
        return lambda: backward_of(output, keep=True)
    return lambda: backward_of(function(**operands)[0], keep=False)
