"""Products of vectors within a tile, decayed by the gates between their steps; all exponents are ≤ 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ..linear_attention.common import from_start, sums_after, to_end
from ..scan.common import segment_sums, transfer


class Decay:
    """The decay between any two steps of tiles of C steps, from log_a (..., C, K|1) or None.

    Key gates take two levels: decays are computed pair by pair within sub-chunks; between sub-chunks they
    count from the start of the reading sub-chunk (docs/recurrences.md#chunkwise). sub_chunk divides C.
    """

    def __init__(self, log_a: Tensor | None, sub_chunk: int) -> None:
        self.log_a = log_a
        self.sub_chunk = sub_chunk

    def from_start(self) -> Tensor | None:
        """Multiply the gates from the tile's start up to each step, including that step: (..., C, K|1)."""
        return from_start(self.log_a)

    def to_end(self) -> Tensor | None:
        """Multiply the gates from the step after each one to the tile's end: (..., C, K|1)."""
        return to_end(self.log_a)

    def products(self, xs: tuple[Tensor, ...], y: Tensor) -> tuple[Tensor, ...]:
        """Compute Σ_c x_tc α_{s+1..t,c} y_sc for each x (..., C, K), as (..., t, s), 0 where s > t."""
        if self.log_a is None:
            return tuple((x @ y.mT).tril() for x in xs)
        if self.log_a.shape[-1] == 1:
            decay = transfer(self.log_a, None).squeeze(-1)
            return tuple((x @ y.mT) * decay for x in xs)
        return self._products_by_key(torch.stack(xs, dim=-2), y, self.log_a)

    def _products_by_key(self, x: Tensor, y: Tensor, log_a: Tensor) -> tuple[Tensor, ...]:
        """Compute `products` of x (..., C, X, K), X vectors per step."""
        count, c = y.shape[-2] // self.sub_chunk, self.sub_chunk
        x = x.unflatten(-3, (count, c))  # (..., I, t, X, K)
        y, log_a = y.unflatten(-2, (count, c)), log_a.unflatten(-2, (count, c))
        near = (transfer(log_a, None) * y.unsqueeze(-3)) @ x.mT  # (..., I, t, s, X)
        if count == 1:
            return near.squeeze(-4).unbind(-1)
        from_here = torch.exp(log_a.cumsum(-2)).unsqueeze(-2)
        seen = _as_seen_from_later(y, log_a)  # (..., I, J·s, K)
        far = (x * from_here).flatten(-3, -2) @ seen.mT  # (..., I, t·X, J·s)
        far = far.unflatten(-2, (c, -1)).unflatten(-1, (count, c))  # (..., I, t, X, J, s)
        same = torch.eye(count, dtype=torch.bool, device=x.device).view(count, 1, 1, count, 1)
        whole = torch.where(same, near.mT.unsqueeze(-2), far).flatten(-2)
        return whole.flatten(-4, -3).unbind(-2)


def _as_seen_from_later(y: Tensor, log_a: Tensor) -> Tensor:
    """Decay y (..., J, s, K) up to the start of each later sub-chunk I: (..., I, J·s, K), 0 where I ≤ J."""
    count = y.shape[-3]
    earlier = torch.ones(count, count, dtype=torch.bool, device=y.device).tril(-1)[..., None, None]
    between = functional.pad(segment_sums(log_a.sum(-2)), (0, 0, 0, 0, 1, 0))[..., :-1, :, :]
    reach = sums_after(log_a).unsqueeze(-4) + between.unsqueeze(-2)
    return (torch.exp(torch.where(earlier, reach, -math.inf)) * y.unsqueeze(-4)).flatten(-3, -2)
