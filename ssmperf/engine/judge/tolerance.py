"""Tolerances: how far a result may be from float64. Their formula and its factors are here.

A tolerance is derived from the rounding of the case's dtype and the error of an independent low-precision
evaluation; an approximate backend may declare a larger error bound. Some judges compare with a multiple of a
tolerance: the factors have their reasons below.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.operands.decay import clamp_resets, decay_span
from ssmperf.engine.operands.dtypes import differentiable, widen
from ssmperf.engine.operands.subject import Subject
from ssmperf.engine.registry.declarations import Backend, Recurrence

# Rounding bands, relative to the largest reference value (docs/recurrences.md#tolerances): forward, gradient.
BANDS = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (1e-5, 1e-4),
    torch.bfloat16: (2.0**-7, 2.0**-7),
    torch.float16: (2.0**-10, 2.0**-10),
}
# The same for 2-norms of rows. In half precision it is an eighth: one rounding is half the band at most, but
# its root mean square only a fifth, and the low-precision error of a row contains one already.
ROW_BANDS = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (1e-5, 1e-4),
    torch.bfloat16: (2.0**-10, 2.0**-10),
    torch.float16: (2.0**-13, 2.0**-13),
}
OPERANDS = 1000  # more than a call has; each has random numbers of its own
GATE_UNITS = 4  # units in the last place of which `gate_noise` consists
SHORTEST_ROW = 16  # elements; the rounding errors of fewer do not average out
# Of the largest row; smaller rows count as having this size. In float32 the band of a smaller one would be
# less than the rounding of a few terms of the largest row's size.
SMALLEST_ROW = {torch.float32: 2.0**-7}
SMALLEST_ROW_ELSE = 2.0**-10
# Normally distributed numbers of a shortest row have the energy of a third as many; fewer do not average out.
FEWEST = SHORTEST_ROW / 4

# Factors by which judges multiply a tolerance.
# Two results of a backend are compared: each may err by its tolerance.
TWO_RESULTS = 2.0
# 2 f(x) − 3 f(y) is compared with f(2x − 3y): the combination scales an error by 3 at most.
LINEAR_COMBINATION = 3.0
# A second derivative is judged by the tolerance of a first one: it sums products of three factors.
SECOND_DERIVATIVE = 4.0
# A timed call's values are rounded once more than a draw's, and its tolerance is that of another draw.
ROUNDED_AGAIN = 2.0
# The low-precision evaluation of a network rounds operands and results of each layer, and its errors are
# multiplied. A fused kernel rounds values inside, too, such as the weights of attention. In one layer the
# rounding band covers that rounding; in a network the rounding of all layers adds up.
ROUNDED_INSIDE = 2.0

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
MIXERS = (-1640531535, 739982445, 695872825)  # odd numbers, for products that mix the bits of others

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


def within_float32(errors: Mapping[str, float], tolerances: Mapping[str, float]) -> bool:
    """Tell whether errors above tolerances of float64 are no larger than float32's rounding makes them."""
    units = BANDS[torch.float32][0] / BANDS[torch.float64][0]
    return bool(errors) and all(error <= units * tolerances[name] for name, error in errors.items())


def row_tolerance(low_error: float, dtype: torch.dtype, *, gradient: bool) -> float:
    """Compute the largest relative error of a right row: 2 × (low-precision error + rounding band)."""
    return 2 * (low_error + ROW_BANDS[dtype][gradient])


def row_axes(shape: Sequence[int], *, timed: bool) -> tuple[int, ...] | None:
    """Choose the axes that one row of an object covers; None if the object is too small for rows.

    A row is a sequence: all time steps of one channel in one batch item. Where that is too short, all of a
    batch item is one row. Without a time axis, a row is the last axis, with as many before it as are needed.
    """
    count = len(shape)
    if timed:
        choices = [(1,), tuple(range(1, count))]
    else:
        choices = [tuple(range(first, count)) for first in reversed(range(count))]
    lengths = (math.prod(shape[axis] for axis in axes) for axes in choices)
    return next((axes for axes, length in zip(choices, lengths, strict=True) if length >= SHORTEST_ROW), None)


