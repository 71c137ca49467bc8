"""Selective copying: repeat the data tokens among noise, in order (Gu and Dao 2023, "Mamba").

Data card
- Alphabet of 16: 0 is noise, 15 asks for the next token, 1 to 14 are data.
- The first T − n tokens are noise, but for n data tokens at places drawn uniformly without replacement;
  n = 16. The last n tokens ask, and the target at the i-th of them is the i-th data token.
- n is the same at every T, so a longer test has more noise and nothing else.
- The paper's set-up is T = 4,096 and 400,000 updates of 64 rows, fresh each time.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ssmperf import UsageError
from ssmperf.authoring import IGNORED, Draw, Examples, Task, task

NOISE = 0


def sample(draw: Draw, *, alphabet: int, count: int) -> Examples:
    """Draw examples as the data card says. A target reaches back to the token that it repeats."""
    generator = np.random.default_rng(draw.seed)
    area = draw.T - count
    if area < count:
        raise UsageError(f"selective_copying of {count} tokens needs T of at least {2 * count}, got {draw.T}")
    places = np.sort(np.argsort(generator.random((draw.rows, area)), 1)[:, :count], 1)
    data = generator.integers(1, alphabet - 1, (draw.rows, count))
    tokens = np.full((draw.rows, draw.T), NOISE, np.int64)
    tokens[np.arange(draw.rows)[:, None], places] = data
    tokens[:, area:] = alphabet - 1
    targets, reaches = np.full_like(tokens, IGNORED), np.zeros_like(tokens)
    targets[:, area:] = data
    reaches[:, area:] = area + np.arange(count) - places + 1
    return Examples(*map(torch.from_numpy, (tokens, targets, reaches)))


@task("selective_copying")
def selective_copying(*, alphabet: int = 16, tokens: int = 16) -> Task:
    """Make the task of the paper.

    alphabet: number of different tokens, with the noise and the one that asks.
    tokens: number of data tokens in a row.
    """
    if alphabet < 4 or tokens < 1:
        raise UsageError(f"selective_copying: an alphabet of {alphabet} with {tokens} tokens is too small")
    return Task(
        vocabulary=alphabet,
        classes=alphabet,
        sample=partial(sample, alphabet=alphabet, count=tokens),
        guess=lambda trained: 1 / (alphabet - 2),
        least=2 * tokens,
        answers=alphabet - 2,
    )
