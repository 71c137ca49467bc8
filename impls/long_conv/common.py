"""Code shared by the convolution backends: operands in working precision."""

from __future__ import annotations

import torch
from torch import Tensor


def operands(u: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Cast u (B, T, C) and the first T lags of the kernel, as (min(L, T), C), to float32 or wider."""
    wide = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    return u.to(wide), kernel[:, : u.shape[1]].to(wide).mT
