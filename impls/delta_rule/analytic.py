"""Closed-form answers of the delta rule (docs/recurrences.md#analytic-cases)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import analytic

Answer = tuple[dict[str, Any], Tensor, Tensor | None]
SOURCE = "docs/recurrences.md#analytic-cases"
B, H, K, V = 2, 2, 8, 3


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def basis() -> Tensor:
    """Draw K orthonormal keys (B, K steps, H, K), different ones per batch element and head."""
    keys: Tensor = torch.linalg.qr(normal(B, H, K, K, seed=0)).Q.transpose(1, 2).contiguous()
    return keys


@analytic("delta_rule", name="orthonormal_keys_recall_their_values", source=SOURCE)
def orthonormal_keys_recall_their_values() -> Answer:
    """K writes with β = 1, then K steps with β = 0 that read each key: o is the value written under it."""
    keys, values = basis(), normal(B, K, H, V, seed=1)
    nothing = torch.zeros_like(keys)
    writing = torch.ones(B, K, H, dtype=torch.float64)
    operands = {
        "q": torch.cat([nothing, keys], dim=1),
        "k": torch.cat([keys, keys.flip(1)], dim=1),
        "v": torch.cat([values, normal(B, K, H, V, seed=2)], dim=1),
        "beta": torch.cat([writing, torch.zeros_like(writing)], dim=1),
    }
    state = torch.einsum("bthk,bthv->bhkv", keys, values)
    return operands, torch.cat([torch.zeros_like(values), values], dim=1), state


@analytic("delta_rule", name="the_last_write_wins", source=SOURCE)
def the_last_write_wins() -> Answer:
    """β = 1 and keys written repeatedly: reading a key right after its write gives its newest value."""
    rounds = 9
    keys = basis().repeat(1, rounds, 1, 1)
    values = normal(B, rounds * K, H, V, seed=1)
    operands = {"q": keys, "k": keys, "v": values, "beta": torch.ones(B, rounds * K, H, dtype=torch.float64)}
    state = torch.einsum("bthk,bthv->bhkv", keys[:, -K:], values[:, -K:])
    return operands, values, state


@analytic("delta_rule", name="no_rate_no_change", source=SOURCE)
def no_rate_no_change() -> Answer:
    """β = 0: the state is S_0 times the gates so far."""
    T = 70
    state, q = normal(B, H, K, V, seed=1), normal(B, T, H, K, seed=2)
    operands = {
        "q": q,
        "k": normal(B, T, H, K, seed=3),
        "v": normal(B, T, H, V, seed=4),
        "beta": torch.zeros(B, T, H, dtype=torch.float64),
        "log_a": torch.full((H,), math.log(0.75), dtype=torch.float64),
        "initial_state": state,
    }
    decay = 0.75 ** torch.arange(1, T + 1, dtype=torch.float64)
    output = torch.einsum("t,bhkv,bthk->bthv", decay, state, q)
    return operands, output, 0.75**T * state


@analytic("delta_rule", name="a_rate_of_two_reflects", source="I − 2kkᵀ is a Householder reflection")
def a_rate_of_two_reflects() -> Answer:
    """β = 2, v = 0 and one unit key: the state's component along it changes sign at every step."""
    T = 65
    k = functional.normalize(normal(B, 1, H, K, seed=1), dim=-1)
    state, q = normal(B, H, K, V, seed=2), normal(B, T, H, K, seed=3)
    operands = {
        "q": q,
        "k": k.expand(B, T, H, K).contiguous(),
        "v": torch.zeros(B, T, H, V, dtype=torch.float64),
        "beta": torch.full((B, T, H), 2.0, dtype=torch.float64),
        "initial_state": state,
    }
    along = torch.einsum("bhk,bhl,bhlv->bhkv", k[:, 0], k[:, 0], state)
    flipped = 2.0 * (torch.arange(1, T + 1, dtype=torch.float64) % 2)
    output = torch.einsum("bhkv,bthk->bthv", state, q)
    output = output - flipped.view(1, T, 1, 1) * torch.einsum("bhkv,bthk->bthv", along, q)
    return operands, output, state - 2 * along


@analytic("delta_rule", name="a_reset_forgets", source=SOURCE)
def a_reset_forgets() -> Answer:
    """α = 0 and β|k|² = 1 at every step: o_t = β_t (q_t · k_t) v_t, whatever the state was."""
    T = 70
    q, k, v = normal(B, T, H, K, seed=1), normal(B, T, H, K, seed=2), normal(B, T, H, V, seed=3)
    beta = 1 / k.square().sum(-1)
    operands = {
        "q": q,
        "k": k,
        "v": v,
        "beta": beta,
        "log_a": torch.full((B, T, H, K), -math.inf, dtype=torch.float64),
        "initial_state": normal(B, H, K, V, seed=4),
    }
    output = (beta * (q * k).sum(-1)).unsqueeze(-1) * v
    state = torch.einsum("bh,bhk,bhv->bhkv", beta[:, -1], k[:, -1], v[:, -1])
    return operands, output, state


@analytic("delta_rule", name="powers_of_a_rank_one_term", source="(I + c r rᵀ)ᵗ = I + ((1 + c)ᵗ − 1) r rᵀ")
def powers_of_a_rank_one_term() -> Answer:
    """No gate, no writes, p = c r with unit r: the part of S_0 along r grows by 1 + c at each step."""
    T, c = 70, -0.1
    r = functional.normalize(normal(B, 1, H, K, seed=1), dim=-1).expand(B, T, H, K).contiguous()
    state, q = normal(B, H, K, V, seed=2), normal(B, T, H, K, seed=3)
    operands = {
        "q": q,
        "k": torch.zeros(B, T, H, K, dtype=torch.float64),
        "v": normal(B, T, H, V, seed=4),
        "beta": None,
        "p": c * r,
        "r": r,
        "initial_state": state,
    }
    along = torch.einsum("bhk,bhl,bhlv->bhkv", r[:, 0], r[:, 0], state)
    factor = (1 + c) ** torch.arange(1, T + 1, dtype=torch.float64) - 1
    output = torch.einsum("bhkv,bthk->bthv", state, q)
    output = output + factor.view(1, T, 1, 1) * torch.einsum("bhkv,bthk->bthv", along, q)
    return operands, output, state + float(factor[-1]) * along
