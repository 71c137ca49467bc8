"""What the signature allows beside one sequence per batch element and as many key heads as value heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ssmperf import UsageError

from ..scan.common import named_after, sequence_bounds

Result = tuple[Tensor, Any]  # o, and S_T or None


def whole_signature(function: Callable[..., Result]) -> Callable[..., Any]:
    """Give a function of whole sequences with equal heads packed sequences, and keys that heads share."""

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
        q, k = shared_heads(q, k, v.shape[2])
        operands = {"log_a": log_a, "log_b": log_b, "initial_state": initial_state, "phase": phase}
        if cu_seqlens is None:
            return function(q, k, v, **operands, bonus=bonus, read=read)
        return one_by_one(function, cu_seqlens, q, k, v, **operands, bonus=bonus, read=read)

    return named_after(function, backend)


def check_read(read: str, bonus: Tensor | None) -> None:
    """Raise UsageError for an unknown read, or a bonus where the write is read."""
    if read not in ("post", "pre"):
        raise UsageError(f"unknown read {read!r} (valid: post, pre)")
    if bonus is not None and read != "pre":
        raise UsageError("bonus needs read='pre'")


def shared_heads(q: Tensor, k: Tensor, H: int) -> tuple[Tensor, Tensor]:
    """Repeat the heads of q and k (B, T, Hk, K) until there are H: head h reads key head h·Hk // H.

    Raises:
        UsageError: H is no multiple of Hk, or q and k have different heads.
    """
    Hk = k.shape[2]
    if q.shape[2] == Hk == H:
        return q, k
    if q.shape[2] != Hk or Hk == 0 or H % Hk:
        raise UsageError(
            f"q and k must have as many heads as v, or both a divisor of them, got {q.shape[2]}, {Hk} and {H}"
        )
    return q.repeat_interleave(H // Hk, 2), k.repeat_interleave(H // Hk, 2)


def one_by_one(
    function: Callable[..., Result],
    cu_seqlens: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_a: Tensor | None,
    log_b: Tensor | None,
    initial_state: Tensor | None,
    phase: Tensor | None,
    bonus: Tensor | None,
    read: str,
) -> Result:
    """Apply a function to each of the sequences that lie one after another in the one batch element.

    Returns:
        o (1, T, H, V), and the state after each sequence (n, H, K, V), or None if the function has none.

    Raises:
        UsageError: cu_seqlens is no list of bounds, or the states are not one for each sequence.
    """
    (B, T, H, K), V = q.shape, v.shape[-1]
    bounds = sequence_bounds(cu_seqlens, B, T, (H, K, V), initial_state)
    starts: Sequence[Tensor | None] = [None] * (len(bounds) - 1)
    if initial_state is not None:
        starts = initial_state.split(1)
    outputs, states = [], []
    for start, (first, end) in zip(starts, pairwise(bounds), strict=True):
        if first < end:
            steps = slice(first, end)
            gates = {"log_a": over(log_a, steps), "log_b": over(log_b, steps), "phase": over(phase, steps)}
            output, start = function(
                q[:, steps], k[:, steps], v[:, steps], initial_state=start, bonus=bonus, read=read, **gates
            )
            outputs.append(output)
        states.append(start)
    return torch.cat(outputs, 1), stacked(states, (1, H, K, V))


def over(gate: Tensor | None, steps: slice) -> Tensor | None:
    """Take some steps of a gate, which has time as its second axis if it has more than two."""
    return gate if gate is None or gate.dim() <= 2 else gate[:, steps]


def stacked(states: Sequence[Tensor | None], shape: tuple[int, ...]) -> Tensor | None:
    """Put states one after another. None among them are those of empty sequences, zeros, or all are."""
    known = next((state for state in states if state is not None), None)
    if known is None:
        return None
    dtype = known.dtype
    for state in states:
        dtype = dtype if state is None else torch.promote_types(dtype, state.dtype)
    return torch.cat([known.new_zeros(shape) if state is None else state.to(dtype) for state in states])
