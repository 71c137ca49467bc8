"""Fused kernels of the delta rule in CUDA C++ for Hopper. See `_cuda`."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, backend

from .._cuda.load import capability
from .._triton.plan import aligned
from .._triton.plan import packed as contiguous
from ..scan.common import differentiates
from . import check
from ._cuda.function import WIDEST, DeltaRule, forward_pass
from .common import per_step

HOPPER = (9, 0)
WIDTHS = range(8, WIDEST + 1, 8)
VALUES = (*WIDTHS, *range(WIDEST + 16, 2 * WIDEST + 1, 16))  # the wide ones in two halves


@backend(
    "delta_rule",
    name="cuda",
    devices=("cuda",),
    dtypes=("bfloat16",),
    gates=("none", "const", "scalar"),
    needs=("cuda.core", "cuda.bindings"),
    sizes={"K": WIDTHS, "V": VALUES},
    capability=HOPPER,
    kernels=("cuda_delta_chunks", "cuda_delta_walk"),
    launches=lambda shape: 2,
)
def cuda(
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
    """Inverses of all chunks of 64 steps at once, then a walk that copies ahead; resets are exact.

    q, k and v go through tensor cores as bfloat16 with float32 sums; the inverse takes part with twice their
    digits. cu_seqlens is read by kernels alone. A head of more than 128 values is two heads that share their
    keys, since no value of a state depends on another.

    Raises:
        Unsupported: gates per key channel, keys p and r, operands that are not bfloat16, K above 128 or no
            multiple of 8, V none of `VALUES`, a device that is not a Hopper.
    """
    check(q, k, v, beta, log_a, p, r)
    if p is not None or beta is None:
        raise Unsupported("keys p and r of their own (it takes one key and a rate per step)")
    if log_a is not None and log_a.dim() == 4:
        raise Unsupported("gates per key channel (it takes one per head, or none)")
    sizes = v.shape[:3]
    for operand in (q, k, v):
        if operand.dtype != torch.bfloat16:
            raise Unsupported(f"{operand.dtype} operands (it takes bfloat16)")
    if q.shape[-1] not in WIDTHS:
        raise Unsupported(f"K = {q.shape[-1]} (it takes multiples of 8 up to {WIDEST})")
    if v.shape[-1] not in VALUES:
        more = f"multiples of 8 up to {WIDEST}, and of 16 up to {2 * WIDEST}"
        raise Unsupported(f"V = {v.shape[-1]} (it takes {more})")
    if v.device.type == "cuda" and capability(v.device.index) != HOPPER:
        raise Unsupported("a device that is not a Hopper (its products are of 9.0 alone)")
    q, k, v = (aligned(contiguous(each)) for each in (q, k, v))
    rates = per_step(beta, sizes, torch.float32)
    gates = None if log_a is None else per_step(log_a, sizes, torch.float32)
    state = None if initial_state is None else contiguous(initial_state.to(torch.float32))
    bounds = None if cu_seqlens is None else contiguous(cu_seqlens.to(torch.int64))
    compute = whole if v.shape[-1] <= WIDEST else in_halves
    return compute(q, k, v, rates, gates, state, bounds)


def whole(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor | None, initial: Tensor | None,
    bounds: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(o, S_T) of `DeltaRule`'s operands, with gradients where one is wanted."""
    given = q, k, v, beta, log_a, initial, bounds
    if not differentiates(*given):
        o, final, *_ = forward_pass(*given)
        return o, final
    return DeltaRule.apply(*given)  # type: ignore[no-untyped-call, no-any-return]


def in_halves(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor | None, initial: Tensor | None,
    bounds: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same with each head's values as two heads of half as many, which share its rates."""
    v = v.unflatten(-1, (2, -1)).flatten(2, 3)
    if initial is not None:
        initial = contiguous(initial.unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2))
    o, final = whole(q, k, v, beta, log_a, initial, bounds)
    final = contiguous(final.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3))
    return o.unflatten(2, (-1, 2)).flatten(3), final
