"""ErrorProfile: how far an object is from its exact value along each of its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssmperf.engine.operands.contract import AXES, TIME
from ssmperf.engine.operands.dtypes import widen

PIECE = 1 << 22  # elements that are compared at once
MOST_ON_CPU = 1 << 26  # elements; of a larger object on a CPU, every n-th channel or head is looked at
STATE_AXES = {
    2: ("batch", "channels"),
    3: ("batch", "channels", "state"),
    4: ("batch", "heads", "keys", "values"),
}


@dataclass(frozen=True, slots=True)
class ErrorProfile:
    """Errors of one object along each axis; tensors are on the CPU.

    axes: names of the axes. time: whether the second one is time.
    indices: the indices examined, by axis: all, unless the object is very large.
    along: the largest error at each of these indices, relative to the object's scale; infinite where a value
        is not finite.
    wrong: whether any element at an index is beyond its limit, by axis. None of them may be, if an object is
        wrong by the norm of a row alone. Where values are not finite, these alone count.
    worst: index of the element with the largest error.
    not_finite: number of elements that are not finite; first_not_finite: index of the first of them.
    finite_wrong: whether an element that is finite is beyond its limit.
    """

    axes: tuple[str, ...]
    time: bool
    shape: tuple[int, ...]
    indices: tuple[Tensor, ...]
    along: tuple[Tensor, ...]
    wrong: tuple[Tensor, ...]
    worst: tuple[int, ...]
    not_finite: int
    first_not_finite: tuple[int, ...] | None
    finite_wrong: bool

    @property
    def over_time(self) -> Tensor | None:
        """The largest error of each step, None for an object without time."""
        return self.along[TIME] if self.time else None

    def wrong_at(self, axis: int) -> list[int]:
        """List the indices of an axis at which some element is wrong."""
        found: list[int] = self.indices[axis][self.wrong[axis]].tolist()
        return found

    def box(self) -> list[Tensor]:
        """List the indices per axis between which all wrong elements lie; all if none is beyond its limit."""
        if not all(bool(wrong.any()) for wrong in self.wrong):
            return list(self.indices)
        return [index[wrong] for index, wrong in zip(self.indices, self.wrong, strict=True)]


def profile_of(
    actual: Tensor, expected: Tensor, *, limit: float | Tensor, scale: float, timed: bool, axes: Sequence[str]
) -> ErrorProfile:
    """Compare an object with its exact value, piece by piece, so that little memory is needed.

    limit: absolute error beyond which an element is wrong, one number or one per element (it broadcasts).
    scale: value to which errors are relative.
    """
    shape = tuple(actual.shape)
    indices = _looked_at(shape, actual.device.type, timed=timed)
    count = len(shape)
    cut = max(range(count), key=lambda axis: len(indices[axis]), default=0)
    along = [torch.zeros(len(index), dtype=torch.float64, device=actual.device) for index in indices]
    wrong = [torch.zeros(len(index), dtype=torch.bool, device=actual.device) for index in indices]
    row = max(1, math.prod(map(len, indices)) // max(1, len(indices[cut]))) if count else 1
    length = max(1, PIECE // row)
    not_finite, first, largest, worst, finite_wrong = 0, None, -1.0, (0,) * count, False
    for start in range(0, len(indices[cut]) if count else 0, length):
        own = [index[start : start + length] if axis == cut else index for axis, index in enumerate(indices)]
        difference = widen(chosen(actual, own), torch.float64) - widen(chosen(expected, own), torch.float64)
        difference = difference.abs()
        difference = torch.where(torch.isfinite(difference), difference, math.inf)
        limits = limit if isinstance(limit, float) else chosen(limit.expand(shape), own)
        beyond = difference > limits
        broken = ~torch.isfinite(chosen(actual, own))
        finite_wrong = finite_wrong or bool((beyond & ~broken).any())
        if bool(broken.any()):
            not_finite += int(broken.sum())
            here = _global(tuple(int(i) for i in broken.nonzero()[0]), own)
            first = here if first is None else min(first, here)
        top = int(difference.argmax())
        if float(difference.flatten()[top]) > largest:
            largest = float(difference.flatten()[top])
            worst = _global(_unravelled(top, difference.shape), own)
        for axis in range(count):
            others = [other for other in range(count) if other != axis]
            place = slice(start, start + length) if axis == cut else slice(None)
            found = difference.amax(others) if others else difference
            some = beyond.any(dim=tuple(others)) if others else beyond
            along[axis][place] = torch.maximum(along[axis][place], found / scale)
            wrong[axis][place] |= some
    return ErrorProfile(
        axes=tuple(axes),
        time=timed,
        shape=shape,
        indices=tuple(indices),
        along=tuple(each.cpu() for each in along),
        wrong=tuple(
            (each.isinf() if not_finite else flag).cpu() for each, flag in zip(along, wrong, strict=True)
        ),
        worst=worst,
        not_finite=not_finite,
        first_not_finite=first,
        finite_wrong=finite_wrong,
    )


def axes_of(
    name: str, shape: Sequence[int], output_dims: int, *, timed: bool, heads: int | None = None
) -> tuple[str, ...]:
    """Name the axes of an object, such as batch, time, heads and channels.

    heads: number of heads, which tells a state with a row for every step from other states.
    """
    count = len(shape)
    is_state = name in ("final_state", "initial_state")
    if timed or (is_state and count == 4 and shape[1] != heads == shape[2]):
        known = AXES[4][:3] if count == 3 and output_dims == 4 else AXES.get(count)
    else:
        known = STATE_AXES.get(count) if is_state else None
    return known or tuple(f"axis {axis}" for axis in range(count))


def chosen(tensor: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Restrict a tensor to some indices per axis; a view where all of an axis is taken."""
    for axis, index in enumerate(indices):
        size = tensor.shape[axis]
        if len(index) == size:
            continue
        first, last = int(index[0]), int(index[-1])
        if last - first + 1 == len(index):
            tensor = tensor.narrow(axis, first, len(index))
        else:
            tensor = tensor.index_select(axis, index.to(tensor.device))
    return tensor


def trimmed(indices: Sequence[Tensor], worst: Sequence[int], *, whole: Sequence[int] = ()) -> list[Tensor]:
    """Take fewer indices of each axis, the worst among them, until no more than a piece is left.

    whole: axes that are not cut. An axis is halved around the worst index, the first axes first.
    """
    kept = list(indices)
    for axis in [axis for axis in range(len(kept)) if axis not in whole]:
        while len(kept[axis]) > 1 and math.prod(map(len, kept)) > PIECE:
            index = kept[axis]
            place = int((index - worst[axis]).abs().argmin())
            half = -(-len(index) // 2)
            start = max(0, min(place - half // 2, len(index) - half))
            kept[axis] = index[start : start + half]
    return kept


def _looked_at(shape: Sequence[int], device: str, *, timed: bool) -> list[Tensor]:
    strides = [1] * len(shape)
    most = MOST_ON_CPU if device == "cpu" else math.inf

    def count(axis: int) -> int:
        return -(-shape[axis] // strides[axis])

    while math.prod(map(count, range(len(shape)))) > most:
        others = [axis for axis in range(len(shape)) if count(axis) > 1 and not (timed and axis == TIME)]
        strides[max(others, key=count) if others else TIME] *= 2
    return [torch.arange(0, size, stride) for size, stride in zip(shape, strides, strict=True)]


def _global(index: Sequence[int], own: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(int(indices[place]) for place, indices in zip(index, own, strict=True))


def _unravelled(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    where: tuple[int, ...] = ()
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        where = (index, *where)
    return where
