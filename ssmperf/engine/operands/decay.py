"""The decay of operands: its span, on which declared error bounds depend, and changes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.case import RESET
from ssmperf.engine.operands.time_axis import has_time, length_of
from ssmperf.engine.registry.declarations import Recurrence
from ssmperf.errors import UnknownName, Unsupported

# Log gates whose exponential just underflows to zero.
VANISHING = {torch.float64: -746.0, torch.float32: -104.0, torch.bfloat16: -93.0, torch.float16: -18.0}
RESET_EVERY = 100  # steps, in the mean


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


def check_change(change: str) -> float | None:
    """Read a change of the decay: the factor of the log gates, or None for resets. Raises UnknownName."""
    if change == RESET:
        return None
    try:
        factor = float(change)
    except ValueError:
        factor = math.nan
    if not 0 <= factor < math.inf:
        raise UnknownName("change of the decay", change, ("a factor from 0", RESET))
    return factor


def change_decay(
    recurrence: Recurrence, gate_kind: str, operands: Mapping[str, Any], change: str, seed: int
) -> dict[str, Any]:
    """Multiply a model's log gates by a factor, or make some steps exact resets (log gate −∞).

    change: the factor as text, where 0 leaves no decay at all; or `reset`, for which steps are drawn at
        random, one in a hundred in the mean, each for all gates of its batch item.

    Raises:
        Unsupported: the operands hold no log gates to change.
        UnknownName: the change has another form.
    """
    factor = check_change(change)
    length = length_of(operands)
    changed = dict(operands)
    for name in recurrence.log_gates(gate_kind):
        value = operands.get(name)
        if not isinstance(value, Tensor):
            continue
        if factor is not None:
            changed[name] = _multiplied(value, factor)
        elif has_time(name, value, length):
            generator = torch.Generator().manual_seed(seed)
            resets = torch.rand(value.shape[:2], generator=generator) < 1 / RESET_EVERY
            places = resets.to(value.device).view(*value.shape[:2], *[1] * (value.dim() - 2))
            changed[name] = value.masked_fill(places, -math.inf)
    if all(changed[name] is operands[name] for name in operands):
        raise Unsupported(f"these operands of {recurrence.name} hold no log gates to change")
    return changed


def _multiplied(value: Tensor, factor: float) -> Tensor:
    """Multiply finite log gates; of a complex value, the real part."""
    if value.is_complex():
        return torch.complex(_multiplied(value.real, factor), value.imag)
    return torch.where(torch.isinf(value), value, value * factor)
