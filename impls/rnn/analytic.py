"""Closed-form answers of gated cells whose biases hold all gates at constant values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import analytic

B, T, C = 2, 37, 3
SOURCE = "the equations of torch.nn.GRU and torch.nn.LSTM with U = 0"

Answer = tuple[dict[str, Any], Tensor, Tensor]

OPEN = 800.0  # a bias that holds a sigmoid at exactly 1, its negative at exactly 0


def noise(*size: int) -> Tensor:
    """Draw standard normals, the same in every call."""
    return torch.randn(*size, generator=Generator().manual_seed(0), dtype=torch.float64)


def held(blocks: int, biases: dict[int, float], candidate: int) -> dict[str, Tensor]:
    """Make weights that copy x into one block and hold the other blocks at constants by their biases."""
    weight_ih = torch.zeros(blocks, C, C, dtype=torch.float64)
    weight_ih[candidate] = torch.eye(C, dtype=torch.float64)
    bias_ih = torch.zeros(blocks, C, dtype=torch.float64)
    for block, bias in biases.items():
        bias_ih[block] = bias
    return {
        "weight_ih": weight_ih.flatten(0, 1),
        "weight_hh": torch.zeros(blocks * C, C, dtype=torch.float64),
        "bias_ih": bias_ih.flatten(),
        "bias_hh": torch.zeros(blocks * C, dtype=torch.float64),
    }


@analytic("rnn", name="gru_that_never_keeps_is_a_tanh", source=SOURCE)
def gru_forgets() -> Answer:
    """z = 0 gives h = tanh(x), whatever the earlier states."""
    x = noise(B, T, C)
    operands = {"x": x, **held(3, {1: -OPEN}, 2), "initial_state": noise(B, C), "cell": "gru"}
    return operands, x.tanh(), x[:, -1].tanh()


@analytic("rnn", name="gru_that_always_keeps_stays", source=SOURCE)
def gru_keeps() -> Answer:
    """z = 1 gives h = h_0."""
    h_0 = noise(B, C)
    operands = {"x": noise(B, T, C), **held(3, {1: OPEN}, 2), "initial_state": h_0, "cell": "gru"}
    return operands, h_0.unsqueeze(1).expand(B, T, C).clone(), h_0


@analytic("rnn", name="gru_of_constant_gates_averages", source=SOURCE)
def gru_averages() -> Answer:
    """z = ½ gives h_t = 2^{−t} h_0 + Σ_{s≤t} 2^{s−t−1} tanh(x_s)."""
    x, h_0 = noise(B, T, C), noise(B, C).flip(0)
    t = torch.arange(1, T + 1, dtype=torch.float64)
    weights = torch.exp2(t - t.unsqueeze(-1) - 1).tril()
    h = torch.einsum("ts,bsc->btc", weights, x.tanh()) + torch.exp2(-t).unsqueeze(-1) * h_0.unsqueeze(1)
    return {"x": x, **held(3, {}, 2), "initial_state": h_0, "cell": "gru"}, h, h[:, -1]


@analytic("rnn", name="lstm_of_open_gates_sums", source=SOURCE)
def lstm_sums() -> Answer:
    """i = f = o = 1 give c_t = c_0 + Σ_{s≤t} tanh(x_s) and h = tanh(c)."""
    x, state = noise(B, T, C), noise(B, 2, C)
    c = state[:, 1:] + x.tanh().cumsum(1)
    operands = {"x": x, **held(4, {0: OPEN, 1: OPEN, 3: OPEN}, 2), "initial_state": state, "cell": "lstm"}
    return operands, c.tanh(), torch.stack([c[:, -1].tanh(), c[:, -1]], dim=1)


@analytic("rnn", name="lstm_with_a_shut_output_is_silent", source=SOURCE)
def lstm_silent() -> Answer:
    """o = 0 and f = 0 give h = 0 and c = tanh(x)."""
    x = noise(B, T, C)
    operands = {"x": x, **held(4, {0: OPEN, 1: -OPEN, 3: -OPEN}, 2), "initial_state": None, "cell": "lstm"}
    return operands, torch.zeros_like(x), torch.stack([torch.zeros(B, C).double(), x[:, -1].tanh()], dim=1)
