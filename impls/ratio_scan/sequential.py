"""One step after another: first the exponents, then P and Q in their scale."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, backend

from .common import operands, result


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Exponents, gates and inputs of the scaled recurrence, its states, and the readout's exponentials."""
    return 14 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="sequential", launches=lambda shape: 3 * shape["T"] + 20, workspace=workspace)
def sequential(
    log_w: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, *, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Two loops over time: m_t = max(m_{t-1} + log_w_t, k_t), then (p, q); all exponentials lie between.

    Shapes, dtypes and results: see the recurrence `ratio_scan`.
    """
    decay, keys, values, initial, bonus = operands(log_w, k, v, initial_state, bonus)
    T = k.shape[1]
    with torch.no_grad():
        exponents = [initial[0]]
        for decay_t, key_t in zip(decay.expand(-1, T, -1).unbind(1), keys.unbind(1), strict=True):
            exponents.append(torch.maximum(exponents[-1] + decay_t, key_t))
        tops = torch.stack(exponents, dim=1)
        m_before, m = tops[:, :-1], tops[:, 1:]
    # m_before − m is exact where the two are near: it gives back what rounding took from m_before + decay
    gates = torch.exp((m_before - m) + decay).unsqueeze(2)
    present = torch.exp(keys - m)
    inputs = torch.stack([present * values, present], dim=2)  # (B, T, 2, C)
    pair, pairs = torch.stack(initial[1:], dim=1), []
    for gate_t, input_t in zip(gates.unbind(1), inputs.unbind(1), strict=True):
        pair = torch.addcmul(input_t, gate_t, pair)
        pairs.append(pair)
    p, q = torch.stack(pairs, dim=1).unbind(2)
    output, final = result((m, p, q), initial, keys, values, bonus)
    return output.to(v.dtype), final
