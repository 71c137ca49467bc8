"""A scan with the same gate at every step: a convolution with the gate's powers, by padded transforms.

docs/recurrences.md#fft, with the kernel K_j = a^j; the initial state enters as a^t h_0.
"""

from __future__ import annotations

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from ssmperf.authoring import Shape, Unsupported, backend

from .common import Operands, as_backend, gate


def error_bound(span: float, dtype: str) -> float:
    """Bound the error relative to the largest state, for inputs that the gate does not cancel.

    The error is absolute, at most about 1e-6 ‖a^j‖‖b‖ in float32. Where a slow gate sums the inputs to
    nothing (alternating signs under a gate of 1), states are off by up to 1e-7 T. A state far smaller than
    the largest has no correct digit.
    """
    return {"float64": 1e-12, "float32": 2e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Padded inputs and states and their spectra, twice as large under a complex gate."""
    real = 16 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)
    return 2 * real if gate_kind.endswith("_complex") else real


def powers(log_a: Tensor, phase: Tensor | None, count: int) -> Tensor:
    """Compute a^j for j = 0 .. count − 1 along axis 1 from the log of a gate a (B|1, 1, C|1); 0^0 = 1."""
    j = torch.arange(count, device=log_a.device).view(1, -1, 1)
    return gate(torch.where(j > 0, j * log_a, 0), None if phase is None else j * phase)


@backend(
    "scan",
    name="fft",
    gates=("const", "const_complex"),
    causal="tolerance",
    batches="tolerance",  # by cuFFT, other items change the last bits
    error_bound=error_bound,
    launches=lambda shape: 30,
    workspace=workspace,
)
@as_backend
def fft(x: Operands) -> Tensor:
    """h_t = Σ_{s≤t} a^(t−s) b_s + a^t h_0; the sum by Fourier transforms of at least 2T − 1 steps.

    Rounding errors spread over the whole output, so later inputs change earlier outputs by about 1e-6 of
    their size.

    Raises:
        Unsupported: log_a or phase changes over time.
    """
    T, is_complex = x.T, x.b.is_complex()
    if max(operand.shape[1] for operand in (x.log_a, x.phase) if operand is not None) > 1:
        raise Unsupported("the gate changes over time: a Fourier transform needs the same gate at every step")
    decay = powers(x.log_a, x.phase, T + 1).to(x.b.dtype)  # (B|1, T + 1, C|1)
    length = next_fast_len(2 * T - 1, real=not is_complex)
    forth, back = (torch.fft.fft, torch.fft.ifft) if is_complex else (torch.fft.rfft, torch.fft.irfft)
    spectrum = forth(x.b, length, dim=1) * forth(decay[:, :T], length, dim=1)
    driven: Tensor = back(spectrum, length, dim=1)[:, :T]
    return driven + decay[:, 1:] * x.state.unsqueeze(1)
