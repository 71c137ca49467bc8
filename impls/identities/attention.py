"""Models of linear attention in their parallel form, all pairs of steps at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, H, K, T, V, build, heads, normal, segment_sums

SOURCE = "docs/recurrences.md#identities"


def projections(model: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Project x to q, k and v by head."""
    return tuple(heads(linear(x)) for linear in (model.query, model.key, model.value))


def decayed_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute RetNet's parallel form: o_n = K^(−1/2) Σ_{m ≤ n} γ_h^(n−m) (q_n·k_m) v_m, heads flattened."""
    lag = torch.arange(T).view(T, 1) - torch.arange(T)
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    mask = torch.where(lag >= 0, gamma.view(H, 1, 1) ** lag.clamp(min=0), 0.0)
    scores = torch.einsum("bnhk,bmhk->bhnm", q, k) / K**0.5
    return torch.einsum("bhnm,bmhv->bnhv", scores * mask, v).flatten(-2)


def rotate(q: Tensor) -> Tensor:
    """Form q_n e^(inθ) on pairs of neighbouring channels, θ_j = 10000^(−2j/K)."""
    angle = torch.outer(torch.arange(T), 10000.0 ** (-2 * torch.arange(K // 2, dtype=torch.float64) / K))
    turn = torch.polar(torch.ones_like(angle), angle).unsqueeze(1)  # (T, 1, K/2)
    return torch.view_as_real(torch.view_as_complex(q.unflatten(-1, (-1, 2))) * turn).flatten(-2)


@identity("retnet_is_decayed_attention", of="linear_attention", subjects=("retnet",), source=SOURCE)
def retnet(compute: Compute) -> Iterator[Comparison]:
    """Retention is attention with scores times γ to the power of the distance."""
    model = build("retnet", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    o, _ = compute("linear_attention", **model.operands(x))
    yield "y", model.readout(o, x), decayed_attention(*projections(model, x))


@identity("rotated_keys_are_a_complex_gate", of="linear_attention", subjects=("retnet_xpos",), source=SOURCE)
def xpos(compute: Compute) -> Iterator[Comparison]:
    """Rotating q and k as xPos does is the gate γe^(iθ), in both choices of sign."""
    model = build("retnet_xpos", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    q, k, v = projections(model, x)
    rotated = decayed_attention(rotate(q), rotate(k), v)
    yield "y", compute("linear_attention", **operands)[0].real.flatten(-2), rotated
    conjugate = {
        **operands,
        "q": operands["q"].conj().resolve_conj(),
        "k": operands["k"].conj().resolve_conj(),
        "phase": -operands["phase"],
    }
    yield "y, other sign", compute("linear_attention", **conjugate)[0].real.flatten(-2), rotated


@identity("gla_is_attention_weighted_by_its_gates", of="linear_attention", subjects=("gla",), source=SOURCE)
def gla(compute: Compute) -> Iterator[Comparison]:
    """GLA is attention in which each key channel has weights, the exponentials of segment sums."""
    model = build("gla", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    q, k, v = projections(model, x)
    log_a = heads(functional.logsigmoid(model.gate_up(model.gate_down(x)))) / 16
    weights = torch.exp(segment_sums(log_a.transpose(0, 1)))  # (n, m, B, H, K)
    o, _ = compute("linear_attention", **model.operands(x))
    yield (
        "y",
        model.readout(o, x),
        torch.einsum("bnhk,bmhk,nmbhk,bmhv->bnhv", q, k, weights, v).flatten(-2) / K**0.5,
    )


@identity(
    "mamba2_is_attention_masked_by_segment_sums", of="linear_attention", subjects=("mamba2",), source=SOURCE
)
def mamba2(compute: Compute) -> Iterator[Comparison]:
    """Mamba-2 is attention, with scores C·B, under a mask of decays."""
    count = 2 * H  # H·V = 2·width
    model = build("mamba2", H=count, K=K, V=V)
    u = normal(B, T, H * V)
    step = functional.softplus(model.step(u) + model.step_bias)
    log_a = -step * torch.exp(model.A_log)
    mask = torch.exp(segment_sums(log_a.transpose(0, 1)))  # (n, m, B, H), 0 above the diagonal
    scores = torch.einsum("bnk,bmk->bnm", model.C(u), model.B(u))
    x = heads(model.input(u), count)
    dual = torch.einsum("bnm,nmbh,bmh,bmhv->bnhv", scores, mask, step, x)
    o, _ = compute("linear_attention", **model.operands(u))
    yield "y", model.readout(o, u), (dual + model.D.view(count, 1) * x).flatten(-2)


@identity(
    "normalised_linear_attention_is_attention_with_its_kernel",
    of="linear_attention",
    subjects=("linear_transformer",),
    source=SOURCE,
)
def linear_transformer(compute: Compute) -> Iterator[Comparison]:
    """The weights are φ(q)·φ(k) over their sum, φ = 1 + elu."""
    model = build("linear_transformer", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    q, k, v = projections(model, x)
    weights = torch.einsum("bnhk,bmhk->bhnm", 1 + functional.elu(q), 1 + functional.elu(k)).tril()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    o, _ = compute("linear_attention", **model.operands(x))
    yield "y", model.readout(o, x), torch.einsum("bhnm,bmhv->bnhv", weights, v).flatten(-2)


@identity(
    "cosformer_is_cosine_weighted_attention", of="linear_attention", subjects=("cosformer",), source=SOURCE
)
def cosformer(compute: Compute) -> Iterator[Comparison]:
    """The weights are cos(π(t−s)/2T) (q·k) over their sum."""
    model = build("cosformer", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    q, k, v = projections(model, x)
    distance = torch.arange(T, dtype=torch.float64).view(T, 1) - torch.arange(T)
    cosine = torch.cos(torch.pi / 2 * distance / T).tril()
    weights = torch.einsum("bnhk,bmhk->bhnm", functional.relu(q), functional.relu(k)) * cosine
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    o, _ = compute("linear_attention", **model.operands(x))
    yield "y", model.readout(o, x), torch.einsum("bhnm,bmhv->bnhv", weights, v).flatten(-2)


@identity("lrpe_is_attention_of_twice_the_width", of="linear_attention", subjects=("lrpe",), source=SOURCE)
def lrpe(compute: Compute) -> Iterator[Comparison]:
    """Put real q and k times cos(nθ) and times sin(nθ) side by side, without a gate."""
    model = build("lrpe", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    angle = torch.arange(T, dtype=torch.float64).view(T, 1, 1) * operands["phase"]
    q, k = (
        torch.cat([operands[name] * torch.cos(angle), operands[name] * torch.sin(angle)], dim=-1)
        for name in "qk"
    )
    turned, _ = compute("linear_attention", **operands)
    yield "output", turned, compute("linear_attention", q=q, k=k, v=operands["v"])[0]
