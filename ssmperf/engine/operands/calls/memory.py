"""Views of tensors in memory, as callers pass them: parts, transposed and expanded ones; and copies of these.

A kernel may take a tensor's strides into account, copy it, or refuse it. It must not read it as if it were
contiguous, began at an aligned address, or had offsets of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.call import SHIFTS
from ssmperf.engine.operands.calls.sparse_memory import sparse
from ssmperf.engine.operands.time_axis import time_last
from ssmperf.errors import Unsupported

ALIGNED = 128  # elements: any stride or shift of a multiple keeps an address aligned
FAR = 2**31  # elements: offsets beyond do not fit 32 bits with a sign
AROUND = 100.0  # what lies between the numbers of a view, most of which are near 1


def viewed(x: Tensor, view: str) -> Tensor:
    """Show a tensor's values as a view of other memory. `expanded` shows the first batch item as all.

    Raises:
        Unsupported: the tensor has no such view.
    """
    if view == "transposed":
        return time_last(x) if x.dim() > 2 else x.mT.contiguous().mT if x.dim() == 2 else x
    if view == "expanded":
        return x[:1].clone().expand_as(x)
    if view == "one_head":
        return x[:, :, :1].clone().expand_as(x) if x.dim() > 3 else x
    if view == "ones":
        return torch.ones_like(x)
    if view == "negated":
        return _negated(x)
    if view in SHIFTS:
        return _at(SHIFTS[view], x if _dense(x) else x.contiguous())
    if view == "far":
        return _far(x if _dense(x) else x.contiguous())
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
    """Copy a tensor into new memory with the same strides; of an expanded one, the numbers that it shows.

    A dense tensor keeps its distance from an aligned address.
    """
    base = _shown(x)
    if base.is_neg() or base.is_conj():
        return _negated(base).expand_as(x)
    if base.is_contiguous() or _dense(base):
        shift = int(base.storage_offset()) % ALIGNED
        return (_at(shift, base) if shift else base.clone()).expand_as(x)
    size = _extent(base.shape, base.stride())
    if size > FAR:
        memory = sparse(size, x.dtype, x.device)
    else:
        memory = torch.full((size,), AROUND, dtype=x.dtype, device=x.device)
    return memory.as_strided(base.shape, base.stride()).copy_(base).expand_as(x)


def _negated(x: Tensor) -> Tensor:
    """Show a tensor as a conjugate, whose sign is beside its memory, or if it is real as the part of one.

    Raises:
        Unsupported: torch has no complex numbers of its dtype, or only experimental ones.
    """
    if x.is_complex():
        return x.conj().resolve_conj().conj()
    if x.dtype not in (torch.float64, torch.float32):
        raise Unsupported(f"no view negated: there are no complex numbers of {x.dtype}")
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def _at(shift: int, x: Tensor) -> Tensor:
    """Copy a dense tensor to some elements behind an aligned address."""
    memory = torch.full((shift + x.numel(),), AROUND, dtype=x.dtype, device=x.device)
    return memory.as_strided(x.shape, x.stride(), shift).copy_(x)


def _far(x: Tensor) -> Tensor:
    """Copy a dense tensor so that the last item of its first axis of several lies 2^31 elements behind.

    With two items, their stride is more than 2^31. With more, the product of an index and the stride is.

    Raises:
        Unsupported: no axis has several items, or the process may not have so many addresses.
    """
    axis = next((axis for axis, count in enumerate(x.shape) if count > 1), None)
    if axis is None:
        raise Unsupported("no view far: each axis has one item, so that no stride counts")
    strides, item = list(x.stride()), x.narrow(axis, 0, 1)
    least = max(-(-FAR // (x.shape[axis] - 1)), _extent(item.shape, item.stride()))
    strides[axis] = -(-least // ALIGNED) * ALIGNED
    memory = sparse(_extent(x.shape, strides), x.dtype, x.device)
    return memory.as_strided(x.shape, strides).copy_(x)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Count the elements from a tensor's first number to its last."""
    return 1 + sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))


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
