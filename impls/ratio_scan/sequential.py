"""One step after another: first the exponents, then P and Q scaled by them."""

from __future__ import annotations

import torch

from ssmperf.authoring import Shape, backend

from ..scan.common import over_time
from .common import Operands, State, as_backend


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Exponents, gates and inputs of the scaled recurrence, its states, and the exponentials of the read."""
    return 14 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="sequential", launches=lambda shape: 3 * shape["T"] + 20, workspace=workspace)
@as_backend
def sequential(x: Operands) -> State:
    """Two loops over time: m_t = max(m_{t-1} + log_w_t, k_t), then (p, q); the exponentials lie between."""
    decay = over_time(x.log_w, x.T)
    m_0, p_0, q_0 = x.initial
    with torch.no_grad():
        exponents = [m_0]
        for decay_t, key_t in zip(decay.unbind(1), x.k.unbind(1), strict=True):
            exponents.append(torch.maximum(exponents[-1] + decay_t, key_t))
        tops = torch.stack(exponents, dim=1)
        m_before, m = tops[:, :-1], tops[:, 1:]
    # m_before − m is exact where the two are near: this restores what rounding took from m_before + decay
    gates = torch.exp((m_before - m) + x.log_w).unsqueeze(2)
    present = torch.exp(x.k - m)
    inputs = torch.stack([present * x.v, present], dim=2)  # (B, T, 2, C)
    pair, pairs = torch.stack([p_0, q_0], dim=1), []
    for gate_t, input_t in zip(gates.unbind(1), inputs.unbind(1), strict=True):
        pair = torch.addcmul(input_t, gate_t, pair)
        pairs.append(pair)
    p, q = torch.stack(pairs, dim=1).unbind(2)
    return m, p, q
