"""Tolerances: how far a result may be from float64. They are decided here and nowhere else.

A tolerance is derived from the rounding of the case's dtype and the error of an independent low-precision
evaluation; an approximate backend may declare a larger error bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.operands.decay import clamp_resets, decay_span
from ssmperf.operands.dtypes import differentiable, widen
from ssmperf.operands.subject import Subject
from ssmperf.registry.declarations import Backend, Recurrence

# Rounding bands, relative to the largest reference value (docs/recurrences.md#tolerances): forward, gradient.
BANDS = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (1e-5, 1e-4),
    torch.bfloat16: (2.0**-7, 2.0**-7),
    torch.float16: (2.0**-10, 2.0**-10),
}

LONG_SPAN = 1e6  # a decay span longer than any that is measured: a million steps with a gate of 1/e


def tolerance(
    low_error: float,
    dtype: torch.dtype,
    *,
    gradient: bool,
    bound: float | None = None,
    factor: float = 1.0,
) -> float:
    """Compute the largest relative error of a right result.

    It is 2 × (low-precision error + rounding band), or the declared bound if that is larger.

    low_error: error of an independent low-precision evaluation of the same operands.
    bound: error bound that an approximate backend declares for the operands' decay span.
    factor: how much larger the errors are than those of the low-precision evaluation, such as those of a
        combination that nearly cancels.
    """
    derived = 2 * (low_error + BANDS[dtype][gradient])
    return factor * max(derived, bound or 0.0)


def relative_error(actual: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """Divide the largest absolute difference by the largest absolute reference value (by 1 if that is 0).

    scale: divisor to use instead of the largest reference value.
    """
    if actual.numel() == 0:
        return 0.0
    difference = (widen(actual, torch.float64) - widen(expected, torch.float64)).abs().max().item()
    if scale is None:
        scale = float(expected.abs().max().item())
    return float(difference) / (scale or 1.0)


def error_bound(
    backend: Backend, recurrence: Recurrence, subject: Subject, operands: Mapping[str, Any], dtype: str
) -> float | None:
    """Look up the relative error that a backend declares for these operands in a dtype; None if it is exact.

    A reset counts in the decay span as the log gate to which a backend that computes with logarithms must
    clamp it.
    """
    if backend.error_bound is None:
        return None
    return backend.error_bound(
        decay_span(recurrence, clamp_resets(recurrence, subject.lower(operands))), dtype
    )


def is_approximate(backend: Backend, dtype: str) -> bool:
    """Tell whether a backend is approximate by declaration: its error bound grows with the decay span.

    A bound that does not grow is that of another order of rounding, as in a Fourier transform.
    """
    if backend.error_bound is None:
        return False
    try:
        return bool(backend.error_bound(LONG_SPAN, dtype) > backend.error_bound(0.0, dtype))
    except Exception:  # a bound that overflows, or is refused, at such a span
        return True


def perturb(operands: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Move each element of the operands at random by up to half a unit in the last place of its dtype."""
    perturbed: dict[str, Any] = {}
    for name, value in operands.items():
        if differentiable(value):
            real = value.dtype.to_real() if value.is_complex() else value.dtype
            generator = torch.Generator(value.device).manual_seed(len(perturbed))
            noise = torch.rand(value.shape, dtype=dtype, device=value.device, generator=generator) * 2 - 1
            factor = 1 + torch.finfo(real).eps / 2 * noise
            value = widen(value, dtype)
            if value.is_complex():  # by parts, since a complex product turns -inf + iφ into NaN
                value = torch.complex(value.real * factor, value.imag * factor)
            else:
                value = value * factor
        perturbed[name] = value
    return perturbed
