"""Random operands of selective_scan whose gates follow a named regime, and the span of given gates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ssmperf import UnknownName
from ssmperf.authoring import Shape, log_gates, phases

from ._signature import HUGE, outer

GATE_KINDS = (
    "exp",
    "exp_zoh",
    "implicit",
    "sigmoid",
    "const",
    "exp_complex",
    "exp_zoh_complex",
    "const_complex",
)
TAU = 16.0
RESET_STEP = 3000.0  # times A ≤ -1/2 its exponential is 0 in every precision; float16 holds it
SATURATED = 30000.0  # likewise for the sigmoid of ± this times A ≥ 1/2, to the power 1/16
NO_GATE = -746.0  # the exponential of anything below is 0 in every precision


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "exp"
) -> dict[str, Tensor | Any]:
    """Draw random float32 operands whose gates follow a regime; q carries the scale N^-1/2.

    exp: `mamba` has Δ log-uniform in [1e-3, 1e-1] and A = −(1 .. N), `s4d` the same Δ and A = −1/2, `retnet`
        Δ = 1 and its constants as A, `ones` and `phase` such Δ and A = 0. Elsewhere −Δ is the regime's log
        gate of a channel and −A is uniform in [1/2, 3/2]; a reset has Δ so large that the gate is exactly 0,
        and its x is divided by that Δ.
    implicit: `longhorn` has standard normal k and Δ = β/(1 + β k·k) with β = σ(normal). Elsewhere 1 − Δ is
        the regime's gate of a channel, and k is ±1 or ±1/2, ±1 alone in steps with a reset: an exact 0.
    sigmoid: tau = 16, A uniform in [1/2, 3/2], and g of the channel such that the gate at A = 1 is the
        regime's; saturated, so exactly 0 or 1, where that is.
    const: A is the regime's log gates (D, N).
    sigmoid and const have Δ log-uniform in [1e-3, 1e-1] as input scale alone. A complex kind has a standard
    normal Im A beside it.

    Raises:
        UnknownName: no such regime or gate kind.
    """
    if gate_kind not in GATE_KINDS:
        raise UnknownName("gate kind", gate_kind, GATE_KINDS)
    B, T, D, N = (shape[letter] for letter in "BTDN")
    kind, _, rest = gate_kind.partition("_")

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=generator.device)

    operands: dict[str, Any] = {
        "x": normal(B, T, D),
        "delta": _step_sizes(B, T, D, generator),
        "k": normal(B, T, N),
        "q": normal(B, T, N) * N**-0.5,
        "gate": kind,
    }
    form = {"exp": _exp, "implicit": _implicit, "sigmoid": _sigmoid, "const": _const}[kind]
    operands.update(form(operands, regime, generator))
    if rest.endswith("complex"):
        operands["A"] = torch.complex(operands["A"], phases((D, N), generator))
    if rest.startswith("zoh"):
        operands["discretization"] = "zoh"
    return operands


def _exp(operands: Mapping[str, Any], regime: str, generator: Generator) -> dict[str, Any]:
    x, delta, N = operands["x"], operands["delta"], operands["k"].shape[2]
    D = x.shape[2]
    if regime == "mamba":
        return {"A": -torch.arange(1.0, N + 1, device=x.device).expand(D, N).clone()}
    if regime == "s4d":
        return {"A": torch.full((D, N), -0.5, device=x.device)}
    if regime in ("ones", "phase"):
        return {"A": torch.zeros(D, N, device=x.device)}
    if regime == "retnet":
        return {"A": log_gates(regime, (D, N), generator), "delta": torch.ones_like(delta)}
    log_gate = log_gates(regime, x.shape, generator)
    reset = torch.isinf(log_gate)
    return {
        "A": -_half_to_three_halves((D, N), generator),
        "delta": torch.where(reset, RESET_STEP, -log_gate),
        "x": torch.where(reset, x / RESET_STEP, x),
    }


def _implicit(operands: Mapping[str, Any], regime: str, generator: Generator) -> dict[str, Any]:
    x, k = operands["x"], operands["k"]
    if regime == "longhorn":
        beta = torch.sigmoid(torch.randn(x.shape, generator=generator, device=x.device))
        return {"delta": beta / (1 + beta * k.square().sum(-1, keepdim=True))}
    delta = -torch.expm1(log_gates(regime, x.shape, generator))
    halved = torch.rand(k.shape, generator=generator, device=x.device) < 0.25
    halved &= (delta < 1).all(-1, keepdim=True)
    return {"delta": delta, "k": torch.where(k < 0, -1.0, 1.0) * torch.where(halved, 0.5, 1.0)}


def _sigmoid(operands: Mapping[str, Any], regime: str, generator: Generator) -> dict[str, Any]:
    x, N = operands["x"], operands["k"].shape[2]
    D = x.shape[2]
    log_sigmoid = (TAU * log_gates(regime, x.shape, generator)).double()
    g = log_sigmoid - torch.log(-torch.expm1(log_sigmoid))  # logsigmoid of it is log_sigmoid
    g = g.clamp(-SATURATED, SATURATED).float()
    return {
        "A": _half_to_three_halves((D, N), generator),
        "g": g.unsqueeze(-1) if D == N else g,
        "tau": TAU,
    }


def _const(operands: Mapping[str, Any], regime: str, generator: Generator) -> dict[str, Any]:
    return {"A": log_gates(regime, (operands["x"].shape[2], operands["k"].shape[2]), generator)}


def _step_sizes(B: int, T: int, D: int, generator: Generator) -> Tensor:
    low, high = math.log(1e-3), math.log(1e-1)
    return torch.exp(low + (high - low) * torch.rand(B, T, D, generator=generator, device=generator.device))


def _half_to_three_halves(size: tuple[int, int], generator: Generator) -> Tensor:
    return 0.5 + torch.rand(*size, generator=generator, device=generator.device)


def decay_span(operands: Mapping[str, Any]) -> float:
    """Compute the largest sum over time of an element's −log gate, except gates that are 0 in all dtypes."""
    T = operands["x"].shape[1]
    total: Tensor | float = 0.0
    for start in range(0, T, 64):  # not all T × D × N gates at once
        log_gate = _log_gates(operands, slice(start, start + 64))
        total = total + torch.where(log_gate > NO_GATE, log_gate, 0).sum(1)
    return -float(torch.as_tensor(total).min())


