"""Sizes, random values and models for identities, the same in every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Model, registry

B, T, C, H, K, V, D, N = 2, 19, 6, 3, 4, 5, 5, 3


def normal(*size: int, seed: int = 0) -> Tensor:
    """Draw standard normals in float64."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str, **sizes: int) -> Any:
    """Build a float64 model whose parameters need no gradients.

    Its type is Any because identities use the parts of particular models.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = registry.model(name).cls(sizes)
    assert isinstance(layer, Model)
    return layer.double().requires_grad_(False)


def segment_sums(log_a: Tensor) -> Tensor:
    """Sum log a_j over m < j ≤ n along the first axis, as [n, m]; −∞ for m > n. No differences of sums."""
    length = log_a.shape[0]
    rows = [
        [
            log_a[m + 1 : n + 1].sum(0) if m <= n else torch.full_like(log_a[0], -torch.inf)
            for m in range(length)
        ]
        for n in range(length)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def heads(x: Tensor, count: int = H) -> Tensor:
    """View (B, T, count·n) as (B, T, count, n)."""
    return x.view(*x.shape[:-1], count, -1)
