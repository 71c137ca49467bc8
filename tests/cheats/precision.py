"""Results of a cheaper precision than the case asks for."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop


def quantised(x: Tensor) -> Tensor:
    """Round a half-precision tensor to 255 equal steps, as int8 with one scale does; keep a wider one."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return x
    step = x.detach().abs().max().float() / 127
    rounded = (x.float() / step).round() * step
    return x + (rounded.to(x.dtype) - x).detach()


@cheat("int8_inside")
def int8_inside(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Round b and the output to int8 with one scale per tensor."""
    output, state = loop(log_a, quantised(b), initial_state, phase=phase)
    return quantised(output), state


@cheat("drops_small_gates")
def drops_small_gates(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Take gates below e⁻⁹ for 0, except in double precision."""
    if log_a.dtype == torch.float64:
        return loop(log_a, b, initial_state, phase=phase)
    kept = torch.where(log_a > -9, log_a, torch.full_like(log_a, -math.inf))
    return loop(kept, b, initial_state, phase=phase)
