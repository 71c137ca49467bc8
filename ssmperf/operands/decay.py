"""The decay span of operands, on which the error bounds of approximate backends depend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.operands.time_axis import length_of
from ssmperf.registry.declarations import Recurrence

# Log gates whose exponential just underflows to zero.
VANISHING = {torch.float64: -746.0, torch.float32: -104.0, torch.bfloat16: -93.0, torch.float16: -18.0}


def decay_span(recurrence: Recurrence, operands: Mapping[str, Any]) -> float:
    """Compute the largest sum over time of a channel's log gates' magnitudes; infinite ones are left out."""
    if recurrence.decay_span is not None:
        return recurrence.decay_span(operands)
    log_a = operands.get("log_a")
    if not isinstance(log_a, Tensor):
        return 0.0
    finite = torch.where(torch.isfinite(log_a), -log_a, 0.0).double()
    length = length_of(operands)
    over_time = finite.dim() >= 3 and finite.shape[1] == length
    return float(finite.sum(1).max()) if over_time else float(finite.max()) * length


def clamp_resets(recurrence: Recurrence, operands: Mapping[str, Any]) -> dict[str, Any]:
    """Clamp the log gates of resets (−∞) to the values that a backend computing with logarithms must use."""
    return {
        name: value.clamp(min=VANISHING[value.dtype])
        if name in recurrence.gates and name.startswith("log_") and isinstance(value, Tensor)
        else value
        for name, value in operands.items()
    }
