"""Look up dtypes by name, and cast tensors to another precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.dtypes import dtype_name
from ssmperf.engine.cases.case import Case


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Look up a torch dtype by its full or short name, such as `bfloat16` or `bf16`."""
    dtype = getattr(torch, dtype_name(name))
    assert isinstance(dtype, torch.dtype)
    return dtype


def gate_dtype_of(case: Case) -> torch.dtype:
    """Get the dtype of a case's gates: float64 in a float64 case, otherwise the case's gate dtype."""
    return torch.float64 if case.dtype == "float64" else dtype_of(case.gate_dtype)


def differentiable(value: Any) -> bool:
    """Tell whether a value is a tensor that can have a gradient."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def widen(value: Any, dtype: torch.dtype) -> Any:
    """Cast a real tensor to a dtype and a complex one to its complex counterpart; keep all other values."""
    if not differentiable(value):
        return value
    return value.to(dtype.to_complex() if value.is_complex() else dtype)
