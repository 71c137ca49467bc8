"""Memory Horizon: compress all numbers since the last reset (GateLoop, Katsch 2023, appendix A).

Data card
- Input: T tokens. Each is a number of {0, 1, 2, 3, 4} drawn uniformly, except for resets (token 5) at 3
  positions drawn uniformly without replacement. The paper's range [0, 4] is read as these five symbols.
- Target at each step: `compress` of the numbers from the last reset up to and including this one, modulo 50:
  50 classes, 0 to 49. A reset belongs to no list, so the target at a reset is compress([]) = 0. Before the
  first reset, the list starts at the beginning of the sequence.
- There are 3 resets at every T, so targets reach further back in longer sequences. Longer tests rely on it.
- Training and test rows are drawn separately, with different seeds. The paper's 2,000 rows are read as the
  training set; the paper does not say how it placed resets, nor whether its rows include the test set.
- One more number pairs the whole list anew, so in general an exact solution must keep all of it. The most
  frequent class is the right answer at 2.8 % of the steps at T = 1024, and more often at short reaches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ssmperf.authoring import Draw, Examples, Task, task

NUMBERS = 5
RESET = NUMBERS
RESETS = 3
MODULUS = 50
ROWS = 2000

Array = npt.NDArray[np.int64]


def compress(numbers: Sequence[int], modulus: int = MODULUS) -> int:
    """Sum the products of the pairs (first, last), (second, last but one), … with signs +, −, +, …

    A middle element without a partner is added with the next sign. The result is the remainder of the sum,
    which is never negative.
    """
    total, sign = 0, 1
    left, right = 0, len(numbers) - 1
    while left <= right:
        total += sign * (numbers[left] if left == right else numbers[left] * numbers[right])
        left, right, sign = left + 1, right - 1, -sign
    return total % modulus


def compress_prefixes(numbers: Array, modulus: int = MODULUS) -> Array:
    """Compute `compress` of every prefix that is not empty, all at once."""
    left = np.arange((len(numbers) + 1) // 2)
    right = np.arange(len(numbers))[:, None] - left
    partner = np.where(left == right, 1, numbers[right])
    terms = np.where(left <= right, numbers[left] * partner, 0)
    return np.asarray((terms * np.where(left % 2, -1, 1)).sum(1) % modulus, dtype=np.int64)


def sample(draw: Draw) -> Examples:
    """Draw examples as the data card says. A target's reach is the length of its list, 0 at a reset."""
    generator = np.random.default_rng(draw.seed)
    rows, T = draw.rows, draw.T
    tokens = generator.integers(0, NUMBERS, (rows, T))
    targets, reaches = np.zeros((rows, T), np.int64), np.zeros((rows, T), np.int64)
    for row in range(rows):
        places = np.sort(generator.choice(T, min(RESETS, T), replace=False))
        tokens[row, places] = RESET
        for start, stop in zip([0, *(places + 1)], [*places, T], strict=True):
            targets[row, start:stop] = compress_prefixes(tokens[row, start:stop])
            reaches[row, start:stop] = np.arange(1, stop - start + 1)
    return Examples(*map(torch.from_numpy, (tokens, targets, reaches)))


@task("memory_horizon")
def memory_horizon() -> Task:
    """Make the task of the paper."""
    return Task(vocabulary=NUMBERS + 1, classes=MODULUS, sample=sample, rows=ROWS)
