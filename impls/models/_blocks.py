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
    GroupNorm,
    GroupRMSNorm,
    HeadRMSNorm,
    LinearGLU,
    NarrowGLU,
    Perceptron,
    ReLUPerceptron,
    RMSNorm,
    ShortConvolution,
    SimpleHeadRMSNorm,
    SimpleRMSNorm,
    identity,
    over_all,
)

if TYPE_CHECKING:
    from .mamba2 import Mamba2

Activation = Callable[[Tensor], Tensor]
Norm = Callable[[int], nn.Module]  # from the width
HeadNorm = Callable[[int, int], nn.Module]  # from the number of heads and the width
Channels = Callable[[int, int | None], nn.Module]  # from the width and the width inside


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


class RetNetGLUBlock(GatedBlock):
    """GLA's layer with norms of the heads without weights, and a GLU with GELU over the channels."""

    output_norm_type: ClassVar[HeadNorm] = SimpleHeadRMSNorm
    channels_type: ClassVar[Channels] = GELUGLU


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
