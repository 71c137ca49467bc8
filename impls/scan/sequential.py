"""One step after another: T dependent steps, the least arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import backend

from .common import gate, operands


@backend(
    "scan",
    name="sequential",
    launches=lambda shape: shape["T"] + 4,
    workspace=lambda shape, itemsize, gate_kind: 4 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize),
)
def sequential(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A loop over time on whole (B, C) slices.

    Shapes, dtypes and results: see the recurrence `scan`. Gates that do not change over time are formed once.
    """
    log_a, phase, inputs, state = operands(log_a, b, initial_state, phase)
    a = gate(log_a, phase).to(inputs.dtype)
    steps = a.expand(-1, inputs.shape[1], -1).unbind(1)
    states = []
    for a_t, b_t in zip(steps, inputs.unbind(1), strict=True):
        state = torch.addcmul(b_t, a_t, state)
        states.append(state)
    output = torch.stack(states, dim=1)
    return (output if output.is_complex() else output.to(b.dtype)), state
