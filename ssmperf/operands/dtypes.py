"""Dtypes by name, and tensors in another precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.cases.case import Case


def dtype_of(name: str) -> torch.dtype:
    """Look up a torch dtype by name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def gate_dtype_of(case: Case) -> torch.dtype:
    """Give the dtype of a case's gates: the one asked for, but float64 in float64 cases."""
    return torch.float64 if case.dtype == "float64" else dtype_of(case.gate_dtype)


def differentiable(value: Any) -> bool:
    """Whether a value is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def widen(value: Any, dtype: torch.dtype) -> Any:
    """Cast a floating-point or complex tensor to a real dtype or its complex counterpart."""
    if not differentiable(value):
        return value
    return value.to(dtype.to_complex() if value.is_complex() else dtype)
