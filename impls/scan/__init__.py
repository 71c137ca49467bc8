"""Elementwise diagonal scan h_t = a_t ⊙ h_{t-1} + b_t (docs/recurrences.md#scan).

The gate is a_t = exp(log_a_t)·exp(i·phase_t); log_a = -inf is a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, log_gates, phases, recurrence

from .._autocast import without_autocast
from .._states import as_state

PRESETS = {
    "smoke": [{"B": 2, "C": 64}],
    "standard": [{"B": 8, "C": 1536}],
    "long": [
        {"B": 8, "T": 16384, "C": 1536},
        {"B": 1, "T": 131072, "C": 1536},
        {"B": 1, "T": 1048576, "C": 1536},
    ],
}
OPERAND_SHAPES = {
    "b": "B T C",
    "log_a": "broadcast B T C",
    "phase": "broadcast B T C",
    "initial_state": "B C",
}


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the kind: `const` (the same at every step) or `data`, with `_complex` where there is a phase."""
    varying = [operands[name] for name in ("log_a", "phase") if operands.get(name) is not None]
    length = operands["b"].shape[1]
    over_time = any(gate.dim() == 3 and gate.shape[1] == length for gate in varying)
    return ("data" if over_time or length == 1 else "const") + (
        "_complex" if operands.get("phase") is not None else ""
    )


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads gates and b and writes h; backward reads these and dh, writes gradients."""
    elements = shape["B"] * shape["T"] * shape["C"]
    gates = sum(specs[name].nbytes for name in ("log_a", "phase") if name in specs)
    stored = max((specs[name].numel for name in ("log_a", "phase") if name in specs), default=0)
    b = specs["b"].nbytes
    complex_state = "phase" in specs
    h = elements * (max(8, 2 * specs["log_a"].itemsize) if complex_state else specs["b"].itemsize)
    forward = Cost(
        gates + b + h,
        (8 if complex_state else 2) * elements,
        stored * (3 if complex_state else 1),
        shape["T"],
    )
    backward = Cost(
        2 * gates + h + 2 * b,
        (16 if complex_state else 4) * elements,
        stored * (3 if complex_state else 1),
        shape["T"],
    )
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "data"
) -> dict[str, Tensor | None]:
    """Draw float32 operands; the gates follow a regime, b is standard normal."""
    full = (shape["B"], shape["T"], shape["C"])
    gates = (1, 1, shape["C"]) if gate_kind.startswith("const") else full
    with_phase = gate_kind.endswith("_complex") or regime == "phase"
    return {
        "log_a": log_gates(regime, gates, generator),
        "b": torch.randn(*full, generator=generator, device=generator.device),
        "phase": phases(gates, generator) if with_phase else None,
    }


@recurrence(
    "scan",
    family="F1 elementwise",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("log_a", "phase"),
    gate_kind=gate_kind,
    gate_kinds=("data", "const", "data_complex", "const_complex"),
    sample=sample,
    state_shape=lambda shape: (shape["B"], shape["C"]),
    linear=("b", "initial_state"),
    calls=("b:complex64",),
)
@without_autocast
def scan(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t + i·phase_t) ⊙ h_{t-1} + b_t, one step after another.

    Args:
        log_a: log of the gate's magnitude, ≤ 0; broadcasts to (B, T, C). -inf is a reset.
        b: input (B, T, C), real or complex.
        initial_state: h_0 (B, C), zeros if None.
        phase: the gate's phase in radians; broadcasts to (B, T, C) and makes the state complex.

    Returns:
        h (B, T, C) in the dtype of b (complex with a phase) and h_T (B, C), float32/complex64 or wider.
    """
    wide = torch.promote_types(torch.promote_types(log_a.dtype, b.dtype), torch.float32)
    if phase is not None:
        wide = torch.promote_types(wide, torch.complex64)
    magnitude = torch.exp(log_a.to(wide.to_real()))
    gate = magnitude if phase is None else torch.polar(magnitude, phase.to(wide.to_real()))
    gates = gate.to(wide).expand(b.shape).unbind(1)
    state = b.new_zeros(b.shape[0], b.shape[2], dtype=wide)
    state = state if initial_state is None else as_state(initial_state, wide)
    states = []
    for a_t, b_t in zip(gates, b.to(wide).unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    output = torch.stack(states, dim=1)
    return (output if wide.is_complex else output.to(b.dtype)), state
