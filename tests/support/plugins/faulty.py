"""A plug-in of backends for `scan` with faults that only the memory, stability and extrapolation suites meet.

Each is right otherwise. FAULTY_FOLDER in the environment names a folder for the ids of their processes.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor

import ssmperf

Result = tuple[Tensor, Tensor]
FOLDER = os.environ.get("FAULTY_FOLDER")
NAN_STEP = 40
WRAPPED_STEP = 300
LONGEST = 32
_KEPT: list[Tensor] = []
_CALLS: list[int] = []


def right(log_a: Tensor, b: Tensor, initial_state: Tensor | None, dtype: torch.dtype | None = None) -> Result:
    """Compute the scan step by step, with a state of this dtype."""
    if FOLDER is not None:
        with Path(FOLDER, "processes").open("a") as file:
            file.write(f"{os.getpid()}\n")
    wide = torch.promote_types(b.dtype, torch.float32)
    state = torch.zeros_like(b[:, 0], dtype=dtype or wide) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(torch.exp(log_a).expand(b.shape).unbind(1), b.unbind(1), strict=True):
        state = (a_t * state + b_t).to(dtype or wide)
        states.append(state)
    return torch.stack(states, 1).to(b.dtype), state.to(wide)


def faulty(name: str, **declarations):
    """Register under faulty_<name>, with real gates only."""
    return ssmperf.backend("scan", name=f"faulty_{name}", gates=("const", "data"), **declarations)


@faulty("none")
def none(log_a, b, initial_state=None, *, phase=None) -> Result:
    return right(log_a, b, initial_state)


@faulty("leaks")
def leaks(log_a, b, initial_state=None, *, phase=None) -> Result:
    _KEPT.append(b.detach().clone())
    return right(log_a, b, initial_state)


@faulty("leaks_bytes")
def leaks_bytes(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leak one byte per token."""
    _KEPT.append(torch.zeros(b.shape[0] * b.shape[1], dtype=torch.uint8))
    return right(log_a, b, initial_state)


@faulty("modest", workspace=lambda shape, itemsize, gate_kind: 0.0)
def modest(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Take memory for sixty-four outputs, and declare none."""
    torch.zeros(64, *b.shape)
    return right(log_a, b, initial_state)


@faulty("quadratic")
def quadratic(log_a, b, initial_state=None, *, phase=None) -> Result:
    torch.zeros(b.shape[1], b.shape[1], 64)
    return right(log_a, b, initial_state)


class Hoarder(torch.autograd.Function):
    """Keeps eight copies for backward where no hook sees them."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = [x.clone() for _ in range(8)]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@faulty("hoards")
def hoards(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    return Hoarder.apply(output), state


@faulty("wrong")
def wrong(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    return 1.01 * output, state


@faulty("aborts")
def aborts(log_a, b, initial_state=None, *, phase=None) -> Result:
    os.abort()


@faulty("leaves")
def leaves(log_a, b, initial_state=None, *, phase=None) -> Result:
    os._exit(0)


@faulty("allocates")
def allocates(log_a, b, initial_state=None, *, phase=None) -> Result:
    kept = []
    while True:
        kept.append(torch.empty(2**28))


@faulty("forward_only", passes=("forward",))
def forward_only(log_a, b, initial_state=None, *, phase=None) -> Result:
    return right(log_a, b, initial_state)


@faulty("nan_at_40")
def nan_at_40(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    output = output.clone()
    output[:, NAN_STEP] = float("nan")
    return output, state


@faulty("half_state")
def half_state(log_a, b, initial_state=None, *, phase=None) -> Result:
    return right(log_a, b, initial_state, torch.float16)


@faulty("drops_state")
def drops_state(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Begin each call without a state."""
    return right(log_a, b, None)


@faulty("rounds_state")
def rounds_state(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Take the state that is given in bfloat16."""
    given = None if initial_state is None else initial_state.to(torch.bfloat16).to(initial_state.dtype)
    return right(log_a, b, given)


@faulty("boasts", error_bound=lambda span, dtype: 1e-9)
def boasts(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    return output * (1 + 1e-6), state


@faulty("refuses_long")
def refuses_long(log_a, b, initial_state=None, *, phase=None) -> Result:
    if b.shape[1] > LONGEST:
        raise ssmperf.Unsupported(f"planted: nothing above {LONGEST} steps")
    return right(log_a, b, initial_state)


@faulty("overflows")
def overflows(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Divide by the product of all gates, which underflows at a decay span of about 88."""
    total = log_a.float().expand(b.shape).cumsum(1)
    states = torch.exp(total) * (b.float() * torch.exp(-total)).cumsum(1)
    return states.to(b.dtype), states[:, -1]


@faulty("wraps")
def wraps(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Forget everything at one step, like an index that overflows."""
    log_a = log_a.expand(b.shape).clone()
    log_a[:, WRAPPED_STEP : WRAPPED_STEP + 1] = -torch.inf
    return right(log_a, b, initial_state)


@faulty("varies", deterministic=False)
def varies(log_a, b, initial_state=None, *, phase=None) -> Result:
    output, state = right(log_a, b, initial_state)
    _CALLS.append(len(_CALLS))
    return output * (1 + 1e-6 * (len(_CALLS) % 2)), state


@ssmperf.backend("scan", name="faulty_turns", gates=("const_complex", "data_complex"))
def turns(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Sum phases in float32 from the first step, with a full turn in each, so that they grow."""
    total = torch.complex(log_a.expand(b.shape), phase.expand(b.shape) + math.tau).cumsum(1)
    states = torch.exp(total) * (b * torch.exp(-total)).cumsum(1)
    return states, states[:, -1]
