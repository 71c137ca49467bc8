"""The layers of the papers around the models of the delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.authoring import BackendLike, Model, State, carry

from ._blocks import Activation, GatedBlock, HeadNorm, NormedBlock
from ._parts import HeadRMSNorm, ShortConvolution

if TYPE_CHECKING:
    from .kda import KDA


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


class KDABlock(GatedBlock):
    """x + W norm(y) ⊙ σ(W₂W₁ norm(x) + b), y the mixer's output with the convolution inside it; then a GLU.

    The mixer projects norm(x) to q, k and v. Each is convolved over four steps before its SiLU. W₁ projects
    down to the width of a head. The norm is one per head, with the same weights for all.
    """

    gate: ClassVar[Activation] = staticmethod(torch.sigmoid)
    mixer: KDA

    def __init__(self, model: KDA, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.convolution = ShortConvolution(model.projected_width, bias=False)
        inner, V = self.output.in_features, model.shape["V"]
        self.gate_projection = nn.Sequential(nn.Linear(self.width, V, bias=False), nn.Linear(V, inner))

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        projected, tail = self.convolution(self.mixer.project(x), tail)
        output, after = self.mixer.compute(self.mixer.lower(projected, x), backend, before)
        y = self.output_norm(self.mixer.readout(output, x))
        return self.output(self.finished(y, x)), carry(after, tail)
