"""One step after another: T dependent steps, the least arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import backend

from .common import Operands, as_backend


@backend(
    "scan",
    name="sequential",
    launches=lambda shape: shape["T"] + 4,
    workspace=lambda shape, itemsize, gate_kind: 4 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize),
)
@as_backend
def sequential(x: Operands) -> Tensor:
    """A loop over time on whole (B, C) slices. Gates that do not change over time are computed once."""
    state, states = x.state, []
    for a_t, b_t in zip(x.gates.unbind(1), x.b.unbind(1), strict=True):
        state = torch.addcmul(b_t, a_t, state)
        states.append(state)
    return torch.stack(states, dim=1)
