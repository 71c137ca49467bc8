"""Softmax attention over all steps so far, with an optional forget gate: the quadratic baseline.

o_n = Σ_{m≤n} softmax_m(q_n·k_m + Σ_{m<j≤n} log f_j) v_m. See docs/recurrences.md#softmax_attention.

It is no recurrence: the state that continues a sequence is the cache of all its keys and values. No query
needs the one before, so the definition is the formula with all pairs; only the forget gates run in steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, log_gates, recurrence

from .._autocast import without_autocast
from .common import check, joined, log_weights_of, parted

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128}],
    "long": [
        {"B": 1, "T": 16384, "H": 16, "K": 128, "V": 128},
        {"B": 1, "H": 2, "K": 128, "V": 128},
    ],
}
OPERAND_SHAPES = {
    "v": "B T H V",
    "q": "B T H K",
    "k": "B T H K",
    "log_f": "B T H",
    "initial_state": "B S H W",  # W is K + V, with a forget gate K + V + 1
}
LEAST_WEIGHT = 0.1  # of a sampled cache's keys
LONGEST = 65536  # steps of a reference, whose time and states between segments grow with their square


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the kind: `none`, or `scalar` with a forget gate per head and step."""
    return "none" if operands.get("log_f") is None else "scalar"


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads operands and writes o and the cache; backward reads these and do.

    A query meets every key up to its own: two products and an exponential. Each product has two gradients.
    """
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    past = specs["initial_state"].shape[1] if pass_ == "decode" else 0
    pairs = B * H * (T * (T + 1) / 2 + T * past)
    operands = sum(specs[name].nbytes for name in ("q", "k", "v", "log_f") if name in specs)
    output = specs["v"].nbytes
    width = max(specs["k"].itemsize, specs["v"].itemsize, 4 if "log_f" in specs else 0)
    cached = B * T * H * (K + V + int("log_f" in specs)) * width
    forward = Cost(operands + output + cached, 2 * (K + V) * pairs, pairs)
    backward = Cost(2 * operands + output, 4 * (K + V) * pairs, pairs)
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "scalar"
) -> dict[str, Tensor | None]:
    """Draw float32 operands; the forget gate follows a regime, and q is scaled by K^-1/2."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=generator.device)

    return {
        "q": normal(B, T, H, K) * K**-0.5,
        "k": normal(B, T, H, K),
        "v": normal(B, T, H, V),
        "log_f": log_gates(regime, (B, T, H), generator) if gate_kind == "scalar" else None,
    }


def sample_state(operands: Mapping[str, Any], generator: Generator, *, rows: int | None = None) -> Tensor:
    """Draw a cache of `rows` steps (as many as the operands have if None).

    Keys and values are standard normal, weights uniform between 0.1 and 1.
    """
    k, v, log_f = operands["k"], operands["v"], operands.get("log_f")
    B, T, H, K = k.shape
    size = (B, T if rows is None else rows, H, K + v.shape[-1])
    cache = torch.randn(size, generator=generator, device=generator.device).to(joined(k, v, None).dtype)
    if log_f is None:
        return cache
    spread = torch.rand((*size[:3], 1), generator=generator, device=generator.device)
    wide = torch.promote_types(torch.promote_types(cache.dtype, log_f.dtype), torch.float32)
    return torch.cat([cache.to(wide), (LEAST_WEIGHT + (1 - LEAST_WEIGHT) * spread).to(wide)], dim=-1)


def decay_span(operands: Mapping[str, Any]) -> float:
    """Compute the largest Σ −log_f over time of a head, without resets."""
    log_f = operands.get("log_f")
    if log_f is None:
        return 0.0
    magnitude = log_f.detach().double().neg()
    return float(torch.where(torch.isfinite(magnitude), magnitude, 0).sum(1).max())


@recurrence(
    "softmax_attention",
    family="none: a softmax over a cache",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("log_f",),
    gate_kind=gate_kind,
    gate_kinds=("none", "scalar"),
    sample=sample,
    state_shape=lambda shape: (shape["B"], shape.get("S", shape["T"]), shape["H"], shape["K"] + shape["V"]),
    sample_state=sample_state,
    decay_span=decay_span,
    grows=True,
    stepwise=True,
    longest=LONGEST,
)
@without_autocast
def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_f: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o_n = Σ_{m≤n} p_nm v_m, p_n = softmax_m(q_n·k_m + Σ_{m<j≤n} log f_j), all queries at once.

    The state is the cache: a row per earlier step with its key, its value and, with a forget gate, its
    weight: the product of all forget gates since then. A key of weight 0 is forgotten for good, and the
    gradient at that weight is 0.

    Args:
        q, k: (B, T, H, K), real. The scale of q is the model's.
        v: (B, T, H, V), real.
        log_f: log of the forget gate (B, T, H), ≤ 0, -inf forgets all earlier steps; None is no gate.
        initial_state: the cache of S steps (B, S, H, K + V), with log_f (B, S, H, K + V + 1); None is an
            empty one.

    Returns:
        o (B, T, H, V) in the dtype of v; and the cache of S + T steps. Without a forget gate it has the dtype
        of k and v, since nothing accumulates in it; with one, float32 or wider.

    Raises:
        UsageError: the cache has another number of channels.
    """
    check(k, v, log_f, initial_state)
    B, T, H, K = q.shape
    wide = torch.float32
    for operand in (q, k, v, log_f):
        wide = wide if operand is None else torch.promote_types(wide, operand.dtype)
    S = 0 if initial_state is None else initial_state.shape[1]
    keys, values, log_weight = k.to(wide), v.to(wide), q.new_zeros(B, H, S, dtype=wide)
    if initial_state is not None:
        past = parted(initial_state.to(wide), K, v.shape[-1])
        keys, values = torch.cat([past[0], keys], dim=1), torch.cat([past[1], values], dim=1)
        if log_f is not None:
            log_weight = log_weights_of(initial_state[..., -1].to(wide)).mT
    place = torch.arange(S + T, device=q.device)
    if log_f is None:
        biases = log_weight.new_zeros(T, S + T).masked_fill(place > place[S:].unsqueeze(-1), -math.inf)
    else:
        later = log_weight.new_full((B, H, T), -math.inf)
        log_weight, rows = torch.cat([log_weight, later], dim=-1), []
        for n in range(T):  # the log weights of all keys, as the query of step n sees them
            log_weight = log_weight + log_f[:, n].to(wide).unsqueeze(-1)
            log_weight = log_weight.masked_fill(place == S + n, 0)
            rows.append(log_weight)
        biases = torch.stack(rows, dim=-2)
    q, keys, values = (x.transpose(1, 2) for x in (q.to(wide), keys, values))  # (B, H, steps, ·)
    weights = torch.softmax(q @ keys.mT + biases, dim=-1)
    output = (weights @ values).transpose(1, 2)
    weight = None if log_f is None else torch.exp(log_weight).mT
    return output.to(v.dtype), joined(k, v, initial_state, weight)
