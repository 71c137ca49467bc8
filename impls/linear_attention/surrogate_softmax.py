"""Softmax over the decayed scores: a baseline that computes a different function than the recurrence.

GateLoop's eqs. 22-23 (Katsch, 2023); docs/recurrences.md#surrogate_softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf.authoring import Shape, Unsupported, backend

from .._autocast import without_autocast
from ..scan.common import shared_heads
from . import gate_factors
from ._signature import Arguments, whole_signature
from .common import further_pieces, over_steps, tile_scores, working


def _check(x: Arguments) -> None:
    if x.phase is not None or x.complex_operands:
        raise Unsupported("a softmax needs real scores: no phase and no complex operands")
    if x.log_b is not None:
        raise Unsupported("no value gates: the scores decay by the key gates")
    if x.initial_state is not None:
        raise Unsupported("a softmax over all past scores has no state to start from")
    if x.read != "post" or x.bonus is not None:
        raise Unsupported("reads after the write only: before it, the first step has nothing to attend to")


@without_autocast
def definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
) -> tuple[Tensor, None]:
    """Define this backend's function: o_t = Σ_{s≤t} softmax_s(q_t · (Π_{s<j≤t} α_j ⊙ k_s)) v_s.

    Operands as in `linear_attention`, real; computed step by step in the widest of their dtypes, at least
    float32.

    Raises:
        Unsupported: the backend refuses the operands.
    """
    _check(Arguments(q, k, v, log_a, log_b, phase=phase, bonus=bonus, read=read))
    q, k = shared_heads(q, k, v)
    T, H, K = q.shape[1:]
    dtype, wide = v.dtype, torch.float32
    for operand in (q, k, v, log_a):
        wide = wide if operand is None else torch.promote_types(wide, operand.dtype)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    gate = torch.ones_like(k[:, :1]) if log_a is None else torch.exp(gate_factors(log_a.to(wide), H, K))
    gates = gate.expand(-1, T, -1, -1)
    decayed, outputs = k[:, :0], []
    for t in range(T):
        decayed = torch.cat([gates[:, t : t + 1] * decayed, k[:, t : t + 1]], dim=1)  # (B, s, H, K)
        weights = torch.softmax(torch.einsum("bhk,bshk->bhs", q[:, t], decayed), dim=-1)
        outputs.append(torch.einsum("bhs,bshv->bhv", weights, v[:, : t + 1]))
    return torch.stack(outputs, dim=1).to(dtype), None


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Scores, weights and decays; with a key gate K times the decays."""
    channels = shape["K"] if gate_kind == "key" else 1
    return (3 + 2 * channels) * shape["B"] * shape["H"] * shape["T"] ** 2 * max(4, itemsize)


@backend(
    "linear_attention",
    name="surrogate_softmax",
    gates=("none", "const", "scalar", "key"),
    equivalent=False,
    definition=definition,
    launches=lambda shape: 20 + 2 * further_pieces(shape),
    workspace=workspace,
)
@whole_signature
def surrogate_softmax(given: Arguments) -> tuple[Tensor, None]:
    """Another function: a softmax over the scores that `surrogate` sums, computed pair by pair, O(T²).

    It has no state from which the next step could be computed, so the final state is None. Shapes and dtypes:
    see the recurrence `linear_attention`.

    Raises:
        Unsupported: a phase, complex operands, a value gate, an initial state, or a read before the write.
    """
    _check(given)
    x = working(given).by_head()
    past = torch.ones(given.q.shape[1], given.q.shape[1], dtype=torch.bool, device=given.q.device).tril()
    scores = torch.where(past, tile_scores(x.q, x.k, x.log_a, None), -math.inf)  # (B, H, t, s)
    output = over_steps(torch.softmax(scores, dim=-1), x.v)
    return output.transpose(1, 2).to(given.v.dtype), None
