"""A scan whose gate is the same at every step, as a convolution with the gate's powers by padded transforms.

RECURRENCES.md §4.12, with the kernel K_j = a^j; the initial state enters as a^t h_0.
"""

from __future__ import annotations

import math

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from ssmperf import Shape, Unsupported, backend

from .common import operands, result


def error_bound(span: float, dtype: str) -> float:
    """Relative to the largest state, for inputs that the gate does not cancel.

    The error is absolute, at most about 1e-6 ‖a^j‖‖b‖ in float32. Inputs that a slow gate sums to nothing
    (alternating signs under a gate of 1) are off by up to 1e-7 T, and a state far below the largest
    has no correct digit.
    """
    return {"float64": 1e-12, "float32": 2e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Padded inputs and states with their spectra, complex where the gate is."""
    real = 16 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)
    return 2 * real if gate_kind.endswith("_complex") else real


def powers(log_a: Tensor, phase: Tensor | None, count: int) -> Tensor:
    """a^j for j = 0 .. count − 1 along axis 1, from one gate (B|1, 1, C|1); 0^0 = 1."""
    j = torch.arange(count, device=log_a.device).view(1, -1, 1)
    magnitude = torch.exp(torch.where(j > 0, j * log_a, 0))
    if phase is None:
        return magnitude
    angle = torch.remainder(j * phase, 2 * math.pi).to(magnitude.dtype)
    # not polar, whose gradient is no number where the magnitude underflows
    return torch.complex(magnitude * torch.cos(angle), magnitude * torch.sin(angle))


@backend(
    "scan",
    name="fft",
    gates=("const", "const_complex"),
    causal="tolerance",
    error_bound=error_bound,
    launches=lambda shape: 30,
    workspace=workspace,
)
def fft(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = Σ_{s≤t} a^(t−s) b_s + a^t h_0 with the sum by Fourier transforms of 2T − 1 steps or more.

    Rounding errors spread over the whole output, so the future moves the past by about 1e-6 of its size.
    Shapes, dtypes and results: see the recurrence `scan`.

    Raises:
        Unsupported: log_a or phase changes over time.
    """
    log_a, phase, inputs, state = operands(log_a, b, initial_state, phase)
    T = inputs.shape[1]
    if max(operand.shape[1] for operand in (log_a, phase) if operand is not None) > 1:
        raise Unsupported("the gate changes over time: a Fourier transform needs the same one at every step")
    decay = powers(log_a, phase, T + 1).to(inputs.dtype)  # (B|1, T + 1, C|1)
    length = next_fast_len(2 * T - 1, real=not inputs.is_complex())
    forth, back = (
        (torch.fft.fft, torch.fft.ifft) if inputs.is_complex() else (torch.fft.rfft, torch.fft.irfft)
    )
    spectrum = forth(inputs, length, dim=1) * forth(decay[:, :T], length, dim=1)
    driven = back(spectrum, length, dim=1)[:, :T]
    return result(driven + decay[:, 1:] * state.unsqueeze(1), b)
