"""Closed-form answers of softmax attention (docs/recurrences.md#analytic-cases)."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from ssmperf.authoring import analytic

B, T, H, K, V = 2, 37, 2, 3, 4
SOURCE = "docs/recurrences.md#analytic-cases"
OVERWHELMING = 800.0  # a score beside which the weights of all others are exactly 0

Answer = tuple[dict[str, Tensor], Tensor, Tensor]


def noise(*size: int, seed: int = 0) -> Tensor:
    """Draw standard normals, the same in every call."""
    return torch.randn(*size, generator=Generator().manual_seed(seed), dtype=torch.float64)


def cached(k: Tensor, v: Tensor, weight: Tensor | None = None) -> Tensor:
    """Form the cache of keys, values and weights (B, T, H)."""
    parts = [k, v] if weight is None else [k, v, weight.unsqueeze(-1)]
    return torch.cat(parts, dim=-1)


@analytic("softmax_attention", name="queries_of_0_average", source=SOURCE)
def average() -> Answer:
    """All scores are 0: o_n is the mean of the values so far."""
    k, v = noise(B, T, H, K), noise(B, T, H, V, seed=1)
    mean = v.cumsum(1) / torch.arange(1, T + 1).view(T, 1, 1)
    return {"q": torch.zeros_like(k), "k": k, "v": v}, mean, cached(k, v)


@analytic("softmax_attention", name="an_overwhelming_key_picks_its_value", source=SOURCE)
def pick() -> Answer:
    """A key far above all others is the only one that is read, from its step on; before it, the mean is."""
    place = 20
    k, v = torch.zeros(B, T, H, K, dtype=torch.float64), noise(B, T, H, V)
    k[:, place, :, 0] = OVERWHELMING
    q = torch.zeros_like(k)
    q[..., 0] = 1
    output = v.cumsum(1) / torch.arange(1, T + 1).view(T, 1, 1)
    output[:, place:] = v[:, place : place + 1]
    return {"q": q, "k": k, "v": v}, output, cached(k, v)


@analytic("softmax_attention", name="an_impulse_is_forgotten_as_a_geometric_share", source=SOURCE)
def impulse() -> Answer:
    """Under a constant gate f, with equal scores, the first value's share is f^(n−1) (1 − f) / (1 − fⁿ)."""
    f = 0.8
    k, v = noise(B, T, H, K), torch.zeros(B, T, H, V, dtype=torch.float64)
    v[:, 0] = 1
    n = torch.arange(1, T + 1, dtype=torch.float64)
    share = f ** (n - 1) * (1 - f) / (1 - f**n)
    log_f = torch.full((B, T, H), math.log(f), dtype=torch.float64)
    weight = (f ** (T - n)).view(1, T, 1).expand(B, T, H)
    output = share.view(1, T, 1, 1).expand(B, T, H, V).clone()
    return {"q": torch.zeros_like(k), "k": k, "v": v, "log_f": log_f}, output, cached(k, v, weight)


@analytic("softmax_attention", name="resets_everywhere_leave_the_present", source=SOURCE)
def resets() -> Answer:
    """A gate of 0 at every step gives o = v, and a cache of which only the last step counts."""
    q, k, v = noise(B, T, H, K), noise(B, T, H, K, seed=1), noise(B, T, H, V, seed=2)
    log_f = torch.full((B, T, H), -math.inf, dtype=torch.float64)
    weight = torch.zeros(B, T, H, dtype=torch.float64)
    weight[:, -1] = 1
    return {"q": q, "k": k, "v": v, "log_f": log_f}, v, cached(k, v, weight)


@analytic("softmax_attention", name="a_cache_counts_by_its_weights", source=SOURCE)
def weighted() -> Answer:
    """With equal scores, o is the mean of the cached values by their weights and of the new ones."""
    k, v, past = noise(B, T, H, K), noise(B, T, H, V, seed=1), noise(B, 9, H, K + V, seed=2)
    weight = torch.linspace(0, 1, 9, dtype=torch.float64).view(1, 9, 1, 1).expand(B, 9, H, 1)
    cache = torch.cat([past, weight], dim=-1)
    total = (weight * past[..., K:]).sum(1, keepdim=True) + v.cumsum(1)
    output = total / (weight.sum(1, keepdim=True) + torch.arange(1, T + 1).view(T, 1, 1))
    operands = {"q": torch.zeros_like(k), "k": k, "v": v, "log_f": torch.zeros(B, T, H, dtype=torch.float64)}
    after = torch.cat([cache, cached(k, v, torch.ones(B, T, H, dtype=torch.float64))], dim=1)
    return {**operands, "initial_state": cache}, output, after
