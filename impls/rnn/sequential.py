"""One step after another on whole (B, C) slices: all products with x at once, then one with h per step."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .common import check


def gru_step(from_x: Tensor, from_h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compute (h,) after one step from W x + b and U h + b', (B, 3C)."""
    C = state[0].shape[-1]
    x_gates, x_n = from_x.split([2 * C, C], dim=-1)
    h_gates, h_n = from_h.split([2 * C, C], dim=-1)
    r, z = torch.sigmoid(x_gates + h_gates).chunk(2, dim=-1)
    n = torch.tanh(torch.addcmul(x_n, r, h_n))
    return (torch.lerp(n, state[0], z),)


def lstm_step(from_x: Tensor, from_h: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compute (h, c) after one step from W x + b and U h + b', (B, 4C)."""
    i, f, g, o = (from_x + from_h).chunk(4, dim=-1)
    c = torch.addcmul(torch.sigmoid(f) * state[1], torch.sigmoid(i), torch.tanh(g))
    return torch.sigmoid(o) * torch.tanh(c), c


STEPS = {"gru": gru_step, "lstm": lstm_step}
STATES = {"gru": 1, "lstm": 2}


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The products with x, the states and (under autograd) the gates of all steps."""
    return 12 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("rnn", name="sequential", launches=lambda shape: 7 * shape["T"] + 10, workspace=workspace)
@without_autocast
def sequential(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    *,
    cell: str = "gru",
) -> tuple[Tensor, Tensor]:
    """A loop over time, differentiated by autograd.

    Shapes, dtypes and results: see the recurrence `rnn`.
    """
    check(cell, weight_hh)
    wide = torch.promote_types(torch.promote_types(x.dtype, weight_hh.dtype), torch.float32)
    W, U, b, b_h = (operand.to(wide) for operand in (weight_ih, weight_hh, bias_ih, bias_hh))
    products = torch.addmm(b, x.to(wide).flatten(0, 1), W.mT).unflatten(0, x.shape[:2])
    if initial_state is None:
        state = (x.new_zeros(x.shape[0], U.shape[1], dtype=wide),) * STATES[cell]
    else:
        state = tuple(initial_state.to(wide).view(x.shape[0], STATES[cell], -1).unbind(1))
    outputs = []
    for from_x in products.unbind(1):
        state = STEPS[cell](from_x, torch.addmm(b_h, state[0], U.mT), state)
        outputs.append(state[0])
    final = state[0] if cell == "gru" else torch.stack(state, dim=1)
    return torch.stack(outputs, dim=1).to(x.dtype), final
