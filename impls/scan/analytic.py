"""Closed-form answers of the scan: sums, geometric series, averages, Fourier transforms, rotations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf.authoring import analytic

SOURCE = "docs/recurrences.md#analytic-cases"
B, T, C = 2, 40, 5

Answer = tuple[dict[str, Tensor], Tensor, Tensor]


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def constant_gate(value: float) -> Tensor:
    return torch.full((C,), math.log(value) if value else -math.inf, dtype=torch.float64)


@analytic("scan", name="gate_one", source=SOURCE)
def gate_one() -> Answer:
    """a = 1: h_t = h_0 + Σ_{s≤t} b_s."""
    b, h_0 = normal(B, T, C), normal(B, C, seed=1)
    h = h_0.unsqueeze(1) + b.cumsum(1)
    return {"log_a": constant_gate(1), "b": b, "initial_state": h_0}, h, h[:, -1]


@analytic("scan", name="gate_zero", source=SOURCE)
def gate_zero() -> Answer:
    """a = 0 at every step: h_t = b_t, whatever the earlier states."""
    b = normal(B, T, C)
    log_a = constant_gate(0).expand(B, T, C).clone()
    return {"log_a": log_a, "b": b, "initial_state": normal(B, C, seed=1)}, b, b[:, -1]


@analytic("scan", name="geometric", source=SOURCE)
def geometric() -> Answer:
    """a = c, b = 1: h_t = (1 − c^t)/(1 − c)."""
    c, t = 0.9, torch.arange(1, T + 1, dtype=torch.float64)
    h = ((1 - c**t) / (1 - c)).view(1, T, 1).expand(B, T, C)
    return {"log_a": constant_gate(c), "b": torch.ones(B, T, C, dtype=torch.float64)}, h, h[:, -1]


@analytic("scan", name="impulse", source=SOURCE)
def impulse() -> Answer:
    """a = c and an impulse at the first step: h_t = c^(t−1)."""
    c, b = 0.8, torch.zeros(B, T, C, dtype=torch.float64)
    b[:, 0] = 1
    h = (c ** torch.arange(T, dtype=torch.float64)).view(1, T, 1).expand(B, T, C)
    return {"log_a": constant_gate(c), "b": b}, h, h[:, -1]


@analytic("scan", name="average", source=SOURCE)
def average() -> Answer:
    """b = (1 − a)x with x constant: h_t = x(1 − Π a), which approaches x from 0 and never exceeds it."""
    log_a, x = -normal(B, T, C).exp(), 3.0
    h = -x * torch.expm1(log_a.cumsum(1))
    return {"log_a": log_a, "b": -x * torch.expm1(log_a)}, h, h[:, -1]


@analytic("scan", name="fourier", source=SOURCE)
def fourier() -> Answer:
    """a_m = exp(2πim/T): exp(2πim/T) h_T is the discrete Fourier transform of b at frequency m.

    Up to a rotation, h_t is the transform of the first t inputs, padded with zeros.
    """
    b = normal(T)
    frequency = 2 * math.pi / T * torch.arange(T, dtype=torch.float64)
    prefixes = torch.fft.fft(torch.tril(b.expand(T, T)))  # (t, m)
    turns = torch.polar(torch.ones(T, T, dtype=torch.float64), torch.outer(torch.arange(T), frequency))
    h = (prefixes * turns).unsqueeze(0)
    operands = {
        "log_a": torch.zeros(T, dtype=torch.float64),
        "b": b.view(1, T, 1).expand(1, T, T).clone(),
        "phase": frequency,
    }
    return operands, h, h[:, -1]


@analytic("scan", name="rotation", source=SOURCE)
def rotation() -> Answer:
    """|a| = 1 and b = 0: h_t = exp(iθt) h_0, which keeps the magnitude of h_0."""
    theta = 2 * math.pi * torch.arange(1, C + 1, dtype=torch.float64) / 7
    h_0 = torch.complex(normal(B, C), normal(B, C, seed=1))
    sevenths = torch.outer(torch.arange(1, T + 1), torch.arange(1, C + 1)) % 7
    turns = torch.polar(torch.ones(T, C, dtype=torch.float64), sevenths.double() * (2 * math.pi / 7))
    h = turns * h_0.unsqueeze(1)
    operands = {
        "log_a": torch.zeros(C, dtype=torch.float64),
        "b": torch.zeros(B, T, C, dtype=torch.float64),
        "initial_state": h_0,
        "phase": theta,
    }
    return operands, h, h[:, -1]
