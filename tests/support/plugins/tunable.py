"""A plug-in with a backend of `scan` whose time is read from its table of configurations.

Of its forward cuts, 1 is the fastest but wrong, 5 spoils an input, 3 does not run, 2 is the best; backward
takes any.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import ssmperf
from ssmperf.engine.tune.tables import Table

DELAY_S = 0.004  # a call waits for so long a size


@dataclass(frozen=True)
class Cut:
    size: int
    note: str | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("a size is above 0")


def candidates(pass_: str, width: int) -> Iterator[Cut]:
    yield from map(Cut, (1, 5, 2, 3, 6, 8))


def fits(cut: Cut, pass_: str, width: int) -> bool:
    return cut.size <= 2 * width


CUTS = Table("scan/tunable", Cut, {(pass_, 4): Cut(8) for pass_ in ("forward", "backward")}, candidates, fits)
used: list[tuple[str, int]] = []


def work(pass_: str, width: int) -> int:
    cut = CUTS[pass_, width]
    used.append((pass_, cut.size))
    time.sleep(DELAY_S * cut.size)
    return cut.size


class Scan(torch.autograd.Function):
    """The pass in float32."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, b: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        size = work("forward", 4)
        if size == 3:
            raise RuntimeError("too many registers")
        if size == 5:
            b.detach().mul_(2)
        h = torch.zeros_like(b[:, 0]) if state is None else state
        gates = log_a.exp().expand(b.shape)
        states = []
        for t in range(b.shape[1]):
            h = gates[:, t] * h + b[:, t]
            states.append(h)
        output = torch.stack(states, 1)
        ctx.save_for_backward(gates, output)
        return (output * 1.5 if size == 1 else output), h

    @staticmethod
    def backward(ctx: Any, g: Tensor, final: Tensor) -> tuple[Tensor | None, ...]:
        work("backward", 4)
        gates, h = ctx.saved_tensors
        adjoint, to_gates, to_inputs = final, [], []
        for t in reversed(range(g.shape[1])):
            adjoint = adjoint + g[:, t]
            to_inputs.append(adjoint)
            before = h[:, t - 1] if t else torch.zeros_like(adjoint)
            to_gates.append(adjoint * gates[:, t] * before)
            adjoint = adjoint * gates[:, t]
        return torch.stack(to_gates[::-1], 1), torch.stack(to_inputs[::-1], 1), None


@ssmperf.backend("scan", name="tunable", dtypes=("float32",), gates=("data",))
def tunable(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Any = None
) -> tuple[Tensor, Tensor]:
    output, final = Scan.apply(log_a.expand(b.shape), b, initial_state)
    return output, final
