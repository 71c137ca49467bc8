"""The layers of the papers around time-invariant state spaces, which are linear without them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Block, Model, State, carry


class DSSBlock(Block):
    """x + W GELU(mixer(norm(x))) + b: the layer of DSS's code, where an activation after W is an option."""

    outputs_per_channel = 1

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.output = nn.Linear(self.output.in_features, self.outputs_per_channel * self.width)

    def mix(self, x: Tensor, backend: BackendLike, state: State | None) -> tuple[Tensor, State | None]:
        y, after = self.mixer(x, backend=backend, state=self.carried(state, 1)[0])
        return self.finished(functional.gelu(y)), carry(after)

    def finished(self, y: Tensor) -> Tensor:
        """Form the residual branch from the activated output of the mixer."""
        branch: Tensor = self.output(y)
        return branch


class S4Block(DSSBlock):
    """x + (W₁ y + b₁) ⊙ σ(W₂ y + b₂), y = GELU(mixer(norm(x)))."""

    outputs_per_channel = 2

    def finished(self, y: Tensor) -> Tensor:
        return functional.glu(self.output(y), dim=-1)


class S5Block(DSSBlock):
    """x + y ⊙ σ(W y + b), y = GELU(mixer(norm(x))): S5's layer, whose code calls it half a GLU."""

    def finished(self, y: Tensor) -> Tensor:
        return y * functional.sigmoid(self.output(y))
