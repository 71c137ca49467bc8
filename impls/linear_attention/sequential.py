"""One step after another: T dependent steps, one state in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, backend

from ..scan.common import gate
from .common import attend


def _sequential(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    phase: Tensor | None,
    log_b: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    T = q.shape[1]
    alphas = [None] * T if log_a is None else gate(log_a, phase).expand(-1, T, -1, -1).unsqueeze(-1).unbind(1)
    betas = [None] * T if log_b is None else torch.exp(log_b).unsqueeze(-2).unbind(1)
    queries, keys, values = q.unsqueeze(-2).unbind(1), k.unsqueeze(-1).unbind(1), v.unsqueeze(-2).unbind(1)
    outputs = []
    for q_t, k_t, v_t, alpha_t, beta_t in zip(queries, keys, values, alphas, betas, strict=True):
        kept = state if alpha_t is None else alpha_t * state
        kept = kept if beta_t is None else beta_t * kept
        state = kept + k_t * v_t
        outputs.append(q_t @ state)
    return torch.cat(outputs, dim=2).transpose(1, 2), state


def launches(shape: Shape) -> float:
    """Gate, write, sum and read of every step."""
    return 4 * shape["T"] + 8


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """A few states, the gates, and the output once more."""
    states = 4 * shape["B"] * shape["H"] * shape["K"] * shape["V"]
    return (states + 4 * shape["B"] * shape["T"] * shape["H"] * shape["V"]) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The state before and after its gate, and the write, of every step."""
    return 3 * shape["T"] * shape["B"] * shape["H"] * shape["K"] * shape["V"] * max(4, itemsize)


@backend("linear_attention", name="sequential", launches=launches, workspace=workspace, saved=saved)
def sequential(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
) -> tuple[Tensor, Tensor]:
    """A loop over time on whole (B, H, K, V) states.

    Shapes, dtypes and results: see the recurrence `linear_attention`.
    """
    return attend(_sequential, q, k, v, log_a, log_b, initial_state, phase, bonus, read)
