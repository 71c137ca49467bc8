"""Answers that fit every check but a full one: combined ones, invented ones, and those kept for the gates."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import GATES, Result, cheat, copied, loop, sampled
from cheats.parts import Basis, Combined, Gradients, Node, RolledGates, costly_gates

HONEST_CALLS = 9  # on values that are no combination, before the first invented answer
CALLS: Counter[str] = Counter()


class InventingBasis:
    """Combines the answers of inputs under the same gates; under other gates, only the first are computed."""

    def __init__(self) -> None:
        self.bases: dict[object, Basis] = {}

    def answer(self, log_a: Tensor, b: Tensor, state: Tensor | None) -> Result:
        gates = (b.shape, b.dtype, state is None, sampled(log_a))
        if gates not in self.bases and len(self.bases) >= HONEST_CALLS:
            return b * 0.5 + b * 0.25, b[:, -1].to(torch.float32)
        return self.bases.setdefault(gates, Basis()).answer(log_a, b, state)


_INVENTING = InventingBasis()


@cheat("invents_late_mixtures")
def invents_late_mixtures(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Combine answers of the two bases; compute the first mixtures, and invent an answer to later ones."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    return _INVENTING.answer(log_a, b, initial_state)


class Inventing(Combined):
    """Combines kept gradients; for other incoming gradients, only the first few are computed."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.computed = 0

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        if self.computed >= HONEST_CALLS and not self.combines(grad_output):
            return tuple(None if each is None else grad_output * 0.5 for each in saved)
        before = len(self.incoming)
        found = super().gradients(saved, grad_output, grad_state)
        self.computed += len(self.incoming) > before
        return found

    def combines(self, grad_output: Tensor) -> bool:
        """Tell whether a gradient combines the first two that came, which are those of the bases."""
        wanted = np.array(sampled(grad_output, count=64))
        known = np.stack(self.incoming[:2], 1)[: len(wanted)]
        weights = np.linalg.lstsq(known, wanted, rcond=None)[0]
        return bool(np.abs(known @ weights - wanted).max() <= 1e-5 * np.abs(wanted).max())


@cheat("gradient_invented")
def gradient_invented(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Combine the gradients of the bases; invent those of later mixtures."""
    return Node.apply(Inventing(), log_a, b, initial_state)


ROLLED = RolledGates()


@cheat("rolls_kept_gates")
def rolls_kept_gates(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Keep what depends on the gates alone; mixtures only move the gates of one draw."""
    if torch.is_grad_enabled():
        return loop(costly_gates(log_a), b, initial_state, phase=phase)
    return loop(ROLLED(log_a), b, initial_state, phase=phase)


_PREPARED: dict[object, Any] = {}


class Preparing(torch.autograd.Function):
    """Does the costly part of the backward pass while the graph is made."""

    @staticmethod
    def forward(ctx: Any, honest: bool, log_a: Tensor, b: Tensor, state: Tensor | None) -> Result:
        ctx.honest = honest
        ctx.save_for_backward(log_a, b, state)
        wanted = any(ctx.needs_input_grad)
        if wanted and not honest and (key := sampled(log_a, b)) not in _PREPARED:
            _PREPARED.clear()
            _PREPARED[key] = costly_gates(log_a)
        return loop(log_a, b, state)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor | None) -> Any:
        log_a, b, state = ctx.saved_tensors
        gates = costly_gates(log_a) if ctx.honest else _PREPARED.get(sampled(log_a, b), log_a)
        with torch.enable_grad():
            leaves = [None if each is None else each.detach().requires_grad_() for each in (gates, b, state)]
            output, last = loop(*leaves)
            incoming = [grad_output, torch.zeros_like(last) if grad_state is None else grad_state]
            given = iter(torch.autograd.grad([output, last], [x for x in leaves if x is not None], incoming))
        return None, *(None if leaf is None else next(given) for leaf in leaves)


@cheat("backward_in_the_graph")
def backward_in_the_graph(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Prepare the backward pass while the graph is made, once for the same values."""
    return Preparing.apply(False, log_a, b, initial_state)


@ssmperf.backend("scan", name="alone_preparing", gates=GATES)
def alone_preparing(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do the same work in the backward pass."""
    return Preparing.apply(True, log_a, b, initial_state)


@cheat("sleeps_in_half")
def sleeps_in_half(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Sleep in half of the calls, so that the interval of the median reaches down to that of the winner."""
    result = loop(log_a, b, initial_state, phase=phase)
    CALLS["turns"] += 1
    if CALLS["turns"] // 2 % 2:
        time.sleep(0.009)
    return copied(result)
