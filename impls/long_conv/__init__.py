"""Causal convolution with a kernel per channel, y_t = Σ_{j < min(t, L)} K_j u_{t−j}.

See docs/recurrences.md#long_conv.

It is time-invariant and has no state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, log_gates, recurrence

from .._autocast import without_autocast

PRESETS = {
    "smoke": [{"B": 2, "C": 16}],
    "standard": [{"B": 8, "C": 1024}],
    "long": [{"B": 4, "T": 16384, "C": 1024}, {"B": 1, "C": 512}],
}
OPERAND_SHAPES = {
    "u": "B T C",
    "kernel": "C L",
}


def transform_flops(length: int) -> float:
    """Count the operations of one Fourier transform of a real signal."""
    return 2.5 * length * math.log2(length)


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: operands are read once, results written once; operations are those of padded transforms.

    Backward transforms the incoming gradient, and transforms the gradients of inputs and kernel back.
    """
    B, T, C = (shape[letter] for letter in "BTC")
    u, kernel = specs["u"].nbytes, specs["kernel"].nbytes
    padded, bins = 2 * T, T + 1
    forward = Cost(
        2 * u + kernel,
        C * ((2 * B + 1) * transform_flops(padded) + 6 * B * bins),
        depth=T,
    )
    backward = Cost(
        3 * u + 2 * kernel,
        C * ((2 * B + 1) * transform_flops(padded) + 14 * B * bins),
        depth=T,
    )
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "none"
) -> dict[str, Tensor | None]:
    """Draw float32 operands with a kernel as long as the input, K_j = c_j a^j.

    c and u are standard normal, and each channel's constant decay a follows the regime.
    """
    B, T, C = (shape[letter] for letter in "BTC")
    lags = torch.arange(T, device=generator.device)
    log_decay = log_gates(regime, (1, C), generator).mT
    envelope = torch.exp(torch.where(lags > 0, lags * log_decay, 0))  # -inf · 0 is NaN
    return {
        "u": torch.randn(B, T, C, generator=generator, device=generator.device),
        "kernel": envelope * torch.randn(C, T, generator=generator, device=generator.device),
    }


@recurrence(
    "long_conv",
    family="F5 time-invariant convolution",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("kernel",),
    gate_kinds=("none",),
    sample=sample,
    decay_span=lambda operands: 0.0,
    linear=("u",),
)
@without_autocast
def long_conv(u: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
    """y_t = Σ_{j < min(t, L)} K_j u_{t−j} with t = 1..T, one lag after another.

    Args:
        u: input (B, T, C), real.
        kernel: K (C, L), L ≥ 1, real. Like a gate, it is float32 or wider; L and T may differ.

    Returns:
        y (B, T, C) in the dtype of u, summed in float32 or wider; and None, as there is no state.
    """
    wide = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    T, inputs = u.shape[1], u.to(wide)
    y = torch.zeros_like(inputs)
    for lag, coefficient in enumerate(kernel.to(wide).unbind(-1)[:T]):
        y[:, lag:].addcmul_(coefficient, inputs[:, : T - lag])
    return y.to(u.dtype), None
