"""The layer of a network around a mixing model: norm, projections, gates and the residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ssmperf import registry
from ssmperf.errors import Unsupported

if TYPE_CHECKING:
    from ssmperf.layers.model import Model

# the mixer's state first, then what else a block carries to the next piece of a sequence
State = tuple[Tensor, ...]
Compute = str | Callable[..., Any]  # a backend by name, or a function with a recurrence's signature


class Block(nn.Module):
    """x (B, T, width) -> x + W mixer(norm(x)): a plain pre-norm residual layer, the default of a model.

    `width` is that of the residual stream. A subclass overrides `mix`, or `forward` where the layer has
    further parts; what it must carry from one piece of a sequence to the next it appends to the state.
    """

    norm_type: ClassVar[Callable[[int], nn.Module]] = nn.LayerNorm

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mixer = model
        self.norm = type(self).norm_type(self.width)
        self.output = nn.Linear(output_width(model), self.width, bias=False)

    @property
    def width(self) -> int:
        """Width of the residual stream: of x and y."""
        return self.mixer.width

    def forward(
        self, x: Tensor, *, backend: Compute = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """y (B, T, width) and the state after x, from the state before it (None: the sequence begins).

        The state is None where the model's recurrence has none. `block(x[:, :s])` and then
        `block(x[:, s:], state=state)` give `block(x)`, unless the model depends on the length.

        backend: a backend's name, or a function with the signature of the model's recurrence.

        Raises:
            UnknownName: the model has no such backend.
            Unsupported: the backend refuses, or a state is given to a recurrence without one.
        """
        y, state = self.mix(self.norm(x), backend, state)
        return x + y, state

    def mix(self, x: Tensor, backend: Compute, state: State | None) -> tuple[Tensor, State | None]:
        """What the residual adds, and the state after it, from the normalised x."""
        y, after = self.mixer(x, backend=backend, state=self.carried(state, 1)[0])
        return self.output(y), carry(after)

    def carried(self, state: State | None, count: int) -> tuple[Tensor | None, ...]:
        """The parts of a state, each None at the beginning of a sequence.

        Raises:
            Unsupported: the state is not this block's.
        """
        if state is None:
            return (None,) * count
        if not isinstance(state, tuple) or len(state) != count:
            found = f"{len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise Unsupported(f"a state of this {type(self).__name__} is a tuple of {count}, got {found}")
        return state


def carry(after: Tensor | None, *others: Tensor) -> State | None:
    """The state to go on from; None if the mixer has none, so that nothing could."""
    return None if after is None else (after, *others)


def output_width(model: Model) -> int:
    """Find the width of a model's y, which need not be that of its x, and note it on the model."""
    if model.output_width is not None:
        return model.output_width
    definition = registry.recurrence(registry.recurrence_of(model.name)).definition
    with torch.no_grad():
        y, _ = model(torch.zeros(1, 1, model.width), backend=definition)
    model.output_width = int(y.shape[-1])
    return model.output_width


def build_block(name: str, shape: Mapping[str, int]) -> Block:
    """A model in the block that it names, float32 on the CPU, with parameters under the caller's random seed.

    Raises:
        UnknownName: no such model.
        UsageError: the sizes do not fit.
    """
    model: Model = registry.model(name).cls(shape)
    return model.block(model)
