"""One query after another: T dependent steps over a cache that grows."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend


def launches(shape: Shape) -> float:
    """The scores, weights and read of every step."""
    return 7 * shape["T"] + 12


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Keys and values in working precision, the outputs, and the scores of one step."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    return B * H * ((T + shape.get("S", 0)) * (2 * K + 2 * V + 4) + 2 * T * V) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The weights of every step, with a forget gate also their logarithms.

    The keys and values up to every step, too, which a product of more than one sequence copies.
    """
    numbers = 1 if gate_kind == "none" else 2
    numbers += shape["K"] + shape["V"] if shape["B"] > 1 else 0
    return numbers * shape["B"] * shape["H"] * shape["T"] ** 2 / 2 * max(4, itemsize)


@backend("softmax_attention", name="sequential", launches=launches, workspace=workspace, saved=saved)
@as_backend
def sequential(x: Operands) -> Tensor:
    """A loop over queries, each against all keys up to its own."""
    log_weight, outputs = x.log_past, []
    gates = [None] * x.T if x.log_f is None else x.log_f.unsqueeze(-2).unbind(-1)  # (B, H, 1)
    for n, (q_n, log_f_n) in enumerate(zip(x.q.split(1, dim=2), gates, strict=True), start=x.S + 1):
        scores = q_n @ x.keys[:, :, :n].mT  # (B, H, 1, n)
        if log_f_n is not None:
            # without a past, a gate weighs nothing, but has a gradient: zeros
            earlier = log_f_n[..., :0] if log_weight is None else log_weight + log_f_n
            log_weight = torch.cat([earlier, torch.zeros_like(log_f_n)], dim=-1)
            scores = scores + log_weight.unsqueeze(-2)
        outputs.append(torch.softmax(scores, dim=-1) @ x.values[:, :, :n])
    return torch.cat(outputs, dim=2)
