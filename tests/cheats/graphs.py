"""Backward passes that do not run: gradients that are kept, rescaled or combined, or computed too early."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat
from cheats.parts import Combined, Node, Once


class InForward(Combined):
    """Computes the gradients for the gradient that will come, while the graph is made, outside the clock."""

    def made(self, operands: Sequence[Tensor | None]) -> None:
        frame = sys._getframe(2)
        while frame is not None:
            values = frame.f_locals.get("values")
            if hasattr(values, "grad_output"):
                self.gradients(operands, values.grad_output, None)
                return
            frame = frame.f_back


@cheat("gradient_once")
def gradient_once(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute the gradients once per graph."""
    return Node.apply(Once(), log_a, b, initial_state)


@cheat("gradient_rescaled")
def gradient_rescaled(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute the gradients once per graph; rescale them if the incoming gradient is a multiple."""
    return Node.apply(Combined(1), log_a, b, initial_state)


@cheat("gradient_combines")
def gradient_combines(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Combine the gradients that were computed for earlier incoming gradients."""
    return Node.apply(Combined(6), log_a, b, initial_state)


@cheat("gradient_in_forward")
def gradient_in_forward(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute the gradients while the graph is made, for the incoming gradient found at the caller."""
    return Node.apply(InForward(1), log_a, b, initial_state)
