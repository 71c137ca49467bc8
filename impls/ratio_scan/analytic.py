"""Closed-form answers of the ratio scan (docs/recurrences.md#rwkv and #analytic-cases)."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from ssmperf.authoring import analytic

B, T, C = 2, 37, 3
SOURCE = "docs/recurrences.md#rwkv and #analytic-cases"

Answer = tuple[dict[str, Tensor], Tensor, Tensor]


def noise(*size: int) -> Tensor:
    """Draw standard normals, the same in every call."""
    return torch.randn(*size, generator=Generator().manual_seed(0), dtype=torch.float64)


def numbers() -> Tensor:
    """Count 1..T as (T, 1)."""
    return torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)


def state(p: Tensor, q: Tensor, m: Tensor) -> Tensor:
    """Stack rows that broadcast to (B, C) into a state (B, 3, C)."""
    return torch.stack([part.expand(B, C) for part in (p, q, m)], dim=1)


@analytic("ratio_scan", name="equal_keys_without_decay_give_the_running_mean", source=SOURCE)
def running_mean() -> Answer:
    """log_w = 0 and k = κ give y_t = mean of v_1..v_t, for any κ; P and Q sum in the scale e^κ."""
    v, key = noise(B, T, C), torch.tensor([-90.0, 0.5, 90.0], dtype=torch.float64)
    operands = {"log_w": torch.zeros(C, dtype=torch.float64), "k": key.expand(B, T, C).clone(), "v": v}
    final = state(v.sum(1), torch.tensor(float(T)).double(), key)
    return operands, v.cumsum(1) / numbers(), final


@analytic("ratio_scan", name="constant_values_are_their_own_mean", source=SOURCE)
def constant_values() -> Answer:
    """v = x gives y = x for any keys, decays and bonus: the weights sum to 1."""
    k, x, log_w = 3 * noise(B, T, C), noise(C), -noise(C).exp()
    operands = {"log_w": log_w, "k": k, "v": x.expand(B, T, C).clone(), "bonus": noise(C).flip(0)}
    exponents = k + log_w * (T - numbers())
    m = exponents.amax(1)
    q = torch.exp(exponents - m.unsqueeze(1)).sum(1)
    return operands, x.expand(B, T, C).clone(), state(x * q, q, m)


@analytic("ratio_scan", name="resets_leave_only_the_present", source=SOURCE)
def resets() -> Answer:
    """log_w = −∞ gives y = v, and a state that holds only the last step."""
    k, v = noise(B, T, C), noise(B, T, C).flip(1)
    operands = {"log_w": torch.full((C,), -math.inf, dtype=torch.float64), "k": k, "v": v}
    return operands, v, state(v[:, -1], torch.ones(C, dtype=torch.float64), k[:, -1])


@analytic("ratio_scan", name="impulse_decays_as_a_geometric_share", source=SOURCE)
def impulse() -> Answer:
    """k = 0, a decay c and v = (1, 0, 0, ...) give y_t = c^{t−1} (1 − c)/(1 − c^t)."""
    c = torch.tensor([0.3, 0.9, 0.99], dtype=torch.float64)
    k, v = torch.zeros(B, T, C, dtype=torch.float64), torch.zeros(B, T, C, dtype=torch.float64)
    v[:, 0] = 1
    y = c ** (numbers() - 1) * (1 - c) / (1 - c ** numbers())
    final = state(c ** (T - 1), (1 - c**T) / (1 - c), torch.zeros(C, dtype=torch.float64))
    return {"log_w": c.log(), "k": k, "v": v}, y.expand(B, T, C).clone(), final


@analytic("ratio_scan", name="bonus_weighs_the_present_against_the_past", source=SOURCE)
def bonus() -> Answer:
    """log_w = 0 and k = 0 give y_t = (v_1 + ... + v_{t−1} + e^u v_t)/(t − 1 + e^u)."""
    v, u = noise(B, T, C), torch.tensor([-40.0, 0.3, 40.0], dtype=torch.float64)
    zero = torch.zeros(C, dtype=torch.float64)
    operands = {"log_w": zero, "k": torch.zeros(B, T, C, dtype=torch.float64), "v": v, "bonus": u}
    before = v.cumsum(1) - v
    y = (before * torch.exp(-u) + v) / ((numbers() - 1) * torch.exp(-u) + 1)
    return operands, y, state(v.sum(1), torch.tensor(float(T)).double(), zero)


@analytic("ratio_scan", name="overwhelming_keys_pick_their_values", source=SOURCE)
def overwhelming() -> Answer:
    """Without decay, keys that grow by 100 per step give y = v, and falling ones y = v_1."""
    v = noise(B, T, 2).repeat_interleave(2, dim=-1)[..., :C]
    slope = torch.tensor([100.0, -100.0, 100.0], dtype=torch.float64)
    k = (slope * numbers()).expand(B, T, C).clone()
    rising = slope > 0
    y = torch.where(rising, v, v[:, :1])
    m = torch.where(rising, k[:, -1], k[:, 0])
    operands = {"log_w": torch.zeros(C, dtype=torch.float64), "k": k, "v": v}
    return operands, y, state(y[:, -1], torch.ones(C, dtype=torch.float64), m)
