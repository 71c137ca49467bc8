"""The layers of the papers around their mixing models, each x (B, T, width) -> y (B, T, width)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Block, Model, State, UsageError, carry

from ._parts import (
    EXPANSION,
    GELUGLU,
    GLU,
    BiasedGLU,
    DataShift,
    GroupNorm,
    GroupRMSNorm,
    HeadRMSNorm,
    LinearGLU,
    LowRank,
    NarrowGLU,
    Perceptron,
    PowerShift,
    ReLUPerceptron,
    RMSNorm,
    RWKV4Channels,
    RWKV7Channels,
    RWKVChannels,
    Shift,
    ShortConvolution,
    SimpleRMSNorm,
    identity,
    over_all,
    shifted,
)

if TYPE_CHECKING:
    from .mamba2 import Mamba2
    from .rwkv7 import RWKV7

Activation = Callable[[Tensor], Tensor]
Norm = Callable[[int], nn.Module]  # from the width
HeadNorm = Callable[[int, int], nn.Module]  # from the number of heads and the width
Channels = Callable[[int, int | None], nn.Module]  # from the width and the width inside
Part = Callable[[int], nn.Module]  # from the width


class MambaBlock(Block):
    """x + W₃(mixer(SiLU(conv(W₁ norm(x)))) ⊙ SiLU(W₂ norm(x))), the mixer twice as wide as the residual.

    One branch holds the convolution over four steps and the mixer, the other is its gate.

    Raises:
        UsageError: the mixer's width is odd.
    """

    norm_type: ClassVar[Norm] = RMSNorm
    expansion: ClassVar[int] = EXPANSION
    activation: ClassVar[Activation] = staticmethod(functional.silu)
    gate: ClassVar[Activation] = staticmethod(functional.silu)

    def __init__(self, model: Model) -> None:
        if model.width % self.expansion:
            raise UsageError(f"the block of {model.name} is half as wide as it: {model.width} is odd")
        super().__init__(model)
        self.input = nn.Linear(self.width, 2 * model.width, bias=False)
        self.convolution = ShortConvolution(model.width)

    @property
    def width(self) -> int:
        return self.mixer.width // self.expansion

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        u, z = self.input(x).chunk(2, dim=-1)
        u, tail = self.convolution(u, tail)
        y, after = self.mixer(type(self).activation(u), backend=backend, state=before)
        return self.output(y * type(self).gate(z)), carry(after, tail)


class Mamba2Block(Block):
    """x + W₃ norm(y ⊙ SiLU(W₁ norm(x))), y the mixer's output with the convolution inside it.

    The mixer projects norm(x) to x, B, C and Δ in parallel. The convolution over four steps, with SiLU, is on
    x, B and C together. The norm before W₃ is one per group of heads that share B and C.
    """

    norm_type: ClassVar[Norm] = RMSNorm
    mixer: Mamba2

    def __init__(self, model: Mamba2) -> None:
        super().__init__(model)
        inner = self.output.in_features
        self.gate_projection = nn.Linear(self.width, inner, bias=False)
        self.convolution = ShortConvolution(inner + 2 * model.groups * model.shape["K"])
        self.gated_norm = RMSNorm(inner) if model.groups == 1 else GroupRMSNorm(model.groups, inner)

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        projected, step = self.mixer.project(x)
        convolved, tail = self.convolution(projected, tail)
        inputs = functional.silu(convolved)
        y, after = self.mixer.compute(self.mixer.lower(inputs, step), backend, before)
        gated = self.mixer.skip(y, inputs) * functional.silu(self.gate_projection(x))
        return self.output(self.gated_norm(gated)), carry(after, tail)


class ChannelBlock(Block):
    """A layer with a second residual part, which mixes channels: y + channels(norm(y)).

    hidden: width inside the channel mixing; its own default if None.
    """

    channels_type: ClassVar[Channels] = Perceptron

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model)
        self.channel_norm = type(self).norm_type(self.width)
        self.channels = type(self).channels_type(self.width, hidden)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        x, state = super().forward(x, backend=backend, state=state)
        return x + self.channels(self.channel_norm(x)), state


class GriffinBlock(ChannelBlock, MambaBlock):
    """x + W₃(mixer(conv(W₁ norm(x))) ⊙ GELU(W₂ norm(x))), then a GLU with GELU; the mixer is no wider."""

    expansion = 1
    activation: ClassVar[Activation] = staticmethod(identity)
    gate: ClassVar[Activation] = staticmethod(functional.gelu)
    channels_type: ClassVar[Channels] = GELUGLU


class GateLoopBlock(ChannelBlock):
    """The plain layer, then a perceptron over the channels."""


class TransformerBlock(ChannelBlock):
    """x + W mixer(norm(x)), then a GLU over the channels: a transformer's layer, with RMS norms."""

    norm_type: ClassVar[Norm] = RMSNorm
    channels_type: ClassVar[Channels] = GLU


class PreNormBlock(ChannelBlock):
    """x + W mixer(norm(x)) + b, then a perceptron with ReLU over the channels; layer norms, and biases.

    This is the decoder layer of fairseq's language models.
    """

    channels_type: ClassVar[Channels] = ReLUPerceptron

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.output = nn.Linear(self.output.in_features, self.width)


