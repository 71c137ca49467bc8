"""Packed sequences and shared key heads: forms of the signature that backends need not know."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ssmperf import UsageError

from .._autocast import without_autocast
from ..scan.common import bounds_on_device, check_heads, named_after, one_by_one, shared_heads

Result = tuple[Tensor, Any]  # o, and S_T or None


def whole_signature(
    function: Callable[..., Result], *, shares_heads: bool = False, packs: bool = False
) -> Callable[..., Any]:
    """Give a function of whole sequences packed ones, and keys that heads share.

    shares_heads: whether the function takes fewer key heads itself; otherwise they are repeated.
    packs: whether it takes packed sequences itself; otherwise they run one after another.
    """

    def backend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None = None,
        log_b: Tensor | None = None,
        initial_state: Tensor | None = None,
        *,
        phase: Tensor | None = None,
        bonus: Tensor | None = None,
        read: str = "post",
        cu_seqlens: Tensor | None = None,
    ) -> Result:
        if shares_heads:
            check_heads(q, k, v.shape[2])
        else:
            q, k = shared_heads(q, k, v.shape[2])
        operands = {
            "q": q, "k": k, "v": v, "log_a": log_a, "log_b": log_b, "phase": phase, "bonus": bonus
        }  # fmt: skip
        if cu_seqlens is None:
            return function(**operands, initial_state=initial_state, read=read)
        if packs:
            state = (v.shape[2], k.shape[3], v.shape[3])
            bounds = bounds_on_device(cu_seqlens, v, state, initial_state)
            return function(**operands, initial_state=initial_state, read=read, cu_seqlens=bounds)
        return one_by_one(partial(function, read=read), cu_seqlens, operands, initial_state)

    return without_autocast(named_after(function, backend))


def check_read(read: str, bonus: Tensor | None) -> None:
    """Raise UsageError for an unknown read, or a bonus where the write is read."""
    if read not in ("post", "pre"):
        raise UsageError(f"unknown read {read!r} (valid: post, pre)")
    if bonus is not None and read != "pre":
        raise UsageError("bonus needs read='pre'")
