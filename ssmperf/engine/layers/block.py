"""The layer of a network around a mixing model: norm, projections, gates and the residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.engine import registry
from ssmperf.errors import Unsupported

if TYPE_CHECKING:
    from ssmperf.engine.layers.model import Model

# the mixer's state, then other tensors that a block carries over to the next piece of a sequence
State = tuple[Tensor, ...]
BackendLike = str | Callable[..., Any]  # a backend by name, or a function with a recurrence's signature


class Block(nn.Module):
    """x (B, T, width) -> x + W mixer(norm(x)): a plain pre-norm residual layer, the default of a model.

    `width` is the width of the residual stream. A subclass overrides `mix`, or `forward` if the layer has
    further parts. Other tensors that it must carry from one piece of a sequence to the next are appended to
    the state.
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
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Compute y (B, T, width) and the state after x, from the state before it (None at the beginning).

        The state is None if the model's recurrence has none. `block(x[:, :s])` and then
        `block(x[:, s:], state=state)` together give `block(x)`, unless the model depends on the length.

        backend: a backend's name, or a function with the signature of the model's recurrence.

        Raises:
            UnknownName: the model has no such backend.
            Unsupported: the backend refuses the operands, or a recurrence without a state is given one.
        """
        y, state = self.mix(self.norm(x), backend, state)
        return x + y, state

    def in_network(
        self, x: Tensor, first: Tensor | None, *, backend: BackendLike, state: State | None
    ) -> tuple[Tensor, Tensor | None, State | None]:
        """Like `forward`, and pass on a tensor that the first layer gives to all later layers.

        A layer whose model needs such a tensor overrides this. `first` is None in the first layer, and
        everywhere if the model has no such tensor.
        """
        y, after = self(x, backend=backend, state=state)
        return y, first, after

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        """Compute the residual branch for the normalised x, and the state after it."""
        y, after = self.mixer(x, backend=backend, state=self.carried(state, 1)[0])
        return self.output(y), carry(after)

    def carried(self, state: State | None, count: int) -> tuple[Tensor | None, ...]:
        """Split a state into its parts; each is None at the beginning of a sequence.

        Raises:
            Unsupported: the state does not belong to a block of this type.
        """
        if state is None:
            return (None,) * count
        if not isinstance(state, tuple) or len(state) != count:
            found = f"{len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise Unsupported(f"a state of this {type(self).__name__} is a tuple of {count}, got {found}")
        return state


def carry(after: Tensor | None, *others: Tensor) -> State | None:
    """Make the state for the next piece of a sequence; None if the mixer has no state to continue from."""
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
    """Build a model in the block that it names, in float32 on the CPU, under the caller's random seed.

    Raises:
        UnknownName: there is no such model.
        UsageError: the sizes do not fit the model.
    """
    model: Model = registry.model(name).cls(shape)
    return model.block(model)
