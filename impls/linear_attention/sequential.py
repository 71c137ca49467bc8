"""One step after another: T dependent steps, one state in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.common import gate, over_time
from .common import Operands, as_backend, scaled


def launches(shape: Shape) -> float:
    """The gate, write, sum and read of every step."""
    return 4 * shape["T"] + 8


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """A few states, the gates, and a copy of the output."""
    states = 4 * shape["B"] * shape["H"] * shape["K"] * shape["V"]
    return (states + 4 * shape["B"] * shape["T"] * shape["H"] * shape["V"]) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The state before and after the gate, and the write, of every step."""
    return 3 * shape["T"] * shape["B"] * shape["H"] * shape["K"] * shape["V"] * max(4, itemsize)


@backend("linear_attention", name="sequential", launches=launches, workspace=workspace, saved=saved)
@as_backend
def sequential(x: Operands) -> tuple[Tensor, Tensor]:
    """A loop over time on whole (B, H, K, V) states."""
    alphas: Sequence[Tensor | None] = [None] * x.T
    betas: Sequence[Tensor | None] = [None] * x.T
    if x.log_a is not None:
        alphas = over_time(gate(x.log_a, x.phase), x.T).unsqueeze(-1).unbind(1)
    if x.log_b is not None:
        betas = torch.exp(x.log_b).unsqueeze(-2).unbind(1)
    queries, keys, values = x.q.unsqueeze(-2), x.k.unsqueeze(-1), x.v.unsqueeze(-2)
    state, outputs = x.state, []
    steps = zip(queries.unbind(1), keys.unbind(1), values.unbind(1), alphas, betas, strict=True)
    for q_t, k_t, v_t, alpha_t, beta_t in steps:
        state = scaled(scaled(state, alpha_t), beta_t) + k_t * v_t
        outputs.append(q_t @ state)
    return torch.cat(outputs, dim=2).transpose(1, 2), state
