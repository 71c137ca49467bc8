"""Backward passes that do not run: gradients that are kept, rescaled or combined, or computed too early."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop, sampled

Gradients = tuple[Tensor | None, ...]


def gradients_of(saved: Sequence[Tensor | None], grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
    """Compute the gradients of the loop: run it again with a graph, and back."""
    with torch.enable_grad():
        leaves = [None if each is None else each.detach().requires_grad_() for each in saved]
        output, state = loop(*leaves)
        incoming = [grad_output, torch.zeros_like(state) if grad_state is None else grad_state]
        found = torch.autograd.grad(
            [output, state], [leaf for leaf in leaves if leaf is not None], incoming, allow_unused=True
        )
    given = iter(found)
    return tuple(None if leaf is None else next(given) for leaf in leaves)


class Node(torch.autograd.Function):
    """Runs the loop without a graph, and asks a rule for the gradients."""

    @staticmethod
    def forward(ctx: Any, rule: Any, log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
        result = loop(log_a, b, initial_state)
        ctx.rule = rule
        ctx.save_for_backward(log_a, b, initial_state)
        rule.made((log_a, b, initial_state))
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor | None) -> Any:
        return None, *ctx.rule.gradients(ctx.saved_tensors, grad_output, grad_state)


class Once:
    """Gives the first gradients of a graph again."""

    def __init__(self) -> None:
        self.kept: Gradients | None = None

    def made(self, operands: Sequence[Tensor | None]) -> None:
        """Do nothing while the graph is made."""

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        if self.kept is None:
            self.kept = gradients_of(saved, grad_output, grad_state)
        return self.kept


class Always(Once):
    """Computes the gradients in every call."""

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        return gradients_of(saved, grad_output, grad_state)


class Combined(Once):
    """Combines kept gradients as the incoming gradient combines earlier ones, in which they are linear.

    most: how many incoming gradients are kept; with one, the kept gradients are only rescaled.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.incoming: list[np.ndarray] = []
        self.answers: list[Gradients] = []

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        state = None if grad_state is None or not grad_state.any() else grad_state
        wanted = np.array((*sampled(grad_output, count=64), *(sampled(state) or (0.0,) * 8)[:8]))
        if self.incoming:
            known = np.stack(self.incoming, 1)
            weights = np.linalg.lstsq(known, wanted, rcond=None)[0]
            if np.abs(known @ weights - wanted).max() <= 1e-5 * np.abs(wanted).max():
                return tuple(
                    None
                    if parts[0] is None
                    else sum(float(w) * x for w, x in zip(weights, parts, strict=True))
                    for parts in zip(*self.answers, strict=True)
                )
        found = gradients_of(saved, grad_output, grad_state)
        if len(self.incoming) == self.most:
            self.incoming, self.answers = [], []
        self.incoming.append(wanted)
        self.answers.append(found)
        return found


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


@ssmperf.backend("scan", name="alone_node", gates=("data", "const"))
def alone_node(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Run the same node honestly: the gradients are computed in every call."""
    return Node.apply(Always(), log_a, b, initial_state)
