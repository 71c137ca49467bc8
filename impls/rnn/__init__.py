"""GRU and LSTM: baselines whose gates depend on the state, so no scan computes them.

See docs/recurrences.md#rnn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, log_gates, recurrence

from .._autocast import without_autocast
from .common import BLOCKS, check

PRESETS = {
    "smoke": [{"B": 2, "C": 32}],
    "standard": [{"B": 8, "C": 1024}],
    "long": [{"B": 8, "T": 16384, "C": 1024}, {"B": 1, "C": 1024}],
}
OPERAND_SHAPES = {
    "x": "B T I",
    "weight_hh": "3C C | 4C C",
    "weight_ih": "3C I | 4C I",
    "bias_ih": "3C | 4C",
    "bias_hh": "3C | 4C",
    "initial_state": "B C | B 2 C",
}
KEEPING = {"gru": 1, "lstm": 1}  # which block of gates keeps the state: GRU's z, LSTM's f
FLOPS = {"gru": 11, "lstm": 9}  # per channel and step, without the products with the weights
SPECIAL = {"gru": 3, "lstm": 5}
WIDEST_LOGIT = 6.0


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the cell."""
    return str(operands.get("cell", "gru"))


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads x and writes the output; backward reads these and do, and writes dx.

    The weights are read once per pass, and backward writes their gradients. A product with the weights takes
    one multiplication and one addition per weight; its gradients take two such products.
    """
    tokens, C = shape["B"] * shape["T"], shape["C"]
    weights = [specs[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    cell = "lstm" if specs["weight_hh"].shape[0] == BLOCKS["lstm"] * C else "gru"
    x, parameters = specs["x"].nbytes, sum(weight.nbytes for weight in weights)
    output = tokens * C * specs["x"].itemsize
    products = 2 * tokens * sum(weight.numel for weight in weights[:2])
    forward = Cost(
        x + output + parameters,
        products + FLOPS[cell] * tokens * C,
        SPECIAL[cell] * tokens * C,
        shape["T"],
    )
    backward = Cost(
        2 * x + 2 * output + 2 * parameters,
        2 * products + 2 * FLOPS[cell] * tokens * C,
        SPECIAL[cell] * tokens * C,
        shape["T"],
    )
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "gru") -> dict[str, Any]:
    """Draw float32 operands: x standard normal, weights and biases uniform in ±1/√C like torch's.

    Where input and state are 0, the gate that keeps the state equals the regime's decay of one step: its bias
    is the logit of that decay, clamped to ±6 (beyond ±6, float32 has few digits for 1 − z).
    """
    B, T, C = (shape[letter] for letter in "BTC")
    rows, device = BLOCKS[gate_kind] * C, generator.device

    def uniform(*size: int) -> Tensor:
        drawn: Tensor = (2 * torch.rand(*size, generator=generator, device=device) - 1) / C**0.5
        return drawn

    log_a = log_gates(regime, (C,), generator)
    logit = (log_a - torch.log(-torch.expm1(log_a))).clamp(-WIDEST_LOGIT, WIDEST_LOGIT)
    bias_ih, bias_hh = uniform(rows), uniform(rows)
    keeping = slice(KEEPING[gate_kind] * C, (KEEPING[gate_kind] + 1) * C)
    bias_ih[keeping] = logit - bias_hh[keeping]
    return {
        "x": torch.randn(B, T, C, generator=generator, device=device),
        "weight_ih": uniform(rows, C),
        "weight_hh": uniform(rows, C),
        "bias_ih": bias_ih,
        "bias_hh": bias_hh,
        "cell": gate_kind,
    }


def sample_state(operands: Mapping[str, Any], generator: Generator) -> Tensor:
    """Draw h uniformly in (−1, 1), its range in both cells; the LSTM's c is standard normal."""
    x, weight = operands["x"], operands["weight_hh"]
    wide = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    size = (x.shape[0], weight.shape[1])
    h = 2 * torch.rand(size, generator=generator, device=generator.device) - 1
    if gate_kind(operands) == "lstm":
        h = torch.stack([h, torch.randn(size, generator=generator, device=generator.device)], dim=1)
    return h.to(wide)


@recurrence(
    "rnn",
    family="F0 nonlinear",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gate_kind=gate_kind,
    gate_kinds=("gru", "lstm"),
    sample=sample,
    state_shape=lambda shape: (shape["B"], shape["C"]),
    sample_state=sample_state,
    decay_span=lambda operands: 0.0,
    stepwise=True,
)
@without_autocast
def rnn(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    *,
    cell: str = "gru",
) -> tuple[Tensor, Tensor]:
    """A GRU or an LSTM, one step after another, with the equations and the gate order of torch.nn.

    gru, blocks r, z, n:     r = σ(W_r x + b_r + U_r h + b'_r);  z = σ(W_z x + b_z + U_z h + b'_z);
                             n = tanh(W_n x + b_n + r ⊙ (U_n h + b'_n));  h ← (1 − z) ⊙ n + z ⊙ h
    lstm, blocks i, f, g, o: i, f and o are sigmoids, g is a tanh;  c ← f ⊙ c + i ⊙ g;  h ← o ⊙ tanh(c)

    Args:
        x: input (B, T, I).
        weight_ih: the blocks of W stacked, (3C, I) for gru and (4C, I) for lstm.
        weight_hh: the blocks of U, (3C, C) or (4C, C).
        bias_ih: b, the biases of W x, (3C,) or (4C,).
        bias_hh: b', the biases of U h, (3C,) or (4C,). Only n of the GRU does not simply add the two.
        initial_state: h_0 (B, C) for gru; h_0 and c_0 as (B, 2, C) for lstm; zeros if None.
        cell: "gru" or "lstm".

    Returns:
        h (B, T, C) in the dtype of x, and the state after the last step, float32 or wider.

    Raises:
        UsageError: an unknown cell, or weights with another number of blocks than the cell's.
    """
    wide = torch.float32
    for operand in (x, weight_ih, weight_hh, bias_ih, bias_hh):
        wide = torch.promote_types(wide, operand.dtype)
    check(cell, weight_hh)
    W, U, b, b_h = (operand.to(wide) for operand in (weight_ih, weight_hh, bias_ih, bias_hh))
    C = U.shape[1]
    if initial_state is None:
        h = c = x.new_zeros(x.shape[0], C, dtype=wide)
    elif cell == "lstm":
        h, c = initial_state.to(wide).unbind(1)
    else:
        h = c = initial_state.to(wide)
    outputs = []
    for x_t in x.to(wide).unbind(1):
        from_x, from_h = (x_t @ W.mT + b).split(C, dim=-1), (h @ U.mT + b_h).split(C, dim=-1)
        if cell == "gru":
            r, z = torch.sigmoid(from_x[0] + from_h[0]), torch.sigmoid(from_x[1] + from_h[1])
            n = torch.tanh(from_x[2] + r * from_h[2])
            h = (1 - z) * n + z * h
        else:
            i, f, o = (torch.sigmoid(from_x[block] + from_h[block]) for block in (0, 1, 3))
            g = torch.tanh(from_x[2] + from_h[2])
            c = f * c + i * g
            h = o * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1).to(x.dtype), torch.stack([h, c], dim=1) if cell == "lstm" else h
