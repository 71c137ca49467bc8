"""The convolution block by block: input and kernel are cut into blocks and padded to twice their length.

Uniformly partitioned overlap-add. The transforms are short. Their spectra are multiplied and summed along the
diagonals of a small Toeplitz matrix of blocks. Each output is two blocks long and overlaps with the next.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .common import operands

LEAST_BLOCK = 16
MOST_BLOCKS = 8  # the number of products grows with its square


def block_length(T: int) -> int:
    """Choose the least power of two from LEAST_BLOCK on that cuts T steps into at most MOST_BLOCKS blocks."""
    return max(LEAST_BLOCK, 1 << (-(-T // MOST_BLOCKS) - 1).bit_length())


def error_bound(span: float, dtype: str) -> float:
    """Bound the error relative to the largest output, for inputs that the kernel does not cancel.

    The error is absolute, at most about 1e-6 ‖K‖‖u‖ in float32. Where a long kernel sums the inputs to
    nothing (alternating signs under a constant kernel), outputs are off by up to 1e-8 T. An output far
    smaller than the largest has no correct digit.
    """
    return {"float64": 1e-12, "float32": 2e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Padded inputs and outputs, and four spectra."""
    return (10 * shape["B"] + 4) * 2 * shape["T"] * shape["C"] * max(4, itemsize)


@backend(
    "long_conv",
    name="overlap_add",
    causal="tolerance",
    error_bound=error_bound,
    launches=lambda shape: 16 + 3 * MOST_BLOCKS,
    workspace=workspace,
)
@without_autocast
def overlap_add(u: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
    """Y_p = Σ_q K_q U_{p−q} over blocks, each product a linear convolution of two blocks.

    Shapes, dtypes and results: see the recurrence `long_conv`.
    """
    inputs, lags = operands(u, kernel)
    B, T, C = u.shape
    S = block_length(T)
    P, Q = -(-T // S), -(-len(lags) // S)
    blocks = functional.pad(inputs, (0, 0, 0, P * S - T)).view(B, P, S, C)
    taps = functional.pad(lags, (0, 0, 0, Q * S - len(lags))).view(Q, S, C)
    U = torch.fft.rfft(blocks, 2 * S, dim=2)  # (B, P, S + 1, C)
    K = torch.fft.rfft(taps, 2 * S, dim=1)
    Y = torch.zeros_like(U)
    for q in range(Q):
        Y = Y + functional.pad(K[q] * U[:, : P - q], (0, 0, 0, 0, q, 0))
    early, late = torch.fft.irfft(Y, 2 * S, dim=2).split(S, dim=2)
    y = early + functional.pad(late[:, :-1], (0, 0, 0, 0, 1, 0))
    return y.reshape(B, P * S, C)[:, :T].to(u.dtype), None
