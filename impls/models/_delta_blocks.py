"""The layers of the papers around the models of the delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.authoring import BackendLike, Model, State, carry

from ._blocks import Activation, GatedBlock, HeadNorm, NormedBlock
from ._parts import HeadRMSNorm, ShortConvolution

if TYPE_CHECKING:
    from .deltanet import ConvolvedDeltaRule


class DeltaNetBlock(NormedBlock):
    """x + W norm(mixer(conv(norm(x)))) with a norm per head, then a GLU.

    One convolution over four steps comes before the mixer's projections of q, k and v; the published code
    has one after each projection.
    """

    output_norm_type: ClassVar[HeadNorm] = HeadRMSNorm

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.convolution = ShortConvolution(self.width)

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        u, tail = self.convolution(x, tail)
        y, after = self.mixer(u, backend=backend, state=before)
        return self.output(self.finished(self.output_norm(y), x)), carry(after, tail)


class GatedDeltaNetBlock(DeltaNetBlock, GatedBlock):
    """DeltaNet's layer with the output gate SiLU(W norm(x))."""


class DeltaProductBlock(GatedBlock):
    """x + W₂(norm(y) ⊙ SiLU(W₁ norm(x))), y the mixer's output with the convolution inside it; then a GLU.

    The mixer projects norm(x) to q, k and v. Each is convolved over four steps before its SiLU. The norm of y
    is one per head, with the same weights for all.
    """

    mixer: ConvolvedDeltaRule

    def __init__(self, model: ConvolvedDeltaRule, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.convolution = ShortConvolution(sum(model.projected_widths), bias=False)

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        projected, tail = self.convolution(self.mixer.project(x), tail)
        output, after = self.mixer.compute(self.mixer.lower(projected, x), backend, before)
        y = self.output_norm(self.mixer.readout(output, x))
        return self.output(self.finished(y, x)), carry(after, tail)


class KDABlock(DeltaProductBlock):
    """DeltaProduct's layer with the output gate σ(W₂W₁ norm(x) + b); W₁ projects to the width of a head."""

    gate: ClassVar[Activation] = staticmethod(torch.sigmoid)

    def __init__(self, model: ConvolvedDeltaRule, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        inner, V = self.output.in_features, model.shape["V"]
        self.gate_projection = nn.Sequential(nn.Linear(self.width, V, bias=False), nn.Linear(V, inner))
