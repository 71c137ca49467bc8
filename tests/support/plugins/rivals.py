"""A plug-in of backends for `scan` that are all quicker than the two honest ones, and must not win.

Two honest backends sleep, so that their order and their distance from the others are certain.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

import ssmperf

Result = tuple[Tensor, Tensor]


def quick(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
    """Compute the scan as one product with the matrix of gates between any two steps."""
    total = log_a.expand(b.shape).cumsum(1)
    between = total[:, :, None] - total[:, None]  # (B, T, T, C)
    earlier = torch.ones(b.shape[1], b.shape[1], dtype=torch.bool, device=b.device).tril()[:, :, None]
    # masked before exp, since the log gates of later steps are positive sums that could overflow
    gates = torch.where(earlier, between.masked_fill(~earlier, 0.0).exp(), 0.0)
    output = torch.einsum("btsc,bsc->btc", gates, b)
    if initial_state is not None:
        output = output + total.exp() * initial_state[:, None]
    return output, output[:, -1]


def rival(name: str, **declarations):
    """Register under rival_<name>, with real gates only."""
    return ssmperf.backend("scan", name=f"rival_{name}", dtypes=("float32",), **declarations)


class Sleeps(torch.autograd.Function):
    """The identity, which takes a given time in forward and in backward."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


@rival("honest")
def honest(log_a, b, initial_state=None, *, phase=None) -> Result:
    return quick(log_a, Sleeps.apply(b, 0.004), initial_state)


@rival("slower")
def slower(log_a, b, initial_state=None, *, phase=None) -> Result:
    return quick(log_a, Sleeps.apply(b, 0.012), initial_state)


class AddsToGradient(torch.autograd.Function):
    """The identity, with a gradient that is a tenth too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.1 * gradient


@rival("wrong_gradient")
def wrong_gradient(log_a, b, initial_state=None, *, phase=None) -> Result:
    return quick(log_a, AddsToGradient.apply(b), initial_state)


@rival("loose", error_bound=lambda span, dtype: 0.999)
def loose(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = quick(log_a, b, initial_state)
    return 1.2 * output, 1.2 * state


def doubled(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Define twice the scan, one step after another."""
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for gate, step in zip(log_a.expand(b.shape).exp().unbind(1), b.unbind(1), strict=True):
        state = gate * state + step
        states.append(2 * state)
    return torch.stack(states, 1), 2 * state


@rival("other_function", equivalent=False, definition=doubled)
def other_function(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = quick(log_a, b, initial_state)
    return 2 * output, 2 * state
