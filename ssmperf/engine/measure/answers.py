"""Reduce the results of timed calls to a few numbers that nobody can guess."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_memmove = ctypes.memmove  # as it is before any backend runs
ROUNDINGS = 8.0
ROW = 512  # numbers at least, if there are as many, that one product of a projection takes


class Projection:
    """The dot product of a tensor with a secret vector of signs: two small vectors give all of its signs.

    like: a tensor of the shape and dtype to project. generator: the secret.
    """

    def __init__(self, like: Tensor, generator: torch.Generator) -> None:
        flat = self._flat(like)
        width, axis = 1, flat.dim()
        while axis > 0 and width < ROW:
            axis -= 1
            width *= flat.shape[axis]
        self._shape, self._dtype = (flat.numel() // max(width, 1), width), like.dtype
        self._row, self._column = (
            torch.randint(0, 2, (size,), generator=generator, device=generator.device)
            .mul_(2)
            .sub_(1)
            .to(flat.device, dtype)
            for size, dtype in zip(self._shape, (_accumulator(flat.dtype), flat.dtype), strict=True)
        )

    @property
    def rounding(self) -> float:
        """The rounding error of a projection that is not exceeded in practice, relative to the norm."""
        return ROUNDINGS * torch.finfo(self._row.dtype).eps * math.sqrt(sum(self._shape))

    def __call__(self, x: Tensor) -> Tensor:
        """Project a tensor to one number, on its device and stream; NaN if its shape or dtype is another."""
        flat = self._flat(x)
        if flat.numel() != self._shape[0] * self._shape[1] or x.dtype != self._dtype:
            return self._row.new_full((), float("nan"))
        partial = flat.reshape(self._shape) @ self._column
        return partial.to(self._row.dtype) @ self._row

    @staticmethod
    def _flat(x: Tensor) -> Tensor:
        real = _real(x.detach())
        # products of half types are summed in float32 on a GPU, but not on a CPU
        return real if real.is_cuda else real.to(_accumulator(real.dtype))


def tensors_of(result: Any) -> list[Tensor]:
    """List the tensors in a call's result: a tensor, or tuples and lists of tensors and others."""
    return list(_tensors(result))


def copied(result: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """Copy a call's result, each of its tensors by a function."""
    if isinstance(result, Tensor):
        return copy(result)
    if isinstance(result, (tuple, list)):
        return type(result)(copied(each, copy) for each in result)
    return result


def raw_copy(x: Tensor) -> Tensor:
    """Copy a tensor by its address, with its strides, to memory that nobody else knows.

    On a CPU no operator of torch reads the tensor. On a GPU one does, by another tensor at its address.
    """
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    nbytes = reach * x.element_size() if x.numel() else 0
    alias = torch.empty(0, dtype=x.dtype, device=x.device)
    if x.device.type == "cpu":
        made = torch.empty(nbytes, dtype=torch.uint8)
        _memmove(made.data_ptr(), x.data_ptr(), nbytes)
        alias.set_(made.untyped_storage(), 0, x.shape, x.stride())
    else:
        storage: Any = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, nbytes)
        alias = alias.set_(storage, 0, x.shape, x.stride()).clone()
    alias = alias.conj() if x.is_conj() else alias
    return alias._neg_view() if x.is_neg() else alias


def norm(x: Tensor) -> float:
    """Compute the Euclidean norm of a tensor, in float32 or wider."""
    flat = _real(x.detach())
    return float(torch.linalg.vector_norm(flat, dtype=_accumulator(flat.dtype)))


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for each in result:
            yield from _tensors(each)


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
