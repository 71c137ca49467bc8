"""mamba-ssm's SSD: S_t = exp(Δ_t A) S_{t-1} + Δ_t B_t x_tᵀ, y_t = S_tᵀ C_t, with a state (V, K) per head.

Here the write has no factor of its own, so that x = v / Δ. Constant gates have Δ = 1 and A = log_a. Gates per
step have A = −1 and Δ = −log_a, and x is rounded once more than v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported, UnsupportedValues

from ...scan.common import differentiates
from .given import Given, preparing

CHUNK = 256  # steps per chunk, as in Mamba-2


def _ssd(x: Given) -> Prepared:
    if x.log_b is not None or x.gate == "key":
        raise Unsupported("gates per channel (it takes one per head)")
    if x.pre:
        raise Unsupported("a read of S_{t-1}")
    inputs, steps, rates = _step_sizes(x)
    shared = _shared(x.q) and _shared(x.k)
    queries, keys = (x.data(each[:, :, :1] if shared else each) for each in (x.q, x.k))
    state = x.float_state()
    state = None if state is None else state.mT.contiguous()
    return Prepared((inputs, steps, rates, keys, queries, state), lambda raw: x.finish((raw[0], raw[1].mT)))


ssd = preparing(_ssd)


def call_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor | None) -> Any:
    """Call mamba_chunk_scan_combined; gives y and the last state (B, H, V, K)."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    return mamba_chunk_scan_combined(x, dt, A, B, C, CHUNK, initial_states=state, return_final_states=True)


def _step_sizes(x: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Find x (B, T, H, V), Δ (B, T, H) and A (H,) with exp(ΔA) the gates and Δx the values.

    Raises:
        UnsupportedValues: no finite x and Δ do that.
    """
    B, T, H, _ = x.shape
    if x.log_a is None or x.gate == "const":
        rates = x.q.new_zeros(H, dtype=torch.float32) if x.log_a is None else x.log_a.float().contiguous()
        return x.data(x.v), x.q.new_ones(B, T, H, dtype=torch.float32), rates
    steps = -x.log_a.float()
    inputs = x.data(x.v.float() / steps.unsqueeze(-1))
    lost = ~(steps > 0) | steps.isinf()
    if lost.any() or (inputs.isinf() & ~x.v.isinf()).any():
        raise UnsupportedValues(
            "log gates of 0 or −∞, or too close to them: with Δ = −log_a, it writes Δ·B·(v/Δ)ᵀ"
        )
    return inputs, steps.contiguous(), x.q.new_full((H,), -1.0, dtype=torch.float32)


def _shared(x: Tensor) -> bool:
    """Tell whether all heads have the same q or k, so that they can be one group.

    Of a group, only the sum of the heads' gradients is known. That is enough for a tensor that was expanded
    over the heads, but not for a leaf.
    """
    if differentiates(x):
        return x.stride(2) == 0 and not x.is_leaf
    return x.stride(2) == 0 or bool((x == x[:, :, :1]).all())
