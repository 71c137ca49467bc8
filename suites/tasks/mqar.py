"""Multi-query associative recall: name the value of each key that comes again (Arora et al. 2023, "Zoology").

Data card
- Tokens: 0 is filler, 1 to V/2 − 1 are keys, V/2 to V − 1 are values; V = 8,192 in the papers.
- A row begins with n pairs, key then value, without repetition inside the row. After them, key i stands
  once more at position 2n + 2g_i, and its value is the target there; nothing else has a target.
- The n gaps g are distinct, drawn one by one with probability ∝ (g + 1)^(a − 1), a = 0.01: most queries come
  soon. The law is the same at every T, so a longer test has more filler and more distant queries.
- n follows from the length of the training, T/16 and at least 1: 2, 4, 8, 16 pairs at T = 32, 64, 128, 256.
  The papers take 64 pairs at T = 512: `mqar:pairs=64`. A row needs T ≥ 4n.
- Networks are Zoology's. The head is tied to the embedding, and a tenth of the embedded tokens is zeroed in
  training. The weights of the embedding and of linear maps start with a deviation of 0.02, those that end a
  mixing branch with 0.02/√(2·layers). Zoology also starts all biases of linear maps at 0; here they start as
  the models say. `mqar:dropout=0:std=0:tied=false` leaves all to the models.
- The papers draw 100,000 rows. Guessing one of the row's values is right in one of n cases, which is the
  chance stated, since a network that has learned nothing about keys can do that.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ssmperf import UsageError
from ssmperf.authoring import IGNORED, Draw, Examples, Task, task

LENGTH_PER_PAIR = 16
POWER = 0.01
DENSE = 4  # n² above so many times the pool: rows without repetitions are too rare to wait for

Array = npt.NDArray[np.int64]


def pairs_at(trained: int, pairs: int = 0) -> int:
    """Give the number of pairs: the chosen one, or that of the papers for a length of the training."""
    return pairs or max(1, trained // LENGTH_PER_PAIR)


def distinct(generator: np.random.Generator, rows: int, count: int, pool: int) -> Array:
    """Draw `count` different numbers below `pool` for each row, in random order: (rows, count)."""
    if count**2 > DENSE * pool:
        return np.stack([generator.permutation(pool)[:count] for _ in range(rows)])
    found = generator.integers(0, pool, (rows, count))
    while True:
        ordered = np.sort(found, 1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if not repeated.any():
            return found
        found[repeated] = generator.integers(0, pool, (int(repeated.sum()), count))


def draw_gaps(generator: np.random.Generator, rows: int, count: int, slots: int) -> Array:
    """Draw `count` different slots per row, one after another, with probability ∝ (slot + 1)^(a − 1).

    The arrival times of a race with these rates are in the order of such draws.
    """
    arrivals = generator.exponential(1.0, (rows, slots)) * np.arange(1, slots + 1) ** (1 - POWER)
    return np.asarray(np.argsort(arrivals, 1)[:, :count], dtype=np.int64)


def sample(draw: Draw, *, vocabulary: int, pairs: int) -> Examples:
    """Draw examples as the data card says. A target reaches back to the pair of its key."""
    generator = np.random.default_rng(draw.seed)
    count, half = pairs_at(draw.trained, pairs), vocabulary // 2
    if 4 * count > draw.T:
        raise UsageError(f"mqar with {count} pairs needs T of at least {4 * count}, got {draw.T}")
    if count > half - 1:
        raise UsageError(f"mqar has {half - 1} keys in a vocabulary of {vocabulary}, too few for {count}")
    keys = 1 + distinct(generator, draw.rows, count, half - 1)
    values = half + distinct(generator, draw.rows, count, half)
    tokens = np.zeros((draw.rows, draw.T), np.int64)
    tokens[:, 0 : 2 * count : 2], tokens[:, 1 : 2 * count : 2] = keys, values
    places = 2 * count + 2 * draw_gaps(generator, draw.rows, count, (draw.T - 2 * count) // 2)
    targets = np.full_like(tokens, IGNORED)
    reaches = np.zeros_like(tokens)
    row = np.arange(draw.rows)[:, None]
    tokens[row, places], targets[row, places] = keys, values
    reaches[row, places] = places - 2 * np.arange(count) + 1
    return Examples(*map(torch.from_numpy, (tokens, targets, reaches)))


@task("mqar")
def mqar(
    *, vocabulary: int = 8192, pairs: int = 0, tied: bool = True, dropout: float = 0.1, std: float = 0.02
) -> Task:
    """Make the task of the papers.

    vocabulary: number of tokens.
    pairs: number of pairs; 0 means a sixteenth of the length of the training.
    tied: whether networks tie the head to the embedding.
    dropout: share of the embedded tokens that is zeroed in training.
    std: of the weights at the start; 0 means those of the models.
    """
    if vocabulary < 4 or vocabulary % 2 or pairs < 0:
        raise UsageError(f"mqar: vocabulary must be even and at least 4, got {vocabulary}, {pairs} pairs")
    if not 0 <= dropout < 1 or std < 0:
        raise UsageError(f"mqar: dropout must be in [0, 1) and std at least 0, got {dropout} and {std}")
    return Task(
        vocabulary=vocabulary,
        classes=vocabulary,
        sample=partial(sample, vocabulary=vocabulary, pairs=pairs),
        guess=lambda trained: 1 / pairs_at(trained, pairs),
        least=4 * max(1, pairs),
        answers=vocabulary // 2,
        tied=tied,
        dropout=dropout,
        std=std or None,
    )
