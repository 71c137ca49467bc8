"""Fused ratio scan in Triton: a warp walks the steps of 32 channels, tiles of steps in registers.

A tile whose exponents lie close enough takes one scale for all of its steps: an exponential, a reciprocal and
a few multiply-adds per step. Any other tile takes each step in the scale of its largest exponent, as the
definition does. Backward starts each tile from the state which forward left before it. Where batch and
channels are too few to fill the device, time is cut into spans: a first launch finds what each span adds, a
second begins each with its true state. Gradients of decays and bonus are sums over spans, in a fixed order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, UsageError, backend

from ..scan.common import differentiates
from ._triton.decode import decode
from ._triton.function import RatioScan

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@backend(
    "ratio_scan",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    gates=("const",),
    needs=("triton",),
    capability=(8, 0),
    kernels=("ratio_scan_forward", "ratio_scan_backward"),
    launches=lambda shape: 3,
    causal="tolerance",  # a tile's scale is its largest exponent, later steps included
)
def ratio_scan(
    log_w: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, *, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fused kernels: tiles of steps in registers, time in order or in spans side by side.

    Args:
        log_w: log of the decay, the same at every step: (C,), or broadcasting to (B, 1, C); float32 or half.
        k, v: (B, T, C), float32 or half.
        initial_state: (B, 3, C), the rows p, q and m.
        bonus: (C,), float32 or half.

    Returns:
        y (B, T, C) in the dtype of v and the state after the last step (B, 3, C), float32.

    Raises:
        Unsupported: decays that differ from step to step; double precision.
        UsageError: decays that do not broadcast to k.
    """
    for name, operand in (("log_w", log_w), ("k", k), ("v", v), ("bonus", bonus)):
        if operand is not None and operand.dtype not in DTYPES:
            raise Unsupported(f"{name} of dtype {operand.dtype} (it takes float32, bfloat16, float16)")
    B, T, C = k.shape
    if log_w.dim() != 3:
        log_w = log_w[(None,) * (3 - log_w.dim())]
    if any(size not in (1, whole) for size, whole in zip(log_w.shape, (B, T, C), strict=True)):
        raise UsageError(f"log_w {tuple(log_w.shape)} does not broadcast to {(B, T, C)}")
    if log_w.shape[1] > 1:
        raise Unsupported("decays that differ from step to step (it takes const)")
    saves = differentiates(log_w, k, v, initial_state, bonus)  # parameters do where no graph is wanted
    if T == 1 and not saves:
        return decode(log_w, k, v, initial_state, bonus)
    log_w = _float32(log_w if log_w.shape[2] == C else log_w.expand(-1, 1, C))
    if bonus is not None:
        bonus = _float32(bonus if bonus.shape == (C,) else bonus.expand(C))
    if initial_state is not None:
        initial_state = _float32(initial_state)
    y, final = RatioScan.apply(log_w, k, v, initial_state, bonus, saves)  # type: ignore[no-untyped-call]
    return y, final


def _float32(x: Tensor) -> Tensor:
    """x in float32 and contiguous: itself where it is both."""
    if x.dtype != torch.float32:
        x = x.float()
    return x if x.is_contiguous() else x.contiguous()
