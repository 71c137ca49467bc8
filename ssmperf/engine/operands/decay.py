"""The decay of operands: its span, on which declared error bounds depend, and changes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.case import RESET, SLOW, STEEP
from ssmperf.engine.operands.time_axis import has_time, length_of
from ssmperf.engine.registry.declarations import Recurrence
from ssmperf.errors import UnknownName, Unsupported

# Log gates whose exponential just underflows to zero.
VANISHING = {torch.float64: -746.0, torch.float32: -104.0, torch.bfloat16: -93.0, torch.float16: -18.0}
RESET_EVERY = 100  # steps, in the mean
STEEP_MEAN, STEEP_AT = -2.5, 4096  # log gates of a head in the mean, at that T with seed 0
STEEP_WITHIN, MOST_STEPS = 1e-5, 50  # of that mean, where log gates are clipped
SLOW_LOG_GATE, SLOW_ONE_IN = -0.001, 4  # of the heads, or of the key channels where gates have these
NAMED = (RESET, STEEP, SLOW)


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
    """Read a change of the decay: the factor of the log gates, or None for one that has a name.

    Raises:
        UnknownName: it is neither.
    """
    if change in NAMED:
        return None
    try:
        factor = float(change)
    except ValueError:
        factor = math.nan
    if not 0 <= factor < math.inf:
        raise UnknownName("change of the decay", change, ("a factor from 0", *NAMED))
    return factor


def change_decay(
    recurrence: Recurrence,
    gate_kind: str,
    operands: Mapping[str, Any],
    change: str,
    seed: int,
    *,
    least: float | None = None,
    start: Callable[[], Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Change a model's log gates.

    change: a factor as text, where 0 leaves no decay at all.
        `reset` makes some steps exact resets, with the log gate −∞. They are drawn at random, one in a
        hundred in the mean, each for all gates of its batch item.
        `steep` multiplies the gates of each head by a factor that makes their mean −2.5 in `start`, where
        those below `least` count as `least`.
        `slow` sets the log gate to −0.001 in one head of four, the first, or in one key channel of four.
    least: the least log gate that the model's formula can give, where it has one; see `Model`.
    start: makes the model's operands at T = 4,096 and seed 0, for `steep`.

    Raises:
        Unsupported: the operands hold no log gates to change.
        UnknownName: the change has another form.
    """
    factor = check_change(change)
    if change in (STEEP, SLOW) and not recurrence.resets(gate_kind):
        raise Unsupported(f"{change} log gates: those of {gate_kind} gates do not change from step to step")
    length = length_of(operands)
    changed = dict(operands)
    for name in recurrence.log_gates(gate_kind):
        value = operands.get(name)
        if not isinstance(value, Tensor):
            continue
        if factor is not None:
            changed[name] = _multiplied(value, factor)
        elif has_time(name, value, length):
            changed[name] = _apply_named(change, name, value, seed, least, start)
            if least is not None:
                changed[name] = changed[name].clamp(min=least)
    if all(changed[name] is operands[name] for name in operands):
        raise Unsupported(f"these operands of {recurrence.name} hold no log gates to change")
    return changed


def check_range(change: str, least: float | None) -> None:
    """Refuse a change to log gates that a model's formula cannot give.

    least: see `change_decay`. The formula gives neither that value nor 0.

    Raises:
        Unsupported: the model cannot have such log gates.
    """
    if least is None:
        return
    lie = f"the model's log gates lie between {least:.4g} and 0"
    if check_change(change) == 0.0:
        raise Unsupported(f"no log gates of 0: {lie}")
    if change == RESET:
        raise Unsupported(f"no resets: {lie}")
    if change == STEEP and least > STEEP_MEAN:
        raise Unsupported(f"no steep log gates: {lie}, not near {STEEP_MEAN}")


def _apply_named(
    change: str,
    name: str,
    value: Tensor,
    seed: int,
    least: float | None,
    start: Callable[[], Mapping[str, Any]] | None,
) -> Tensor:
    """Change log gates (B, T, ...) as the name of the change says."""
    if change == RESET:
        generator = torch.Generator().manual_seed(seed)
        resets = torch.rand(value.shape[:2], generator=generator) < 1 / RESET_EVERY
        places = resets.to(value.device).view(*value.shape[:2], *[1] * (value.dim() - 2))
        return value.masked_fill(places, -math.inf)
    if change == SLOW:
        slow = torch.arange(value.shape[-1], device=value.device) % SLOW_ONE_IN == 0
        return value.masked_fill(slow, SLOW_LOG_GATE)
    assert start is not None
    return value * _steep_factor(start()[name].double(), least).to(value)


def _steep_factor(start: Tensor, least: float | None) -> Tensor:
    """Compute the factor of each head of log gates (B, T, H, ...) that makes their mean −2.5, once clipped.

    Newton's method from below. The clipped mean's size is concave in the factor, so no step goes too far.
    """
    over = [axis for axis in range(start.dim()) if axis != 2]
    factor = STEEP_MEAN / start.mean(over, keepdim=True)
    if least is None or least >= STEEP_MEAN:
        return factor
    for _ in range(MOST_STEPS):
        gates = start * factor
        missing = STEEP_MEAN - gates.clamp(min=least).mean(over, keepdim=True)
        factor = factor + missing / torch.where(gates > least, start, 0.0).mean(over, keepdim=True)
        if (missing > -STEEP_WITHIN).all():
            break
    return factor


def _multiplied(value: Tensor, factor: float) -> Tensor:
    """Multiply finite log gates; of a complex value, the real part."""
    if value.is_complex():
        return torch.complex(_multiplied(value.real, factor), value.imag)
    return torch.where(torch.isinf(value), value, value * factor)
