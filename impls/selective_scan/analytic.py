"""Cases of selective_scan whose answers are known in closed form, all in float64.

See docs/recurrences.md#analytic-cases.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import analytic

Answer = tuple[dict[str, Any], Tensor, Tensor]
T, D, N = 37, 3, 4


def _normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _constant(row: Tensor) -> Tensor:
    """Repeat a row over time, as (1, T, row)."""
    return row.expand(1, T, -1).clone()


def _counted(first: int = 1) -> Tensor:
    """Count first, first + 1, ... as (1, T, 1, 1)."""
    return torch.arange(first, first + T, dtype=torch.float64).view(1, T, 1, 1)


@analytic(
    "selective_scan", name="geometric_sums", source="S_t = (1 − c^t) / (1 − c) x kᵀ of constant x, k, c"
)
def geometric_sums() -> Answer:
    c = torch.linspace(0.1, 0.99, D * N, dtype=torch.float64).view(D, N)
    x, k, q = _normal(D, seed=1), _normal(N, seed=2), _normal(N, seed=3)
    states = (1 - c ** _counted()) / (1 - c) * x.unsqueeze(-1) * k
    operands = {"x": _constant(x), "delta": None, "k": _constant(k), "q": _constant(q), "A": c.log()}
    return {**operands, "gate": "const"}, states @ q, states[:, -1]


@analytic(
    "selective_scan",
    name="held_input",
    source="ZOH solves S' = A S + x kᵀ exactly for constant x, k, however the time is cut into steps",
)
def held_input() -> Answer:
    A = -torch.logspace(-9, 1, D * N, dtype=torch.float64).view(D, N)
    A[0, 0] = 0
    delta = _normal(1, T, D).abs()
    x, k, q = _normal(D, seed=1), _normal(N, seed=2), _normal(N, seed=3)
    start = _normal(1, D, N, seed=4)
    time = delta.cumsum(1).unsqueeze(-1)  # (1, T, D, 1)
    away = torch.where(A == 0, 1, A)
    held = torch.where(A == 0, time, torch.expm1(time * A) / away)
    states = torch.exp(time * A) * start.unsqueeze(1) + held * x.unsqueeze(-1) * k
    operands = {"x": _constant(x), "delta": delta, "k": _constant(k), "q": _constant(q), "A": A}
    return {**operands, "initial_state": start, "discretization": "zoh"}, states @ q, states[:, -1]


@analytic(
    "selective_scan",
    name="running_means",
    source="1 − Δ k² with Δ = 1/n and one-hot k: each slot is the mean of its n inputs, the first a reset",
)
def running_means() -> Answer:
    x, q = _normal(1, T, D), _normal(N, seed=1)
    slot = torch.arange(T) % N
    k = torch.eye(N, dtype=torch.float64)[slot].unsqueeze(0)
    delta = (1 / (1 + torch.arange(T) // N).double()).view(1, T, 1).expand(1, T, D).clone()
    start = _normal(1, D, N, seed=2)
    states = torch.empty(1, T, D, N, dtype=torch.float64)
    for t in range(T):
        for n in range(N):
            seen = x[:, : t + 1][:, slot[: t + 1] == n]
            states[:, t, :, n] = seen.mean(1) if seen.shape[1] else start[:, :, n]
    operands = {"x": x, "delta": delta, "k": k, "q": _constant(q), "gate": "implicit"}
    return {**operands, "initial_state": start}, states @ q, states[:, -1]


@analytic("selective_scan", name="half_life", source="σ(0)^(1/τ) halves a state in τ steps")
def half_life() -> Answer:
    tau = 8.0
    start, q = _normal(1, D, N), _normal(N, seed=1)
    states = torch.exp2(-_counted() / tau) * start.unsqueeze(1)
    zeros = torch.zeros(1, T, D, dtype=torch.float64)
    operands = {"x": zeros, "delta": None, "k": _constant(q), "q": _constant(q), "A": _normal(D, N, seed=2)}
    return (
        {**operands, "initial_state": start, "gate": "sigmoid", "g": zeros.clone(), "tau": tau},
        states @ q,
        states[:, -1],
    )


@analytic(
    "selective_scan", name="rotation", source="A = iω, Δ = 1: an impulse answers with 2 Σ q k cos(ω(t − 1))"
)
def rotation() -> Answer:
    omega = (2 * math.pi / T * torch.arange(D * N, dtype=torch.float64)).view(D, N)
    x = torch.zeros(1, T, D, dtype=torch.float64)
    x[:, 0] = 1
    k, q = _normal(N, seed=1), _normal(N, seed=2)
    angle = omega * _counted(0)
    A = torch.complex(torch.zeros_like(omega), omega)
    operands = {"x": x, "delta": torch.ones_like(x), "k": _constant(k), "q": _constant(q), "A": A}
    return operands, (2 * k * torch.cos(angle)) @ q, torch.polar(k.expand(angle.shape), angle)[:, -1]


@analytic("selective_scan", name="resets_everywhere", source="a gate of 0 leaves o_t = (q_t · k_t) x_t")
def resets_everywhere() -> Answer:
    T = 5  # in logs every reset adds to the span
    x, k, q = _normal(1, T, D), _normal(1, T, N, seed=1), _normal(1, T, N, seed=2)
    A = torch.full((D, N), -math.inf, dtype=torch.float64)
    operands = {"x": x, "delta": None, "k": k, "q": q, "A": A, "initial_state": _normal(1, D, N, seed=3)}
    output = (q * k).sum(-1, keepdim=True) * x
    return {**operands, "gate": "const"}, output, x[:, -1].unsqueeze(-1) * k[:, -1].unsqueeze(-2)
