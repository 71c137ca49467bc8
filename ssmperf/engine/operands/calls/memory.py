"""Views of tensors in memory, as callers pass them: parts, transposed and expanded ones; and copies of these.

A kernel may take a tensor's strides into account, copy it, or refuse it. It must not read it as if it were
contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.engine.operands.time_axis import time_last

AROUND = 100.0  # what lies between the numbers of a view, most of which are near 1


def viewed(x: Tensor, view: str) -> Tensor:
    """Show a tensor's values as a view of other memory. `expanded` shows the first batch item as all."""
    if view == "transposed":
        return time_last(x) if x.dim() > 2 else x.mT.contiguous().mT if x.dim() == 2 else x
    if view == "expanded":
        return x[:1].clone().expand_as(x)
    *outer, last = x.shape if x.dim() else (1,)
    strided = view == "strided"
    whole = torch.full((*outer, 2 * last), AROUND, dtype=x.dtype, device=x.device)
    part = whole[..., ::2] if strided else whole[..., last // 2 : last // 2 + last]
    part.copy_(x)
    return part.view(x.shape) if x.dim() == 0 else part


def one_number(x: Tensor) -> Tensor:
    """Show a tensor's first number everywhere, as the gradient of a sum is shown."""
    return x.flatten()[:1].clone().view([1] * x.dim()).expand_as(x)


def copied(x: Tensor) -> Tensor:
    """Copy a tensor into new memory with the same strides; of an expanded one, the numbers that it shows."""
    base = _shown(x)
    if base.is_contiguous() or _dense(base):
        return base.clone().expand_as(x)
    size = 1 + sum((count - 1) * stride for count, stride in zip(base.shape, base.stride(), strict=True))
    memory = torch.full((size,), AROUND, dtype=x.dtype, device=x.device)
    return memory.as_strided(base.shape, base.stride()).copy_(base).expand_as(x)


def write(values: Tensor, into: Tensor) -> None:
    """Copy values into a tensor, of which an expanded one holds fewer."""
    held, own = held_by(into, values)
    held.copy_(own)


def held_by(into: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Give the part of a tensor that holds its numbers, and the same part of others of its shape."""
    held = _shown(into)
    if held is into:
        return into, *values
    slices = tuple(slice(0, count) for count in held.shape)
    return held, *(each[slices] for each in values)


def _shown(x: Tensor) -> Tensor:
    """Give the part of an expanded tensor that holds its numbers."""
    if 0 not in x.stride():
        return x
    return x[tuple(slice(0, 1 if stride == 0 else None) for stride in x.stride())]


def _dense(x: Tensor) -> bool:
    """Tell whether a tensor's numbers fill its memory in some order of its axes."""
    expected = 1
    for stride, count in sorted(zip(x.stride(), x.shape, strict=True)):
        if count > 1 and stride != expected:
            return False
        expected *= count
    return True
