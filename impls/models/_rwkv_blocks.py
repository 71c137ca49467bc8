"""The layers of the papers around the models of RWKV."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Block, Model, State, carry

from ._blocks import Norm
from ._parts import (
    DataShift,
    GroupNorm,
    LowRank,
    NarrowRWKVChannels,
    PowerShift,
    RWKV4Channels,
    RWKV7Channels,
    RWKVChannels,
    Shift,
    shifted,
)

if TYPE_CHECKING:
    from .rwkv import RWKV5
    from .rwkv7 import RWKV7

Part = Callable[[int], nn.Module]  # from the width


class RWKV4Block(Block):
    """Time mixing x + W mixer(shift(norm(x))), then channel mixing; both see the token before, too.

    The mixer gets one mix of each token with the one before it; in the paper r, k and v have one each.
    """

    channels_type: ClassVar[Part] = RWKV4Channels
    shift_type: ClassVar[Part] = Shift

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.shift: nn.Module = type(self).shift_type(self.width)
        self.channel_norm = type(self).norm_type(self.width)
        self.channels = type(self).channels_type(self.width)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        before, last, channel_last = self.carried(state, 3)
        normed = self.norm(x)
        previous = shifted(normed, last)
        y, after = self.over_time(normed, previous, backend, before)
        x = x + self.output(self.finished(y, normed, previous))
        mixed = self.channel_norm(x)
        y = x + self.channels(mixed, shifted(mixed, channel_last))
        return y, carry(after, normed[:, -1:], mixed[:, -1:])

    def over_time(
        self, x: Tensor, previous: Tensor, backend: BackendLike, before: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the mixer's y and its state from the normalised x, the tokens before and a state."""
        y, after = self.mixer(self.shift(x, previous), backend=backend, state=before)
        return y, after

    def finished(self, y: Tensor, x: Tensor, before: Tensor) -> Tensor:
        """Form the output projection's input from the mixer's y, the normalised x and the tokens before."""
        return y


class RWKV5Block(RWKV4Block):
    """RWKV-4's layer with a group norm on the heads and a gate SiLU(W shift(norm(x)))."""

    channels_type: ClassVar[Part] = RWKVChannels

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        width = self.output.in_features
        self.output_norm = GroupNorm(model.shape["H"], width)
        self.gate_shift = type(self).shift_type(self.width)
        self.gate = nn.Linear(self.width, width, bias=False)

    def finished(self, y: Tensor, x: Tensor, before: Tensor) -> Tensor:
        gated: Tensor = self.output_norm(y) * functional.silu(self.gate(self.gate_shift(x, before)))
        return gated


class HeadwiseRWKV5Block(RWKV5Block):
    """RWKV-5's layer with token shifts of r, k and v each, 3-fold channels and layer norms without biases."""

    norm_type: ClassVar[Norm] = partial(nn.LayerNorm, bias=False)
    channels_type: ClassVar[Part] = NarrowRWKVChannels
    mixer: RWKV5
    shift: nn.ModuleDict

    def __init__(self, model: RWKV5) -> None:
        super().__init__(model)
        self.shift = nn.ModuleDict({name: Shift(self.width) for name in "rkv"})

    def over_time(
        self, x: Tensor, previous: Tensor, backend: BackendLike, before: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        r, k, v = (self.shift[name](x, previous) for name in "rkv")
        operands = self.mixer.lower(r, k, v, x)
        output, after = self.mixer.compute(operands, backend, before)
        return self.mixer.readout(output, x), after


class RWKV6Block(RWKV5Block):
    """RWKV-5's layer with token shifts that depend on the data."""

    shift_type: ClassVar[Part] = DataShift


class RWKV7Block(Block):
    """x + W (y ⊙ W₂ σ(W₁ x_g)), then channel mixing; y is the mixer's output.

    Each token of norm(x) is mixed with the one before it by six token shifts. One gives x_g, the others the
    inputs of the mixer's projections. The published norm of the embedding, before the first layer, is left
    out.
    """

    shift_powers: ClassVar = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
    mixer: RWKV7

    def __init__(self, model: RWKV7) -> None:
        super().__init__(model)
        left, inner = model.layers_left, self.output.in_features
        self.shifts = nn.ModuleDict(
            {name: PowerShift(self.width, power * left) for name, power in self.shift_powers.items()}
        )
        self.gate = LowRank(self.width, inner, 5.0, torch.sigmoid)
        self.channel_norm = nn.LayerNorm(self.width)
        self.channels = RWKV7Channels(self.width, left**4)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        y, _, state = self.in_network(x, None, backend=backend, state=state)
        return y, state

    def in_network(
        self, x: Tensor, first: Tensor | None, *, backend: BackendLike, state: State | None
    ) -> tuple[Tensor, Tensor | None, State | None]:
        before, last, channel_last = self.carried(state, 3)
        normed = self.norm(x)
        previous = shifted(normed, last)
        inputs = {name: shift(normed, previous) for name, shift in self.shifts.items()}
        gate = self.gate(inputs.pop("g"))
        operands = self.mixer.lower(**inputs, first=first)
        output, after = self.mixer.compute(operands, backend, before)
        x = x + self.output(self.mixer.finish(output, operands) * gate)
        mixed = self.channel_norm(x)
        y = x + self.channels(mixed, shifted(mixed, channel_last))
        first = operands["v"] if first is None else first
        return y, first, carry(after, normed[:, -1:], mixed[:, -1:])