class PostNormBlock(PreNormBlock):
    """y = norm(x + W mixer(x) + b), then norm(y + perceptron(y)): the layer of the first transformer."""

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        y, after = self.mix(x, backend, state)
        x = self.norm(x + y)
        mixed: Tensor = self.channel_norm(x + self.channels(x))
        return mixed, after


class NormedBlock(ChannelBlock):
    """x + W norm(mixer(norm(x))), then a GLU over the channels. A subclass may norm each head alone."""

    norm_type: ClassVar[Norm] = RMSNorm
    output_norm_type: ClassVar[HeadNorm] = staticmethod(over_all(RMSNorm))
    channels_type: ClassVar[Channels] = GLU

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        heads = model.shape.get("H", 1)
        self.output_norm = type(self).output_norm_type(heads, self.output.in_features)

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        y, after = self.mixer(x, backend=backend, state=self.carried(state, 1)[0])
        return self.output(self.finished(self.output_norm(y), x)), carry(after)

    def finished(self, y: Tensor, x: Tensor) -> Tensor:
        """Form the output projection's input from the normalised y and the layer's normalised x."""
        return y


class LCSMBlock(NormedBlock):
    """x + W norm(mixer(norm(x))), then a GLU 4/3 as wide as the layer; layer norms and no biases."""

    norm_type: ClassVar[Norm] = nn.LayerNorm
    output_norm_type: ClassVar[HeadNorm] = staticmethod(over_all(nn.LayerNorm))
    channels_type: ClassVar[Channels] = NarrowGLU


class HGRNBlock(NormedBlock):
    """x + W norm(mixer(norm(x))), then a GLU 8/3 as wide as the layer; layer norms, and biases everywhere."""

    norm_type: ClassVar[Norm] = nn.LayerNorm
    output_norm_type: ClassVar[HeadNorm] = staticmethod(over_all(nn.LayerNorm))
    channels_type: ClassVar[Channels] = BiasedGLU

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.output = nn.Linear(self.output.in_features, self.width)


class GatedBlock(NormedBlock):
    """x + W₂(norm(mixer(norm(x))) ⊙ SiLU(W₁ norm(x))), then a GLU: GLA's layer, with a norm per head."""

    output_norm_type: ClassVar[HeadNorm] = HeadRMSNorm
    gate: ClassVar[Activation] = staticmethod(functional.silu)

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.gate_projection: nn.Module = nn.Linear(self.width, self.output.in_features, bias=False)

    def finished(self, y: Tensor, x: Tensor) -> Tensor:
        return y * type(self).gate(self.gate_projection(x))


class RetNetBlock(GatedBlock):
    """GLA's layer with a group norm of the heads and a perceptron over the channels."""

    norm_type: ClassVar[Norm] = nn.LayerNorm
    output_norm_type: ClassVar[HeadNorm] = GroupNorm
    channels_type: ClassVar[Channels] = Perceptron


class TNLBlock(GatedBlock):
    """GLA's layer with one norm over all channels, gates without an activation, norms without parameters."""

    norm_type: ClassVar[Norm] = SimpleRMSNorm
    output_norm_type: ClassVar[HeadNorm] = staticmethod(over_all(SimpleRMSNorm))
    gate: ClassVar[Activation] = staticmethod(identity)
    channels_type: ClassVar[Channels] = LinearGLU


class XLSTMBlock(GatedBlock):
    """x + W₂(norm(mixer(norm(x))) ⊙ σ(W₁ norm(x))), then a GLU: xLSTM's layer, with a layer norm per head."""

    output_norm_type: ClassVar[HeadNorm] = GroupNorm
    gate: ClassVar[Activation] = staticmethod(torch.sigmoid)


class Mamba3Block(GatedBlock):
    """x + W₂(mixer(norm(x)) ⊙ SiLU(W₁ norm(x))), then a GLU. There is no convolution and no norm of y."""

    output_norm_type: ClassVar[HeadNorm] = staticmethod(over_all(nn.Identity))


class SlotBlock(NormedBlock):
    """x + W norm(SiLU(mixer(norm(x)))), then a GLU."""

    output_norm_type: ClassVar[HeadNorm] = staticmethod(
        over_all(lambda width: nn.Sequential(nn.SiLU(), RMSNorm(width)))
    )


class RWKV4Block(Block):
    """Time mixing x + W mixer(shift(norm(x))), then channel mixing; both see the token before, too.

    The mixer gets one mix of each token with the one before it; in the paper r, k and v have one each.
    """

    channels_type: ClassVar[Part] = RWKV4Channels
    shift_type: ClassVar[Part] = Shift

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.shift = type(self).shift_type(self.width)
        self.channel_norm = nn.LayerNorm(self.width)
        self.channels = type(self).channels_type(self.width)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        before, last, channel_last = self.carried(state, 3)
        normed = self.norm(x)
        previous = shifted(normed, last)
        y, after = self.mixer(self.shift(normed, previous), backend=backend, state=before)
        x = x + self.output(self.finished(y, normed, previous))
        mixed = self.channel_norm(x)
        y = x + self.channels(mixed, shifted(mixed, channel_last))
        return y, carry(after, normed[:, -1:], mixed[:, -1:])

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
