"""Attention with the decays as a T × T matrix per head (or per key or value channel), all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023); docs/recurrences.md#surrogate.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend, further_pieces, scaled, tile_attention, tile_edges


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Scores and decays; with a key or value gate (and perhaps a constant phase) K or V times the decays."""
    kind = "key" if gate_kind == "const_complex" else gate_kind.partition("_")[0]
    channels = {"key": shape["K"], "value": shape["V"], "both": shape["K"] + shape["V"]}.get(kind, 1)
    return (1 + 2 * channels) * shape["B"] * shape["H"] * shape["T"] ** 2 * max(4, itemsize)


@backend(
    "linear_attention",
    name="surrogate",
    launches=lambda shape: 40 + 4 * further_pieces(shape),
    workspace=workspace,
)
@as_backend
def surrogate(x: Operands) -> tuple[Tensor, Tensor]:
    """Attention weighted by segment sums of the log gates, O(T²) work and memory."""
    tile = x.by_head()
    alpha, beta, decay, write = tile_edges(tile)
    output = tile_attention(tile) + scaled(scaled(tile.q, alpha) @ x.state, beta)
    return output.transpose(1, 2), scaled(x.state, decay) + write
