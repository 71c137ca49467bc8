"""Batches of bytes of text, drawn for a training step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssmperf.authoring import split_text


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and the bytes that follow each of them, both (B, T)."""

    tokens: Tensor
    targets: Tensor

    def copy_(self, other: Batch) -> None:
        """Write other tokens into the same memory."""
        self.tokens.copy_(other.tokens)
        self.targets.copy_(other.targets)

    def head(self, rows: int, T: int) -> Batch:
        """Take the first steps of the first rows."""
        return Batch(self.tokens[:rows, :T], self.targets[:rows, :T])


def draw(rows: int, T: int, seed: int, device: str) -> Batch:
    """Draw windows of T bytes at random places of the sources of Python's standard library."""
    text = _text()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text), (rows, 1), generator=generator)
    windows = text[(starts + torch.arange(T + 1)) % len(text)].long().to(device)
    return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


@functools.cache
def _text() -> Tensor:
    return torch.from_numpy(np.frombuffer(split_text()[0], np.uint8).copy())
