"""Memory Horizon: compress all numbers since the last reset (GateLoop, Katsch 2023, appendix A).

Data card
- Input: T tokens, each a number of {0, 1, 2, 3, 4} drawn uniformly, but for resets (token 5) at 3 positions
  drawn uniformly without replacement. The paper's range [0, 4] is read as these five symbols.
- Target at each step: `compress` of the numbers after the last reset up to and with this one, modulo 50: 50
  classes, 0 to 49. The reset is in no list, so the target at a reset is compress([]) = 0. Before the first
  reset the list starts with the sequence.
- The number of resets stays 3 at every T, so spans grow with T: that is what longer tests ask for.
- Train and test rows are drawn apart, by seed. The paper's 2,000 rows are taken as the training set; how it
  placed resets and whether its 2,000 rows include the test set, it does not say.
- One more number pairs the whole list anew, so that in general an exact solution must keep all of it.
  Always answering the most frequent class is right at 2.8 % of the steps at T = 1024; short spans are easier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from . import Examples, Task

NUMBERS = 5
RESET = NUMBERS
RESETS = 3
MODULUS = 50

Array = npt.NDArray[np.int64]


def compress(numbers: Sequence[int], modulus: int = MODULUS) -> int:
    """Products of the pairs (first, last), (second, last but one), … with signs +, −, +, … summed.

    A middle element without a partner is added with the next sign. The remainder is never negative.
    """
    total, sign = 0, 1
    left, right = 0, len(numbers) - 1
    while left <= right:
        total += sign * (numbers[left] if left == right else numbers[left] * numbers[right])
        left, right, sign = left + 1, right - 1, -sign
    return total % modulus


def compress_prefixes(numbers: Array, modulus: int = MODULUS) -> Array:
    """`compress` of every prefix that is not empty, at once."""
    left = np.arange((len(numbers) + 1) // 2)
    right = np.arange(len(numbers))[:, None] - left
    partner = np.where(left == right, 1, numbers[right])
    terms = np.where(left <= right, numbers[left] * partner, 0)
    return np.asarray((terms * np.where(left % 2, -1, 1)).sum(1) % modulus, dtype=np.int64)


def sample(rows: int, T: int, seed: int) -> Examples:
    """Examples as the data card says. spans: numbers in the list, 0 at a reset."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, NUMBERS, (rows, T))
    targets, spans = np.zeros((rows, T), np.int64), np.zeros((rows, T), np.int64)
    for row in range(rows):
        places = np.sort(generator.choice(T, min(RESETS, T), replace=False))
        tokens[row, places] = RESET
        for start, stop in zip([0, *(places + 1)], [*places, T], strict=True):
            targets[row, start:stop] = compress_prefixes(tokens[row, start:stop])
            spans[row, start:stop] = np.arange(1, stop - start + 1)
    return Examples(*map(torch.from_numpy, (tokens, targets, spans)))


TASK = Task("memory_horizon", vocabulary=NUMBERS + 1, classes=MODULUS, sample=sample)
