"""Dropout whose choice follows from a number, on every device and whether or not a graph is replayed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BITS = 32
FACTOR = 0x7FEB352D  # odd and below 2³¹, so that products of 32-bit numbers fit into int64


class NumberedDropout(nn.Module):
    """Zero a share of x in training, and divide the rest by 1 − share.

    torch's dropout draws from one generator per device: its choice would depend on other trainings on the
    device. Here it is a hash of each place in x and of `number`, which the trainer sets before each update.

    share: in [0, 1).
    """

    number: Tensor

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("number", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.share):
            return x
        places = torch.arange(x.numel(), device=x.device).view(x.shape)
        kept = hashed(places ^ hashed(self.number)) >= self.share * 2**BITS
        return torch.where(kept, x / (1 - self.share), 0)


def hashed(x: Tensor) -> Tensor:
    """Scatter integers in [0, 2³²) over the same range, one to one."""
    x = ((x ^ (x >> 16)) * FACTOR) & (2**BITS - 1)
    x = ((x ^ (x >> 15)) * FACTOR) & (2**BITS - 1)
    return x ^ (x >> 16)
