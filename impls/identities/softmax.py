"""Softmax attention, with a forget gate and without, in other forms."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, C, H, K, T, V, build, normal

SOURCE = "docs/recurrences.md#identities"


@identity(
    "a_forget_gate_of_1_is_none",
    of="softmax_attention",
    subjects=("attention", "forgetting_attention"),
    source=SOURCE,
)
def no_forgetting(compute: Compute) -> Iterator[Comparison]:
    """Attention that never forgets is plain attention."""
    model = build("attention", H=H, K=K, V=V)
    operands = model.operands(normal(B, T, H * V))
    plain, _ = compute("softmax_attention", **operands)
    yield "output", compute("softmax_attention", **operands, log_f=plain.new_zeros(B, T, H))[0], plain


@identity("rotary_positions_are_relative", of="softmax_attention", subjects=("attention",), source=SOURCE)
def relative(compute: Compute) -> Iterator[Comparison]:
    """Counting the steps from another number changes nothing."""
    model = build("attention", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    output, _ = compute("softmax_attention", **model.operands(x))
    yield "output", compute("softmax_attention", **model.operands(x, start=57))[0], output


@identity(
    "a_constant_forget_gate_is_a_linear_bias",
    of="softmax_attention",
    subjects=("forgetting_attention",),
    source=SOURCE,
)
def linear_bias(compute: Compute) -> Iterator[Comparison]:
    """A constant gate per head adds a slope times the distance to the scores, as ALiBi does."""
    model = build("forgetting_attention", H=H, K=K, V=V)
    operands = model.operands(normal(B, T, H * V))
    slope = 2.0 ** -torch.arange(1, H + 1, dtype=torch.float64)
    operands["log_f"] = -slope.expand(B, T, H)
    distance = torch.arange(T).view(T, 1) - torch.arange(T)
    scores = torch.einsum("bnhk,bmhk->bhnm", operands["q"], operands["k"]) - slope.view(H, 1, 1) * distance
    weights = torch.softmax(torch.where(distance >= 0, scores, -torch.inf), dim=-1)
    output, _ = compute("softmax_attention", **operands)
    yield "output", output, torch.einsum("bhnm,bmhv->bnhv", weights, operands["v"])


@identity(
    "rwkv4_without_bonus_is_forgetting_attention_of_equal_queries",
    of="softmax_attention",
    subjects=("rwkv4_nobonus", "forgetting_attention"),
    source=SOURCE,
)
def ratio(compute: Compute) -> Iterator[Comparison]:
    """With q = 1, K = V = 1 and a head per channel, the softmax is a ratio of two decaying sums."""
    k, v, log_w = normal(B, T, C), normal(B, T, C, seed=1), -normal(C, seed=2).exp()
    heads = {"q": torch.ones(B, T, C, 1, dtype=k.dtype), "k": k.unsqueeze(-1), "v": v.unsqueeze(-1)}
    output, _ = compute("softmax_attention", **heads, log_f=log_w.expand(B, T, C))
    yield "output", output.squeeze(-1), compute("ratio_scan", log_w=log_w, k=k, v=v)[0]
