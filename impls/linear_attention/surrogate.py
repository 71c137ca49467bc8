"""Attention with the decays as a T × T matrix a head (or a key, or a value), all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023); RECURRENCES.md §4.7.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf import Shape, backend

from .common import attend, by_head, scaled, tile_attention, tile_edges


def _surrogate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    phase: Tensor | None,
    log_b: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    T = q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    log_a, phase, log_b = by_head(log_a, T), by_head(phase, T), by_head(log_b, T)
    alpha, beta, decay, write = tile_edges(k, v, log_a, phase, log_b)
    output = tile_attention(q, k, v, log_a, phase, log_b) + scaled(scaled(q, alpha) @ state, beta)
    return output.transpose(1, 2), scaled(state, decay) + write


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Scores and decays; a key or value gate takes K or V times the decays, and so may a constant phase."""
    kind = "key" if gate_kind == "const_complex" else gate_kind.partition("_")[0]
    channels = {"key": shape["K"], "value": shape["V"], "both": shape["K"] + shape["V"]}.get(kind, 1)
    return (1 + 2 * channels) * shape["B"] * shape["H"] * shape["T"] ** 2 * max(4, itemsize)


@backend("linear_attention", name="surrogate", launches=lambda shape: 40, workspace=workspace)
def surrogate(
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
    """Attention weighted by segment sums of the log gates, O(T²) work and memory.

    Shapes, dtypes and results: see the recurrence `linear_attention`.
    """
    return attend(_surrogate, q, k, v, log_a, log_b, initial_state, phase, bonus, read)
