"""States that a call continues from, which may be those of another call of the recurrence."""

from __future__ import annotations

import torch
from torch import Tensor


def as_state(state: Tensor, dtype: torch.dtype) -> Tensor:
    """Widen a state. A call without phases may continue from one with them: it reads the real part."""
    return (state if dtype.is_complex else state.real).to(dtype)
