"""Closed-form answers of linear attention: slot memories, resets, and a ring of phases."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import analytic

SOURCE = "docs/recurrences.md#analytic-cases"
SLOTS = torch.tensor([0, 2, 0, 1, 2, 2, 0, 1, 3, 0, 2, 1])  # the slot that each step writes and reads
B, T, H, K, V = 2, len(SLOTS), 2, 4, 3

Answer = tuple[dict[str, Any], Tensor, Tensor]


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slot_memory(decay: Tensor) -> Answer:
    """One-hot keys and queries: slots sum their writes, decay by (V,) per step, and are read when written."""
    v = normal(B, T, H, V)
    address = functional.one_hot(SLOTS, K).double()
    age = torch.arange(T).view(T, 1) - torch.arange(T)
    kept = torch.where(age.unsqueeze(-1) >= 0, decay ** age.clamp(min=0).unsqueeze(-1), 0)  # (t, s, V)
    same = (SLOTS.view(T, 1) == SLOTS).double()
    output = torch.einsum("ts,tsv,bshv->bthv", same, kept, v)
    final = torch.einsum("sk,sv,bshv->bhkv", address, kept[-1], v)
    keys = address.view(1, T, 1, K).expand(B, T, H, K).clone()
    return {"q": keys, "k": keys.clone(), "v": v}, output, final


@analytic("linear_attention", name="slots", source=SOURCE)
def slots() -> Answer:
    """Without gates, slot j of the state holds the sum of all values written to it."""
    return slot_memory(torch.ones(V, dtype=torch.float64))


@analytic("linear_attention", name="decayed_slots", source=SOURCE)
def decayed_slots() -> Answer:
    """With gate ½, a value written n steps ago has weight 2⁻ⁿ."""
    operands, output, final = slot_memory(torch.full((V,), 0.5, dtype=torch.float64))
    return {**operands, "log_a": torch.full((H,), math.log(0.5), dtype=torch.float64)}, output, final


@analytic("linear_attention", name="slots_gated_on_both_sides", source=SOURCE)
def slots_gated_on_both_sides() -> Answer:
    """With key gate ½ and value gates β_v, value channel v decays by β_v/2 per step."""
    beta = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    operands, output, final = slot_memory(beta / 2)
    gates = {
        "log_a": torch.full((B, T, H, K), math.log(0.5), dtype=torch.float64),
        "log_b": torch.log(beta).expand(B, T, H, V).clone(),
    }
    return {**operands, **gates}, output, final


@analytic("linear_attention", name="slots_before_the_write", source=SOURCE)
def slots_before_the_write() -> Answer:
    """Without a gate, a read before the write with a bonus of 1 equals a read after the write."""
    operands, output, final = slot_memory(torch.ones(V, dtype=torch.float64))
    return {**operands, "bonus": torch.ones(H, K, dtype=torch.float64), "read": "pre"}, output, final


@analytic("linear_attention", name="resets", source=SOURCE)
def resets() -> Answer:
    """A reset at every even step reads (q_t·k_t)v_t; the step after it adds (q_t·k_{t−1})v_{t−1}."""
    q, k, v = normal(B, T, H, K), normal(B, T, H, K, seed=1), normal(B, T, H, V, seed=2)
    log_a = torch.zeros(B, T, H, K, dtype=torch.float64)
    log_a[:, ::2] = -math.inf
    write = torch.einsum("bthk,bthv->bthkv", k, v)
    state = write.clone()
    state[:, 1::2] += write[:, ::2]
    operands = {"q": q, "k": k, "v": v, "log_a": log_a, "initial_state": normal(B, H, K, V, seed=3)}
    return operands, torch.einsum("bthkv,bthk->bthv", state, q), state[:, -1]


@analytic("linear_attention", name="ring", source=SOURCE)
def ring() -> Answer:
    """Key channels rotate by the K-th roots of unity: Σ_c exp(2πic(t−s)/K) is K if K divides t − s, else 0.

    With k = q = 1 the output is K Σ v_s over those s, and the state a Fourier transform of v.
    """
    v = normal(B, T, H, V)
    ones = torch.ones(B, T, H, K, dtype=torch.float64)
    phase = (2 * math.pi / K * torch.arange(K, dtype=torch.float64)).expand(H, K).clone()
    age = torch.arange(T).view(T, 1) - torch.arange(T)
    recalled = ((age >= 0) & (age % K == 0)).double() * K
    fractions = torch.outer(T - 1 - torch.arange(T), torch.arange(K)) % K
    turns = torch.polar(torch.ones(T, K, dtype=torch.float64), fractions.double() * (2 * math.pi / K))
    output = torch.einsum("ts,bshv->bthv", recalled, v)
    final = torch.einsum("sk,bshv->bhkv", turns, v.to(turns.dtype))
    return {"q": ones, "k": ones.clone(), "v": v, "phase": phase}, output, final
