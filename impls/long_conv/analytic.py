"""Closed-form answers of convolutions (docs/recurrences.md#analytic-cases)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ssmperf.authoring import analytic

B, T, C = 2, 37, 3
SOURCE = "docs/recurrences.md#analytic-cases"


def noise(*size: int) -> Tensor:
    """Draw standard normals, the same in every call."""
    return torch.randn(*size, generator=Generator().manual_seed(0), dtype=torch.float64)


@analytic("long_conv", name="impulse_kernel_is_the_identity", source=SOURCE)
def impulse_kernel() -> tuple[dict[str, Tensor], Tensor, None]:
    """K = (1, 0, 0, ...) gives y = u."""
    u, kernel = noise(B, T, C), torch.zeros(C, T, dtype=torch.float64)
    kernel[:, 0] = 1
    return {"u": u, "kernel": kernel}, u, None


@analytic("long_conv", name="kernel_of_ones_is_a_cumulative_sum", source=SOURCE)
def kernel_of_ones() -> tuple[dict[str, Tensor], Tensor, None]:
    """K = 1 gives y_t = Σ_{s ≤ t} u_s."""
    u = noise(B, T, C)
    return {"u": u, "kernel": torch.ones(C, T, dtype=torch.float64)}, u.cumsum(1), None


@analytic("long_conv", name="late_impulse_is_a_delay", source=SOURCE)
def late_impulse() -> tuple[dict[str, Tensor], Tensor, None]:
    """K_j = 1 at a single lag d gives y_t = u_{t−d}; with too little padding it would wrap around."""
    u, kernel = noise(B, T, C), torch.zeros(C, T, dtype=torch.float64)
    kernel[:, T - 5] = 1
    return {"u": u, "kernel": kernel}, torch.cat([torch.zeros_like(u[:, :-5]), u[:, :5]], dim=1), None


@analytic("long_conv", name="impulse_input_gives_the_kernel", source=SOURCE)
def impulse_input() -> tuple[dict[str, Tensor], Tensor, None]:
    """u = (1, 0, 0, ...) gives y = K, and zeros beyond a shorter kernel."""
    u, kernel = torch.zeros(B, T, C, dtype=torch.float64), noise(C, T - 10)
    u[:, 0] = 1
    y = torch.zeros_like(u)
    y[:, : T - 10] = kernel.mT
    return {"u": u, "kernel": kernel}, y, None
