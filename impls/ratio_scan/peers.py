"""Other people's RWKV-4 kernel, as an optional backend: flash-linear-attention's fused_recurrent_rwkv4."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from .._autograd import once_differentiable
from .._peer import peer, refuse_double, without_state_gradient
from .common import EMPTY

LEAST, MOST = -1e4, -1e-30  # in float32, the exponentials of these log decays are 0 and 1


class LogOfRate(torch.autograd.Function):
    """log(−log w), the kernel's decay operand; log w is clamped away from 0 and −∞, its gradient is not."""

    @staticmethod
    def forward(ctx: Any, log_w: Tensor) -> Tensor:
        inside = log_w.clamp(LEAST, MOST)
        ctx.save_for_backward(inside, log_w)
        return torch.log(-inside)

    @staticmethod
    @once_differentiable("ratio_scan/fla_rwkv4")
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        inside, log_w = ctx.saved_tensors
        return torch.where(torch.isinf(log_w), 0, grad / inside)


def _rwkv4(
    log_w: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
) -> Prepared:
    refuse_double(log_w, k, v)
    B, C = k.shape[0], k.shape[2]
    if log_w.numel() not in (1, C) or log_w.shape[-1:] not in ((1,), (C,), ()):
        raise Unsupported("decays that change with time or batch (it takes one per channel)")
    log_w = log_w.float().reshape(-1).expand(C)
    # y_t = P_t / Q_t reads the step's own write without its decay, which equals a bonus of −log w
    u = -log_w.clamp(min=LEAST) if bonus is None else bonus.float()
    if initial_state is None:
        state = torch.tensor([0.0, 0.0, EMPTY], device=k.device).view(1, 3, 1, 1).expand(B, 3, 1, C)
    else:
        p, q, m = initial_state.float().unbind(1)
        state = torch.stack([p, q, m.detach()], dim=1).unsqueeze(2)
    rate: Tensor = LogOfRate.apply(log_w)  # type: ignore[no-untyped-call]
    return Prepared(
        (rate, u, k.contiguous(), v.to(k.dtype).contiguous(), state.contiguous()), _finish(v.dtype)
    )


@peer(
    "ratio_scan",
    name="fla_rwkv4",
    package="fla",
    modules=("fla.ops.rwkv4",),
    kernels=("fused_recurrent_rwkv4",),
    launches=2,
    prepare=_rwkv4,
    gates=("const",),
)
def fla_rwkv4(rate: Tensor, bonus: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Any:
    """flash-linear-attention's fused_recurrent_rwkv4, one step after another; states in the dtype of k."""
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    return fused_recurrent_rwkv4(rate, bonus, k, v, state)


def _finish(dtype: torch.dtype) -> Any:
    def finish(raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # a gradient at the state would differentiate its scale m, a constant here
        return raw[0].to(dtype), without_state_gradient(raw[1].squeeze(2).float())

    return finish
