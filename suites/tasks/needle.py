"""A needle in a haystack, at the level of tokens: what was said once, anywhere before, is asked at the end.

Data card
- The token-level form of the easy mode of HGRN2's test (Qin et al. 2024), where the needle has the form of
  the question: QUESTION, key, value stands somewhere in random filler, and a row ends in QUESTION, key. The
  target at that last key is the value; nothing else has a target.
- 64 filler tokens, 16 keys, 16 values, all drawn uniformly. With several needles their keys differ, and the
  question is for one of them.
- The needle's place is uniform over all places before the question, in steps of its own length, so that
  needles do not overlap. A longer test hides the same needles in more filler.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ssmperf import UsageError
from ssmperf.authoring import IGNORED, Draw, Examples, Task, task

FILLERS, KEYS, VALUES = 64, 16, 16
QUESTION = FILLERS  # then the keys, then the values
FIRST_KEY = QUESTION + 1
FIRST_VALUE = FIRST_KEY + KEYS
LONG = 3  # tokens of a needle


def sample(draw: Draw, *, needles: int) -> Examples:
    """Draw examples as the data card says. A target reaches back to the beginning of its needle."""
    generator = np.random.default_rng(draw.seed)
    rows, end = draw.rows, draw.T - 2
    slots = end // LONG
    if slots < needles:
        least = LONG * needles + 2
        raise UsageError(f"needle with {needles} needles needs T of at least {least}, got {draw.T}")
    row = np.arange(rows)
    tokens = generator.integers(0, FILLERS, (rows, draw.T))
    places = LONG * np.argsort(generator.random((rows, slots)), 1)[:, :needles]
    keys = FIRST_KEY + np.argsort(generator.random((rows, KEYS)), 1)[:, :needles]
    values = generator.integers(FIRST_VALUE, FIRST_VALUE + VALUES, (rows, needles))
    for number in range(needles):
        start = places[:, number]
        tokens[row, start] = QUESTION
        tokens[row, start + 1], tokens[row, start + 2] = keys[:, number], values[:, number]
    tokens[:, end], tokens[:, end + 1] = QUESTION, keys[:, 0]
    targets, reaches = np.full_like(tokens, IGNORED), np.zeros_like(tokens)
    targets[:, end + 1] = values[:, 0] - FIRST_VALUE
    reaches[:, end + 1] = draw.T - places[:, 0]
    return Examples(*map(torch.from_numpy, (tokens, targets, reaches)))


@task("needle")
def needle(*, needles: int = 1) -> Task:
    """Make the task.

    needles: number of needles in a row, at most 16.
    """
    if not 1 <= needles <= KEYS:
        raise UsageError(f"needle: the number of needles must lie between 1 and {KEYS}, got {needles}")
    return Task(
        vocabulary=FIRST_VALUE + VALUES,
        classes=VALUES,
        sample=partial(sample, needles=needles),
        least=LONG * needles + 2,
    )
