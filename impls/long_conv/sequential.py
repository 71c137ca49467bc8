"""One output after another from a delay line of the last L inputs: O(T·L) work."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .common import operands


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The inputs, the flipped kernel, the outputs, and the products of one step."""
    return (4 * shape["B"] + 1) * shape["T"] * shape["C"] * max(4, itemsize)


@backend("long_conv", name="sequential", launches=lambda shape: 2 * shape["T"] + 4, workspace=workspace)
@without_autocast
def sequential(u: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
    """A loop over time; each step weights the inputs that the kernel still reaches.

    Shapes, dtypes and results: see the recurrence `long_conv`.
    """
    inputs, lags = operands(u, kernel)
    L = len(lags)
    oldest_first = lags.flip(0)  # (L, C)
    outputs = []
    for t in range(1, u.shape[1] + 1):
        seen = min(t, L)
        outputs.append((inputs[:, t - seen : t] * oldest_first[L - seen :]).sum(1))
    return torch.stack(outputs, dim=1).to(u.dtype), None
