"""Values of a case: operands and the loss's gradients at the results; and one pass of a function on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ssmperf.engine.cases.calls.call import AUTOCAST, CHECKPOINT, DEVICE, INFERENCE
from ssmperf.engine.operands.calls.memory import copied, write
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import differentiable
from ssmperf.engine.operands.time_axis import steps
from ssmperf.engine.registry.cost import Spec
from ssmperf.engine.registry.declarations import PACKED
from ssmperf.errors import Unsupported


@dataclass(frozen=True)
class Values:
    """Operands of a case (with `initial_state` if there is one) and the loss's gradients at its results.

    grad_state: None for a recurrence without a state.
    wanted: operands whose gradients are wanted; None for all.
    missing: results at which no gradient arrives: "output" or "final_state". What is stored for them is 0.
    circumstances: words for where and how calls run: see `ssmperf.engine.cases.calls.call`.
    """

    operands: Mapping[str, Any]
    grad_output: Tensor
    grad_state: Tensor | None
    wanted: tuple[str, ...] | None = None
    missing: frozenset[str] = frozenset()
    circumstances: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.operands.items() if isinstance(value, Tensor)}

    @property
    def varying(self) -> dict[str, Tensor]:
        """The operands that are differentiated."""
        return {
            name: value
            for name, value in self.tensors.items()
            if differentiable(value) and (self.wanted is None or name in self.wanted)
        }

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a function on the operands, in the circumstances that need nothing but a context."""
        call = partial(function, **self.operands)
        with ExitStack() as contexts:
            if AUTOCAST in self.circumstances:
                contexts.enter_context(torch.autocast(self.device.type, dtype=torch.bfloat16))
            if DEVICE in self.circumstances:
                contexts.enter_context(torch.cuda.device(_another(self.device)))
            if INFERENCE in self.circumstances:
                contexts.enter_context(torch.inference_mode())
            if (
                CHECKPOINT in self.circumstances
            ):  # no call draws random numbers, and a capture may not save them
                return checkpoint(call, use_reentrant=False, preserve_rng_state=False)
            return call()

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.grad_output.device

    def clone(self) -> Values:
        """Copy all tensors into new buffers, with the same strides."""
        operands = {
            name: copied(value) if isinstance(value, Tensor) else value
            for name, value in self.operands.items()
        }
        grad_state = None if self.grad_state is None else copied(self.grad_state)
        return replace(self, operands=operands, grad_output=copied(self.grad_output), grad_state=grad_state)

    def refill(self, values: Values) -> None:
        """Write other values into the same buffers."""
        for name, tensor in self.tensors.items():
            write(values.operands[name], tensor)
        write(values.grad_output, self.grad_output)
        if self.grad_state is not None and values.grad_state is not None:
            write(values.grad_state, self.grad_state)


def _another(device: torch.device) -> int:
    """Get the index of another GPU. Raises Unsupported if there is none."""
    count = torch.cuda.device_count()
    if count < 2:
        raise Unsupported("no other current device: this machine has one GPU")
    return ((device.index or 0) + 1) % count


def contract(definition: Callable[..., Any], operands: Mapping[str, Any], length: int) -> tuple[Any, Any]:
    """Run a definition's first step, whose results have the dtypes and trailing shapes of the contract.

    A state that grows is expanded to the rows that it has after all steps, and that of one sequence to one
    for each of packed sequences.
    """
    bounds = operands.get(PACKED)
    if bounds is not None:
        one = {name: value for name, value in operands.items() if name not in (PACKED, "initial_state")}
        output, state = definition(**steps(one, 0, 1, length))
        return output, None if state is None else state.expand(len(bounds) - 1, *state.shape[1:])
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
                return values.call(function)

        return forward

    leaves = {name: value.detach().requires_grad_() for name, value in values.varying.items()}
    with_leaves = replace(values, operands={**values.operands, **leaves})

    def backward_of(output: torch.Tensor, *, keep: bool) -> Any:
        if not output.requires_grad:
            return (None,) * len(leaves)
        return torch.autograd.grad(
            output, list(leaves.values()), values.grad_output, retain_graph=keep, allow_unused=True
        )

    def output_of() -> Any:
        return with_leaves.call(function)[0]

    if pass_ == "backward":
        output = output_of()
        return lambda: backward_of(output, keep=True)
    return lambda: backward_of(output_of(), keep=False)
