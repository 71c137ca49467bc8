"""Induction heads: say what came after the special token, when that comes again (Gu and Dao 2023, "Mamba").

Data card
- Tokens 0 to V − 2 drawn uniformly, V = 16; token V − 1 is special. It stands once at a place drawn
  uniformly from 0 to T − 3, and once more at the end. The target there is the token that followed the first
  one; nothing else has a target.
- The paper trains at T = 256 and tests up to 2²⁰.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ssmperf import UsageError
from ssmperf.authoring import IGNORED, Draw, Examples, Task, task

LEAST = 3


def sample(draw: Draw, *, vocabulary: int) -> Examples:
    """Draw examples as the data card says. A target reaches back to the first special token."""
    if draw.T < LEAST:
        raise UsageError(f"induction needs T of at least {LEAST}, got {draw.T}")
    generator = np.random.default_rng(draw.seed)
    row = np.arange(draw.rows)
    tokens = generator.integers(0, vocabulary - 1, (draw.rows, draw.T))
    places = generator.integers(0, draw.T - 2, draw.rows)
    tokens[row, places] = tokens[:, -1] = vocabulary - 1
    targets, reaches = np.full_like(tokens, IGNORED), np.zeros_like(tokens)
    targets[:, -1] = tokens[row, places + 1]
    reaches[:, -1] = draw.T - places
    return Examples(*map(torch.from_numpy, (tokens, targets, reaches)))


@task("induction")
def induction(*, vocabulary: int = 16) -> Task:
    """Make the task of the paper.

    vocabulary: number of different tokens, with the special one.
    """
    if vocabulary < LEAST:
        raise UsageError(f"induction: the vocabulary must be at least {LEAST}, got {vocabulary}")
    return Task(
        vocabulary=vocabulary,
        classes=vocabulary - 1,
        sample=partial(sample, vocabulary=vocabulary),
        least=LEAST,
    )
