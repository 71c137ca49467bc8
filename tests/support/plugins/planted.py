"""A plug-in of planted backends for `scan`, each bad in its own way: test_planted.py says how.

Each computes the right answer by a loop of its own first, so that only the planted fault can be flagged.
"""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor

import ssmperf

Result = tuple[Tensor, Tensor]


def right(log_a: Tensor, b: Tensor, initial_state: Tensor | None, phase: Tensor | None) -> Result:
    """The scan, one step after another."""
    gate = torch.exp(log_a) if phase is None else torch.polar(torch.exp(log_a), phase)
    gate = gate.expand(b.shape)
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(gate.unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    return torch.stack(states, 1), state


def planted(name: str, **declarations):
    """Register under planted_<name>, with the signature of scan."""
    return ssmperf.backend("scan", name=f"planted_{name}", dtypes=("float32",), **declarations)


@planted("right")
def right_(log_a, b, initial_state=None, *, phase=None) -> Result:
    return right(log_a, b, initial_state, phase)


@planted("raises")
def raises(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ValueError("planted <b>failure</b>")


@planted("wrong")
def wrong(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return output * 1.01, state


@planted("nan")
def nan(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    output = output.clone()
    output[0, 1, 0] = float("nan")
    return output, state


@planted("hangs")
def hangs(log_a, b, initial_state=None, *, phase=None) -> Result:
    while True:
        time.sleep(0.01)


@planted("aborts")
def aborts(log_a, b, initial_state=None, *, phase=None) -> Result:
    os.abort()


@planted("allocates")
def allocates(log_a, b, initial_state=None, *, phase=None) -> Result:
    kept = []
    while True:
        kept.append(torch.empty(2**28))


@planted("wrong_gradient")
def wrong_gradient(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return output, state + 0.1 * (b - b.detach()).sum(1)


@planted("first_result")
def first_result(log_a, b, initial_state=None, *, phase=None) -> Result:
    key = (b.shape, initial_state is None)
    if key not in _KEPT:
        _KEPT[key] = right(log_a, b, initial_state, phase)
    output, state = _KEPT[key]
    return output.detach(), state.detach()


_KEPT: dict[tuple[object, ...], Result] = {}


@planted("changes_input")
def changes_input(log_a, b, initial_state=None, *, phase=None) -> Result:
    result = right(log_a, b, initial_state, phase)
    with torch.no_grad():
        b.mul_(1 + 1e-4)
    return result


@planted("state_in_place")
def state_in_place(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Write the final state over the initial one: behind a reset, a second call changes nothing."""
    log_a = torch.cat([log_a[:, :-1], torch.full_like(log_a[:, -1:], -torch.inf)], dim=1)
    result = right(log_a, b, initial_state, phase)
    if initial_state is not None:
        initial_state.data.copy_(result[1].data)
    return result


@planted("unsupported")
def unsupported(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ssmperf.Unsupported("planted: only on Tuesdays")


@planted("all_but_last_row")
def all_but_last_row(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    partial = torch.empty_like(output)
    partial[:, :-1] = output[:, :-1]
    return partial, state


@planted("no_graph")
def no_graph(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return output.detach(), state.detach()


@planted("exits")
def exits(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise SystemExit(0)


class Lazy(torch.Tensor):
    """A tensor subclass that could put its work off."""


@planted("lazy")
def lazy(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return output.as_subclass(Lazy), state


@planted("changes_gradient")
def changes_gradient(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient.mul_(1 + 1e-4))
    return output, state


@planted("static_output")
def static_output(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    if output.requires_grad:
        return output, state
    return _STATIC.setdefault(output.shape, torch.empty_like(output)).copy_(output), state


_STATIC: dict[torch.Size, Tensor] = {}


@planted("by_version")
def by_version(log_a, b, initial_state=None, *, phase=None) -> Result:
    operands = [x for x in (log_a, b, initial_state) if x is not None]
    key = tuple((x.data_ptr(), x._version, x.requires_grad) for x in operands)
    if key not in _BY_VERSION:
        _BY_VERSION.clear()
        # The operands are kept: otherwise another tensor could come to lie where these lay.
        _BY_VERSION[key] = (right(log_a, b, initial_state, phase), operands)
        time.sleep(0.01)
    return _BY_VERSION[key][0]


_BY_VERSION: dict[tuple[tuple[int, int, bool], ...], tuple[Result, list[Tensor]]] = {}


class CachedBackward(torch.autograd.Function):
    """Gives the first gradient again."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not hasattr(ctx, "kept"):
            ctx.kept = gradient.clone()
        return ctx.kept


@planted("cached_backward")
def cached_backward(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return CachedBackward.apply(output), state


@planted("no_bound", error_bound=lambda span, dtype: float("inf"))
def no_bound(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return 1.5 * output, state


@planted("double_state")
def double_state(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state, phase)
    return output, state.double()
