"""Code shared by the definition and the backends: the cells and their number of blocks."""

from __future__ import annotations

from torch import Tensor

from ssmperf.authoring import UsageError

BLOCKS = {"gru": 3, "lstm": 4}  # blocks of the weights, C rows each


def check(cell: str, weight_hh: Tensor) -> None:
    """Raise UsageError for an unknown cell, or for weights with another number of blocks than the cell's."""
    if cell not in BLOCKS:
        raise UsageError(f"unknown cell {cell!r} (valid: {', '.join(BLOCKS)})")
    rows, C = weight_hh.shape
    if rows != BLOCKS[cell] * C:
        raise UsageError(f"weight_hh of a {cell} has {BLOCKS[cell]} × {C} rows for {C} channels, got {rows}")