def row_sizes(expected: Tensor, axes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Compute the 2-norm of each row, at least `smallest_row` of the largest (1 if all are 0).

    Smaller rows are what others have left when they cancelled, and hold their rounding errors.

    A row whose energy lies in fewer than `FEWEST` elements, such as the gradient of values that all but the
    last step forget, may be one number in which rounded terms have cancelled. It counts as having the root
    mean square of the rows of its batch item at least, and its tolerance is that of elements.

    dtype: in which the results are judged.
    """
    wide, covered = widen(expected, torch.float64), tuple(axes)
    sizes = torch.linalg.vector_norm(wide, dim=covered)
    largest = float(sizes.max())
    if not largest:
        return torch.ones_like(sizes)
    sizes = sizes.clamp(min=smallest_row(dtype) * largest)
    others = tuple(range(1, sizes.dim()))
    typical = sizes.square().mean(others, keepdim=True).sqrt() if others else sizes
    few = effective_length(wide, covered) < FEWEST
    of_elements = BANDS[dtype][0] / ROW_BANDS[dtype][0]
    return torch.where(few, of_elements * torch.maximum(sizes, typical), sizes)


def smallest_row(dtype: torch.dtype) -> float:
    """Give the size, as a share of the largest row's, that smaller rows count as having."""
    return SMALLEST_ROW.get(dtype, SMALLEST_ROW_ELSE)


def effective_length(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Count the elements over which the energy of each row is spread, (Σ x²)² / Σ x⁴; 0 in a row of zeros."""
    scaled = values.abs() / values.abs().amax(axes, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    energy = scaled.square()
    return energy.sum(axes).square() / energy.square().sum(axes).clamp(min=1.0)


def row_errors(actual: Tensor, expected: Tensor, axes: Sequence[int], sizes: Tensor) -> Tensor:
    """Divide the 2-norm of each row's difference by the row's size."""
    difference = widen(actual, torch.float64) - widen(expected, torch.float64)
    errors: Tensor = torch.linalg.vector_norm(difference, dim=tuple(axes)) / sizes
    return errors


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


def perturb(
    operands: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    gently: Collection[str] = (),
    draw: int = 0,
    alike: bool = False,
) -> dict[str, Any]:
    """Move each element of the operands at random by up to half a unit in the last place of its dtype.

    gently: names of those that are moved by up to a quarter. draw: another number moves them otherwise.
    alike: whether equal numbers in the same place of a step are moved equally.
    """
    perturbed: dict[str, Any] = {}
    for name, value in operands.items():
        if differentiable(value):
            real = value.dtype.to_real() if value.is_complex() else value.dtype
            noise = (alike_noise if alike else own_noise)(value, dtype, len(perturbed) + OPERANDS * draw)
            factor = 1 + torch.finfo(real).eps / (4 if name in gently else 2) * noise
            value = widen(value, dtype)
            if value.is_complex():  # by parts, since a complex product turns -inf + iφ into NaN
                value = torch.complex(value.real * factor, value.imag * factor)
            else:
                value = value * factor
        perturbed[name] = value
    return perturbed


def own_noise(values: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Draw a number between −1 and 1 for each element."""
    generator = torch.Generator(values.device).manual_seed(seed)
    return torch.rand(values.shape, dtype=dtype, device=values.device, generator=generator) * 2 - 1


def alike_noise(values: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """Give each element a number between −1 and 1, at random but for what it depends on: value and place.

    A place is one in a step (B, T, ...), or in the whole of what has fewer axes.
    """
    real = (values.real if values.is_complex() else values).detach().resolve_neg().contiguous()
    bits = real.view(INTEGERS[real.element_size()])
    mixed = (bits ^ bits >> 32 if bits.dtype == torch.int64 else bits).to(torch.int32, copy=True)
    places = values.shape[2:] if values.dim() > 2 else values.shape
    place = torch.arange(math.prod(places), device=values.device).view(places)
    mixed = mixed.mul_(MIXERS[0]).add_((place * MIXERS[1] + seed * MIXERS[2]).to(torch.int32))
    for factor in MIXERS:
        mixed = mixed.bitwise_xor_(mixed >> 15).mul_(factor)
    return mixed.to(dtype) / 2.0**31


def add_noise(values: Tensor, amount: float, *, timed: bool, draw: int = 0) -> Tensor:
    """Move each element at random by up to an amount of its size; with time, of its sequence's largest.

    draw: another number moves them otherwise.
    """
    parts = torch.view_as_real(values) if values.is_complex() else values
    sizes = values.abs().amax(1, keepdim=True) if timed else values.abs()
    noise = own_noise(parts, parts.dtype, draw)
    noise = torch.view_as_complex(noise) if values.is_complex() else noise
    return values + amount * sizes * noise


def gate_noise(log_gate: Tensor, gradient: Tensor, dtype: torch.dtype) -> float:
    """Compute the error that the gradient of a log gate has when it is found as a difference of sums.

    That gradient is the gate times the gradient at the gate. Fused kernels subtract sums of the size of the
    latter, so it is off by some units in the last place of the largest of them, however small the gate.

    dtype: in which the sums are computed.
    """
    at_gate = (widen(gradient, torch.float64) * torch.exp(-widen(log_gate, torch.float64))).abs()
    largest = float(torch.where(torch.isfinite(at_gate), at_gate, 0).max())  # a reset has 0 · inf
    return GATE_UNITS * torch.finfo(dtype).eps * largest


def state_noise(arriving: Tensor, dtype: torch.dtype) -> float:
    """Compute the error that the gradient of the initial state has where steps remove what the state holds.

    Right backends subtract sums of the size of the gradient that arrives at the final state. What is left of
    it may be smaller than the rounding of these sums by any factor, where only the final state is used.
    """
    return BANDS[dtype][True] / 2 * float(arriving.abs().max()) if arriving.numel() else 0.0


def is_wider(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Tell whether a dtype, of which a complex one has two parts, has more digits than another."""
    return torch.finfo(dtype).eps < torch.finfo(other).eps
