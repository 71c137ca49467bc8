"""The convolution as a lower-triangular Toeplitz matrix per channel, multiplied in tiles: O(T·L) work."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .common import operands

TILE = 64


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Inputs and outputs by tile, the products of one band of tiles, and that band's tile per channel."""
    B, T, C = (shape[letter] for letter in "BTC")
    return C * (6 * B * T + TILE**2) * max(4, itemsize)


@backend(
    "long_conv",
    name="surrogate",
    launches=lambda shape: 6 + 4 * -(-shape["T"] // TILE),
    workspace=workspace,
)
@without_autocast
def surrogate(u: Tensor, kernel: Tensor) -> tuple[Tensor, None]:
    """A sum over bands of tiles: all tiles of a band are equal, so each band is one product per channel.

    Row i of a tile holds K at the lags band·TILE + i − s. Read in reverse order of s, that is a sliding
    window over the kernel. Shapes, dtypes and results: see the recurrence `long_conv`.
    """
    inputs, lags = operands(u, kernel)
    B, T, C = u.shape
    tiles, bands = -(-T // TILE), -(-(len(lags) + TILE - 1) // TILE)
    by_tile = functional.pad(inputs, (0, 0, 0, tiles * TILE - T)).view(B, tiles, TILE, C)
    columns = by_tile.flip(2).permute(3, 2, 0, 1)  # (C, s reversed, B, tile)
    # lag 0 is at TILE − 1; zeros stand for future inputs and for inputs beyond the reach of the kernel
    padded = functional.pad(lags.mT, (TILE - 1, (bands + 1) * TILE - len(lags)))
    total = torch.zeros_like(columns)
    for band in range(min(bands, tiles)):
        window = padded[:, band * TILE : (band + 2) * TILE - 1].unfold(-1, TILE, 1)  # (C, i, s reversed)
        sources = columns[..., : tiles - band].flatten(2)
        products = torch.bmm(window, sources).unflatten(2, (B, tiles - band))
        total = total + functional.pad(products, (band, 0))
    y = total.permute(2, 3, 1, 0).reshape(B, tiles * TILE, C)[:, :T]
    return y.to(u.dtype), None
