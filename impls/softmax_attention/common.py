"""Code shared by the attention backends: operands, the cache, and the forget gate's part of the scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssmperf.authoring import UsageError

from .._autocast import without_autocast
from ..scan.common import named_after


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands by head: in working precision, float32 or wider, or in the data's own.

    q: (B, H, T, K). keys, values: of the cache and the operands, (B, H, S + T, ·). log_f: (B, H, T) or None.
    log_past: log weights of the keys in the cache, (B, H, S); None without a forget gate or a cache.
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    log_f: Tensor | None
    log_past: Tensor | None

    @property
    def T(self) -> int:
        return self.q.shape[2]

    @property
    def S(self) -> int:
        return self.keys.shape[2] - self.T


Attention = Callable[[Operands], Tensor]  # -> o (B, H, T, V)


def as_backend(attention: Attention, *, wide: bool = True) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give a function of operands by head the recurrence's signature and results.

    wide: whether data of a half type are computed with in float32. With a forget gate they always are.
    """

    def backend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_f: Tensor | None = None,
        initial_state: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        check(k, v, log_f, initial_state)
        dtype = torch.float32 if wide or log_f is not None else q.dtype
        for operand in (q, k, v, log_f, initial_state):
            dtype = dtype if operand is None else torch.promote_types(dtype, operand.dtype)
        weight, log_past = None, None
        if log_f is not None:
            log_f = log_f.to(dtype)
            earlier = None if initial_state is None else initial_state[..., -1].to(dtype)
            weight = weights_after(log_f, earlier)
            log_past = None if earlier is None else log_weights_of(earlier).mT
            log_f = log_f.mT
        cache = joined(k, v, initial_state, weight)
        keys, values = (k, v) if initial_state is None else parted(cache, k.shape[-1], v.shape[-1])
        q, keys, values = (each.to(dtype).transpose(1, 2) for each in (q, keys, values))
        output = attention(Operands(q, keys, values, log_f, log_past))
        return output.transpose(1, 2).to(v.dtype), cache

    return without_autocast(named_after(attention, backend))


def check(k: Tensor, v: Tensor, log_f: Tensor | None, initial_state: Tensor | None) -> None:
    """Refuse a cache that does not fit the operands.

    Raises:
        UsageError: it has another number of channels.
    """
    channels = k.shape[-1] + v.shape[-1] + (log_f is not None)
    if initial_state is not None and initial_state.shape[-1] != channels:
        parts = "keys and values, K + V" if log_f is None else "keys, values and weights, K + V + 1"
        raise UsageError(f"the cache has {initial_state.shape[-1]} channels, must have {channels}: {parts}")


def parted(cache: Tensor, K: int, V: int) -> tuple[Tensor, Tensor]:
    """Take the keys (B, S, H, K) and the values (B, S, H, V) out of a cache."""
    return cache[..., :K], cache[..., K : K + V]


def joined(k: Tensor, v: Tensor, initial_state: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Append k (B, T, H, K) and v (B, T, H, V) to a cache, whose weights become (B, S + T, H)."""
    rows = torch.cat([k, v], dim=-1)
    if initial_state is not None:
        earlier = initial_state if weight is None else initial_state[..., :-1]
        rows = torch.cat([earlier, rows], dim=1)
    return rows if weight is None else torch.cat([rows, weight.unsqueeze(-1)], dim=-1)


def log_weights_of(weight: Tensor) -> Tensor:
    """Take the logarithm of weights ≥ 0; where one is 0, it is -inf and the gradient is 0."""
    kept = weight > 0
    return torch.where(kept, torch.log(torch.where(kept, weight, 1)), -math.inf)


def sums_after(x: Tensor) -> Tensor:
    """Compute Σ_{j>t} x_j of (..., T), never as a difference of two sums, so that -inf is legal."""
    later = torch.cat([x[..., 1:], torch.zeros_like(x[..., :1])], dim=-1)
    return later.flip(-1).cumsum(-1).flip(-1)


def weights_after(log_f: Tensor, earlier: Tensor | None) -> Tensor:
    """Compute the weights (B, S + T, H) of all keys after the steps of log_f (B, T, H).

    earlier: those of the keys in the cache before these steps, (B, S, H).
    """
    new = torch.exp(sums_after(log_f.mT)).mT
    if earlier is None:
        return new
    return torch.cat([earlier * torch.exp(log_f.sum(1, keepdim=True)), new], dim=1)


def biases(log_f: Tensor, log_past: Tensor | None) -> Tensor:
    """Compute what forget gates (B, H, T) add to the scores of T queries: (B, H, T, S + T).

    Keys after their query get -inf.

    log_past: log weights of S earlier keys before the first query, (B, H, S); None if there are none.
    """
    place = torch.arange(log_f.shape[-1], device=log_f.device)
    query = place.unsqueeze(-1)
    # each segment has a sum of its own, never a difference of two long ones
    between = torch.where(query > place, log_f.unsqueeze(-1), 0).cumsum(-2)
    own = torch.where(query >= place, between, -math.inf)
    if log_past is None:
        return own
    return torch.cat([log_past.unsqueeze(-2) + log_f.cumsum(-1).unsqueeze(-1), own], dim=-1)
