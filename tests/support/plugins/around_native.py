"""A plug-in of native backends for `scan` that take time before, in or after the call, for certain.

A sleep in the way there is one in the way back too. Beside sleeping, native calls take microseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ssmperf
from ssmperf.authoring import Prepared

sys.path.append(str(Path(__file__).parent))

from rivals import quick

WORK_S = 0.012  # of a backend that hides its work
HONEST_S = 0.001


class Sleeps(torch.autograd.Function):
    """The identity, which takes a given time in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        time.sleep(ctx.seconds)
        return gradient, None


def time_last(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
    """Transpose the operands, and the output back."""
    operands = (log_a.expand(b.shape).mT.contiguous(), b.mT.contiguous(), initial_state)
    return Prepared(operands, lambda raw: (raw[0].mT, raw[1]))


def working(before_s: float, after_s: float) -> Callable[..., Prepared]:
    """Make a preparation that works before the native call, and after it."""

    def prepare(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        turned = time_last(log_a, Sleeps.apply(b, before_s) if before_s else b, initial_state)
        if not after_s:
            return turned
        return Prepared(turned.operands, lambda raw: turned.finish((Sleeps.apply(raw[0], after_s), raw[1])))

    return prepare


_SEEN: set[float] = set()


def remembering(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
    """Work before the native call, but only for values that were not seen yet."""
    key = float(b.detach().double().sum())
    if key not in _SEEN:
        time.sleep(WORK_S)
    _SEEN.add(key)
    return time_last(log_a, b, initial_state)


def register(name: str, prepare: Callable[..., Prepared], seconds: float = 0.0) -> None:
    def native(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Any:
        output, state = quick(log_a.mT, Sleeps.apply(b.mT, seconds) if seconds else b.mT, initial_state)
        return output.mT.contiguous(), state

    ssmperf.backend("scan", name=f"native_{name}", prepare=prepare, gates=("data", "const"))(native)


register("honest", time_last, HONEST_S)
register("in_prepare", working(WORK_S, 0.0))
register("in_finish", working(0.0, WORK_S))
register("in_both", working(WORK_S / 2, WORK_S / 2))
register("remembering", remembering)
