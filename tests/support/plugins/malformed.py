"""A plug-in of backends for `scan` whose results break the contract: test_contract.py says how.

Each computes the right answer first, and returns something else.
"""

from __future__ import annotations

import torch
from torch import Tensor

import ssmperf


def right(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scan, one step after another."""
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(torch.exp(log_a).expand(b.shape).unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    return torch.stack(states, 1), state


def malformed(name: str, result):
    """Register a backend under malformed_<name>: `result` maps output and final state to what it returns."""

    @ssmperf.backend("scan", name=f"malformed_{name}", dtypes=("float32",), gates=("const", "data"))
    def backend(log_a, b, initial_state=None, *, phase=None):
        return result(*right(log_a, b, initial_state))


malformed("tensor", lambda y, h: y)
malformed("number", lambda y, h: 3)
malformed("nothing", lambda y, h: None)
malformed("list", lambda y, h: [y, h])
malformed("three", lambda y, h: (y, h, None))
malformed("alone", lambda y, h: (y,))
malformed("no_output", lambda y, h: (None, h))
malformed("array", lambda y, h: (y.detach().numpy(), h))
malformed("state_array", lambda y, h: (y, h.detach().numpy()))
malformed("time_last", lambda y, h: (y.transpose(1, 2), h))
malformed("time_first", lambda y, h: (y.transpose(0, 1), h))
malformed("last_step", lambda y, h: (y[:, -1], h))
malformed("permuted", lambda y, h: (y.permute(1, 2, 0), h))
malformed("short", lambda y, h: (y[:, 1:], h))
malformed("swapped", lambda y, h: (h, y))
malformed("complex", lambda y, h: (torch.complex(y, y), h))
malformed("double", lambda y, h: (y.double(), h))
malformed("elsewhere", lambda y, h: (y.to("meta"), h))
malformed("no_state", lambda y, h: (y, None))
malformed("state_transposed", lambda y, h: (y, h.T))
malformed("state_double", lambda y, h: (y, h.double()))
malformed("no_graph", lambda y, h: (y.detach(), h))
malformed("right", lambda y, h: (y, h))
