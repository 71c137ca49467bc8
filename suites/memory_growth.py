"""Growth of memory with a size, fitted to the peaks at a few."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a call's memory with one dimension, fitted to calls of a few sizes.

    size: the largest size measured.
    input_bytes: operands, and the incoming gradient of a pass with gradients, at `size`; input_step is what
        they gain per unit.
    peak_bytes: what the call adds, at `size`; fixed_bytes of these do not grow, such as the gradients of
        parameters.
    exponent: the p by which the rest grows as size^p.
    """

    size: int
    input_bytes: float
    input_step: float
    peak_bytes: float
    fixed_bytes: float
    exponent: float

    @classmethod
    def fitted(cls, sizes: Sequence[int], inputs: Sequence[int], peaks: Sequence[int]) -> Growth | None:
        """Fit the growth to the bytes at some sizes, in rising order; None if they do not determine it."""
        exponent = growth_exponent(sizes, peaks) if peaks else None
        if exponent is None:
            return None
        fixed, power = constant_and_power(sizes, peaks) or (0.0, exponent)
        step = (inputs[-1] - inputs[0]) / (sizes[-1] - sizes[0])
        return cls(sizes[-1], inputs[-1], step, peaks[-1], fixed, power)

    def predicted_bytes(self, size: int) -> float:
        """Predict the memory that a size needs, operands included."""
        growing = (self.peak_bytes - self.fixed_bytes) * float((size / self.size) ** self.exponent)
        return self.predicted_input_bytes(size) + self.fixed_bytes + growing

    def predicted_input_bytes(self, size: int) -> float:
        """Predict the memory of the operands and of the incoming gradient."""
        return self.input_bytes + self.input_step * (size - self.size)


def growth_exponent(sizes: Sequence[int], peaks: Sequence[float]) -> float | None:
    """Fit the slope of log peak over log size by least squares; None if the peaks do not determine it."""
    if len(sizes) < 2 or min(peaks) <= 0:
        return None
    x, y = ([math.log(value) for value in values] for values in (sizes, peaks))
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((value - mean_x) ** 2 for value in x)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def constant_and_power(sizes: Sequence[int], peaks: Sequence[float]) -> tuple[float, float] | None:
    """Solve peak = constant + c·size^p for the constant and p; None if no constant ≥ 0 and p > 0 do.

    Three sizes, each the same multiple of the one before, determine p by the ratio of the differences. Two
    sizes determine a line.
    """
    steps = [after - before for before, after in itertools.pairwise(peaks)]
    if not steps or min(steps) <= 0:
        return None
    ratio = sizes[-1] / sizes[-2]
    power = 1.0
    if len(sizes) == 3 and sizes[1] / sizes[0] == ratio:
        power = math.log(steps[1] / steps[0]) / math.log(ratio)
    if power <= 0:
        return None
    fixed = peaks[-1] - steps[-1] / (1 - float(ratio**-power))
    return (fixed, power) if fixed >= 0 else None


def growths(sizes: Sequence[int], inputs: Sequence[int], peaks: Sequence[int]) -> list[Growth]:
    """List the growths that the peaks at three sizes or more allow, that of all of them first.

    The others go by the power from one size to the next. Powers agree where one law holds; where a size is
    padded to a chunk, or the first are shorter than one, they do not.
    """
    fitted = Growth.fitted(sizes, inputs, peaks)
    if fitted is None or len(sizes) < 3:
        return [fitted] if fitted else []
    powers = [growth_exponent(sizes[i : i + 2], peaks[i : i + 2]) or 0.0 for i in range(len(sizes) - 1)]
    return [fitted, *(replace(fitted, fixed_bytes=0.0, exponent=power) for power in powers)]


def apart(values: Sequence[float], factor: float) -> tuple[float, float] | None:
    """Give the least and the largest of some values, if these are further apart than a factor."""
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    return (low, high) if high > factor * low else None