def sample_optional(name: str, size: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw an optional operand. A bias is low, so that steps are legal for an implicit gate: 1 − Δ k² ≥ 0."""
    drawn = torch.randn(size, generator=generator, device=generator.device)
    return drawn / 4 - 4 if name == "delta_bias" else drawn


def _log_gates(operands: Mapping[str, Any], steps: slice) -> Tensor:
    """Compute log gates (B|1, T, D, N) in float64."""
    given: dict[str, Tensor] = {
        name: operands[name].detach()[:, steps].double()
        for name in ("x", "delta", "k", "g")
        if operands.get(name) is not None and not operands[name].is_complex()
    }
    if operands.get("delta_bias") is not None:
        given["delta"] = given["delta"] + operands["delta_bias"].detach().double()
    if operands.get("delta_softplus"):
        given["delta"] = torch.logaddexp(given["delta"], torch.zeros_like(given["delta"]))
    kind = operands.get("gate") or "exp"
    if kind == "implicit":
        return torch.log1p((-given["delta"].unsqueeze(-1) * given["k"].unsqueeze(-2).square()).clamp(min=-1))
    A: Tensor = operands["A"].detach().real.double().clamp(-HUGE, HUGE)
    if kind == "exp":
        return given["delta"].unsqueeze(-1).clamp(max=HUGE) * A
    if kind == "sigmoid":
        g = outer(given["g"], *A.shape).clamp(-HUGE, HUGE)
        tau: float = operands.get("tau", 1.0)
        return functional.logsigmoid(g * A) / tau
    return A.expand(1, given["x"].shape[1], *A.shape)
