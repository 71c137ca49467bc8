"""Fused Triton kernels of the delta rule without a gate and with one gate per head. See `_triton`."""

from __future__ import annotations

import torch
from torch import Tensor
from triton import knobs

from ssmperf.authoring import Unsupported, backend

from .._triton.plan import packed as contiguous
from ..scan.common import differentiates
from . import check
from ._triton.decode import decode
from ._triton.function import WIDEST, DeltaRule, forward_pass
from .common import per_step

# Fewer keys are computed in float32. So few are nearly equal, and where the recurrence forgets all steps but
# the last, roundings of all steps of a chunk add up: to 1.4 tolerances of half types.
NARROW = 16
WIDTHS = range(1, WIDEST + 1)  # of keys


@backend(
    "delta_rule",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    gates=("none", "const", "scalar"),
    sizes={"K": WIDTHS},
    needs=("triton",),
    capability=(8, 0),
    kernels=("delta_chunks", "delta_walk", "delta_decode"),
    launches=lambda shape: 2,
)
def triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    p: Tensor | None = None,
    r: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Inverses of all chunks of 64 steps at once, then a walk through the chunks; resets are exact.

    Operands of half types go through tensor cores with float32 sums; the inverse takes part with twice their
    digits. Fewer than 16 keys are computed in float32. cu_seqlens is read by kernels alone.

    Raises:
        Unsupported: gates per key channel, keys p and r, float64 operands, K above 256, or bfloat16 operands
            in Triton's interpreter.
    """
    check(q, k, v, beta, log_a, p, r)
    if p is not None or beta is None:
        raise Unsupported("keys p and r of their own (it takes one key and a rate per step)")
    if log_a is not None and log_a.dim() == 4:
        raise Unsupported("gates per key channel (it takes one per head, or none)")
    sizes = v.shape[:3]
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if dtype == torch.float64:
        raise Unsupported("no float64 operands (it takes float32, bfloat16 and float16)")
    if q.shape[-1] not in WIDTHS:
        raise Unsupported(f"K = {q.shape[-1]} (it takes 1 to {WIDEST})")
    if dtype == torch.bfloat16 and knobs.runtime.interpret:
        raise Unsupported("Triton's interpreter multiplies bfloat16 matrices as integers")
    if sizes[1] == 1 and cu_seqlens is None and not differentiates(q, k, v, beta, log_a, initial_state):
        return decode(q, k, v, beta, log_a, initial_state)
    if q.shape[-1] < NARROW:
        dtype = torch.float32
    given = (
        *(contiguous(each.to(dtype)) for each in (q, k, v)),
        per_step(beta, sizes, beta.dtype),
        None if log_a is None else per_step(log_a, sizes, torch.float32),
        None if initial_state is None else contiguous(initial_state.to(torch.float32)),
        cu_seqlens,
    )
    if not differentiates(*given):
        o, final = forward_pass(*given)
    else:
        o, final = DeltaRule.apply(*given)  # type: ignore[no-untyped-call]
    return o.to(v.dtype), final
