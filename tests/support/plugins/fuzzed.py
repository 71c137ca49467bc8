"""A plug-in of backends for `linear_attention`, each wrong at some configurations alone."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ssmperf
from ssmperf.suitekit import registry

SIGNATURE = registry.recurrence("linear_attention").signature
RIGHT = registry.backend("linear_attention", "sequential").function
WRAPPED = 2**31  # elements
Operands = dict[str, Any]
OFF = 1.05  # a wrong factor


def planted(change: Callable[[Operands], Operands | None], after: Callable[..., Any] | None = None) -> None:
    """Register a backend under the name of a function that changes the operands where the fault shows.

    after: changes the results, with the operands that `change` has given; None if the operands are all.
    """

    def backend(*given: Any, **named: Any) -> Any:
        bound = SIGNATURE.bind(*given, **named)
        bound.apply_defaults()
        changed = change(dict(bound.arguments))
        if changed is None:
            return RIGHT(*given, **named)
        results = RIGHT(**changed)
        return results if after is None else after(changed, *results)

    ssmperf.backend("linear_attention", name=f"fuzzed_{change.__name__}", batches="tolerance")(backend)


def scaled(x: Operands, output: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return output * OFF, state


def narrow(x: Operands) -> Operands | None:
    return x if x["q"].shape[-1] <= 32 else None


def odd(x: Operands) -> Operands | None:
    return x if x["q"].shape[1] % 2 else None


def above_two_chunks(x: Operands) -> Operands | None:
    return x if x["q"].shape[1] > 128 else None


def packed(x: Operands) -> Operands | None:
    """Go on with the state of one sequence in the next."""
    bounds = x["cu_seqlens"]
    return None if bounds is None else x


def later_sequences_wrong(x: Operands, output: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    first = int(x["cu_seqlens"][1])
    return torch.cat([output[:, :first], output[:, first:] * OFF], 1), state


def empty_sequence(x: Operands) -> Operands | None:
    bounds = x["cu_seqlens"]
    return x if bounds is not None and bool((bounds.diff() == 0).any()) else None


def no_state_of_empty_ones(x: Operands, output: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    kept = (x["cu_seqlens"].diff() > 0).view(-1, 1, 1, 1)
    return output, torch.where(kept, state, torch.zeros_like(state))


def strided(x: Operands) -> Operands | None:
    """Read every number of q where only every second one belongs to it."""
    q = x["q"]
    if q.stride(-1) != 2 or q.shape[-1] == 1:
        return None
    dense = torch.empty(q.shape, device="meta").stride()
    return {**x, "q": q.as_strided(q.shape, dense, q.storage_offset())}


def expanded_batch(x: Operands) -> Operands | None:
    return x if x["v"].shape[0] > 1 and x["v"].stride(0) == 0 else None


def state_dropped_in_backward(x: Operands) -> Operands | None:
    state = x["initial_state"]
    return None if state is None else {**x, "initial_state": state.detach() + 0 * state}


def wrapping_offsets(x: Operands) -> Operands | None:
    q = x["q"]
    last = sum((size - 1) * stride for size, stride in zip(q.shape, q.stride(), strict=True))
    return x if last >= WRAPPED else None


def half_with_wide_gates(x: Operands) -> Operands | None:
    """Round log gates to the dtype of the data."""
    gates = x["log_a"]
    if gates is None or x["q"].dtype != torch.bfloat16 or gates.dtype != torch.float32:
        return None
    return {**x, "log_a": gates.bfloat16().float() * OFF}


def hanging_at_one_step(x: Operands) -> Operands | None:
    while x["q"].shape[1] == 1:
        time.sleep(1)
    return None


def crashing(x: Operands) -> Operands | None:
    if x["v"].shape[-1] > x["q"].shape[-1]:
        ctypes.string_at(0)
    return None


def right(x: Operands) -> Operands | None:
    return None


for fault in (narrow, odd, above_two_chunks, expanded_batch, wrapping_offsets):
    planted(fault, scaled)
for fault in (strided, state_dropped_in_backward, half_with_wide_gates, hanging_at_one_step, crashing, right):
    planted(fault)
planted(packed, later_sequences_wrong)
planted(empty_sequence, no_state_of_empty_ones)
