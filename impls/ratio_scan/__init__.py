"""Ratio of two decaying sums with exponential keys, RWKV-4's wkv (docs/recurrences.md#rwkv).

P_t = w_t P_{t-1} + e^{k_t} v_t and Q_t = w_t Q_{t-1} + e^{k_t} with w_t = exp(log_w_t); y is P over Q.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, log_gates, recurrence

from .._autocast import without_autocast
from .common import EMPTY

PRESETS = {
    "smoke": [{"B": 2, "C": 64}],
    "standard": [{"B": 8, "C": 2048}],
    "long": [
        {"B": 8, "T": 8192, "C": 2048},
        {"B": 1, "C": 2048},
        {"B": 1, "T": 1048576, "C": 2048},
    ],
}
OPERAND_SHAPES = {
    "k": "B T C",
    "v": "B T C",
    "log_w": "broadcast B T C",
    "bonus": "C",
    "initial_state": "B 3 C",
}


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the kind: `const` (the same decay at every step) or `data`."""
    log_w = operands["log_w"]
    return "data" if log_w.dim() == 3 and log_w.shape[1] == operands["k"].shape[1] else "const"


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads k and v and writes y; backward reads k, v and dy and writes dk and dv.

    Decays and bonus are read, and in backward their gradients written. Adding two scaled pairs, in a step's
    write or in the read with a bonus, takes two exponentials, one of which is exp(0). Backward computes the
    states again and runs their adjoint.
    """
    elements = shape["B"] * shape["T"] * shape["C"]
    with_bonus = "bonus" in specs
    gates = specs["log_w"].nbytes + (specs["bonus"].nbytes if with_bonus else 0)
    k, v = specs["k"].nbytes, specs["v"].nbytes
    flops, special = (17 if with_bonus else 9) * elements, (2 if with_bonus else 1) * elements
    forward = Cost(gates + k + 2 * v, flops, special, shape["T"])
    backward = Cost(2 * gates + 2 * k + 3 * v, 3 * flops, 2 * special, shape["T"])
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "data"
) -> dict[str, Tensor | None]:
    """Draw float32 operands; decays follow a regime, whose decay of one step is used for a constant decay.

    Keys, values and the bonus are standard normal.
    """
    B, T, C = (shape[letter] for letter in "BTC")
    device = generator.device
    return {
        "log_w": log_gates(regime, (C,) if gate_kind == "const" else (B, T, C), generator),
        "k": torch.randn(B, T, C, generator=generator, device=device),
        "v": torch.randn(B, T, C, generator=generator, device=device),
        "bonus": torch.randn(C, generator=generator, device=device),
    }


def sample_state(operands: Mapping[str, Any], generator: Generator) -> Tensor:
    """Draw a state like that after a few steps: m standard normal, q in [1, 5), p = q times a normal."""
    k = operands["k"]
    wide = torch.promote_types(torch.promote_types(operands["log_w"].dtype, k.dtype), torch.float32)
    size, device = (k.shape[0], k.shape[2]), generator.device
    q = 1 + 4 * torch.rand(size, generator=generator, device=device)
    p = q * torch.randn(size, generator=generator, device=device)
    m = torch.randn(size, generator=generator, device=device)
    return torch.stack([p, q, m], dim=1).to(wide)


def decay_span(operands: Mapping[str, Any]) -> float:
    """Compute the largest Σ −log_w over time of any channel, without resets."""
    log_w, length = operands["log_w"].detach().double(), operands["k"].shape[1]
    finite = torch.where(torch.isinf(log_w), 0.0, -log_w)
    return float(finite.sum(1).max() if gate_kind(operands) == "data" else finite.max() * length)


@recurrence(
    "ratio_scan",
    family="F1 with a normalised, stabilised read",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("log_w", "bonus"),
    gate_kind=gate_kind,
    gate_kinds=("data", "const"),
    sample=sample,
    state_shape=lambda shape: (shape["B"], 3, shape["C"]),
    sample_state=sample_state,
    decay_span=decay_span,
    stepwise=True,
)
@without_autocast
def ratio_scan(
    log_w: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """y_t = P_t / Q_t, or (P_{t-1} + e^{u+k_t} v_t) / (Q_{t-1} + e^{u+k_t}) with a bonus u, step by step.

    The state holds p, q and an exponent m for P = e^m p and Q = e^m q, where m is the largest exponent of all
    contributions: m_t = max(m_{t-1} + log_w_t, k_t). So nothing overflows.

    m is a scale, and gradients treat it as constant: m of the initial state gets gradient 0, and a gradient
    at m of the final state has no effect. (p, q, m) and (c p, c q, m − log c) are the same state, so
    gradients that pass from one call to the next through p and q are exact.

    Args:
        log_w: log of the decay per step, ≤ 0; broadcasts to (B, T, C). RWKV-4's is (C,). -inf is a reset.
        k: keys (B, T, C), real and finite.
        v: values (B, T, C), real.
        initial_state: (B, 3, C), the rows p, q ≥ 0 and m. None is the empty state p = q = 0, m = −1e38. A
            state of zeros is empty, too, but at its scale m = 0 keys far below 0 underflow.
        bonus: u (C,). With a bonus, y_t reads the state before step t and step t with weight e^{u+k_t};
            without, it reads the state after step t.

    Returns:
        y (B, T, C) in the dtype of v, and the state after the last step (B, 3, C), float32 or wider.
    """
    tensors = (log_w, k, v)
    wide = torch.float32
    for tensor in tensors:
        wide = torch.promote_types(wide, tensor.dtype)
    if initial_state is None:
        p = q = k.new_zeros(k.shape[0], k.shape[2], dtype=wide)
        m = torch.full_like(p, EMPTY)
    else:
        p, q, m = initial_state.to(wide).unbind(1)
        m = m.detach()
    outputs = []
    steps = zip(
        log_w.to(wide).expand(k.shape).unbind(1), k.to(wide).unbind(1), v.to(wide).unbind(1), strict=True
    )
    for log_w_t, k_t, v_t in steps:
        if bonus is not None:
            own = bonus.to(wide) + k_t
            top = torch.maximum(m, own).detach()
            past, present = torch.exp(m - top), torch.exp(own - top)
            outputs.append((past * p + present * v_t) / (past * q + present))
        top = torch.maximum(m + log_w_t, k_t).detach()
        past, present = torch.exp(m + log_w_t - top), torch.exp(k_t - top)
        p, q, m = past * p + present * v_t, past * q + present, top
        if bonus is None:
            outputs.append(p / q)
    return torch.stack(outputs, dim=1).to(v.dtype), torch.stack([p, q, m], dim=1)
