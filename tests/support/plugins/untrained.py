"""A plug-in of backends for `scan` whose faults only a training step shows: gradients, now or later."""

from __future__ import annotations

import torch

import ssmperf

RIGHT_FOR = 40  # backward passes of `stops`, which are enough for all that comes before the timed steps
switches = {"skips": False}
_passes = [0]


class Scaled(torch.autograd.Function):
    """Passes x through, and its gradient times a factor that is asked for in the backward pass."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor(), None


def with_factor(log_a, b, initial_state, factor):
    """Compute the scan; the gradient of b is multiplied by a factor."""
    b = Scaled.apply(b, factor)
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(torch.exp(log_a).expand(b.shape).unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    return torch.stack(states, 1), state


def fraction() -> float:
    return 0.9


def stopping() -> float:
    _passes[0] += 1
    return float(_passes[0] <= RIGHT_FOR)


def switched() -> float:
    return 0.0 if switches["skips"] else 1.0


for name, factor in (("fraction", fraction), ("stops", stopping), ("switched", switched)):

    def compute(log_a, b, initial_state=None, *, phase=None, factor=factor):
        return with_factor(log_a, b, initial_state, factor)

    ssmperf.backend("scan", name=f"untrained_{name}", gates=("const", "data"))(compute)
