"""The convolution as a product of spectra, both signals padded to T + L − 1 (docs/recurrences.md#fft)."""

from __future__ import annotations

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .common import operands


def error_bound(span: float, dtype: str) -> float:
    """Bound the error relative to the largest output, for inputs that the kernel does not cancel.

    The error is absolute, at most about 1e-6 ‖K‖‖u‖ in float32. Where a long kernel sums the inputs to
    nothing (alternating signs under a constant kernel), outputs are off by up to 1e-7 T. An output far
    smaller than the largest has no correct digit.
    """
    return {"float64": 1e-12, "float32": 2e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Padded inputs and outputs, and three spectra."""
    return (6 * shape["B"] + 4) * 2 * shape["T"] * shape["C"] * max(4, itemsize)


@backend(
    "long_conv",
    name="fft",
    causal="tolerance",
    batches="tolerance",  # by cuFFT, other items change the last bits
    error_bound=error_bound,
    launches=lambda shape: 12,
    workspace=workspace,
)
@without_autocast
def fft(u: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
    """y = irfft(rfft(u) · rfft(K)), padded so that nothing wraps around, to a length of small prime factors.

    Rounding errors spread over the whole output, so later inputs change earlier outputs by about 1e-6 of
    their size. Shapes, dtypes and results: see the recurrence `long_conv`.
    """
    inputs, lags = operands(u, kernel)
    T = u.shape[1]
    length = next_fast_len(T + len(lags) - 1, real=True)
    spectrum = torch.fft.rfft(inputs, length, dim=1) * torch.fft.rfft(lags, length, dim=0)
    return torch.fft.irfft(spectrum, length, dim=1)[:, :T].to(u.dtype), None
