"""One step after another: T dependent steps, one state in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend


def _rows(x: Tensor) -> tuple[Tensor, ...]:
    """Split (B, T, H, F) into T tensors (B, H, 1, F)."""
    return x.unsqueeze(-2).unbind(1)


def _columns(x: Tensor) -> tuple[Tensor, ...]:
    """Split (B, T, H, F) into T tensors (B, H, F, 1)."""
    return x.unsqueeze(-1).unbind(1)


def launches(shape: Shape) -> float:
    """The gate, recall, error, write, sum and read of every step."""
    return 7 * shape["T"] + 12


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """A few states, the scaled keys, the gates, and a copy of the output."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    return B * H * (5 * K * V + T * (4 * K + 3 * V)) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The state before and after the gate of every step."""
    return 3 * shape["T"] * shape["B"] * shape["H"] * shape["K"] * shape["V"] * max(4, itemsize)


@backend("delta_rule", name="sequential", launches=launches, workspace=workspace, saved=saved)
@as_backend
def sequential(x: Operands) -> tuple[Tensor, Tensor]:
    """A loop over time on whole (B, H, K, V) states."""
    state, outputs = x.state, []
    alphas = [None] * x.T if x.alpha is None else x.alpha.unsqueeze(-1).unbind(1)
    queries, keys, writes = _rows(x.q), _columns(x.beta * x.k), _rows(x.v)
    lefts = keys if x.p is None else _columns(x.p)
    rights = _rows(-x.k) if x.r is None else _rows(x.r)
    steps = zip(queries, keys, writes, alphas, lefts, rights, strict=True)
    for q_t, k_t, v_t, alpha_t, left_t, right_t in steps:
        kept = state if alpha_t is None else alpha_t * state
        if x.p is None:
            state = kept + k_t * (v_t + right_t @ kept)
        else:
            state = kept + left_t * (right_t @ state) + k_t * v_t
        outputs.append(q_t @ state)
    return torch.cat(outputs, dim=2).transpose(1, 2), state
