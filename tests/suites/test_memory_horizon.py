"""The Memory Horizon task: exact `compress`, and data as its card says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ssmperf.suites.tasks.memory_horizon import MODULUS, RESET, RESETS, compress, compress_prefixes
from ssmperf.suites.tasks.memory_horizon import sample as sample_of

from ssmperf.authoring import Draw, Examples


def sample(rows: int, T: int, seed: int) -> Examples:
    return sample_of(Draw(rows, T, trained=T, seed=seed))


@pytest.mark.parametrize(
    ("numbers", "result"),
    [
        ([], 0),
        ([3], 3),
        ([1, 2], 2),
        ([1, 2, 3], 1),
        ([4, 0, 3, 2], 8),
        ([1, 4, 4, 1], 35),
        ([2, 3, 4, 1, 0], 1),
        ([4] * 6, 16),
    ],
)
def test_compress_of_the_examples(numbers: list[int], result: int) -> None:
    assert compress(numbers) == result


def test_the_remainder_is_never_negative() -> None:
    assert compress([0, 4, 4, 0]) == MODULUS - 16
    assert compress([0, 4, 4, 0], 7) == 5


@pytest.mark.parametrize("length", [0, 1, 2, 3, 8, 33, 64])
def test_all_prefixes_at_once_are_compress_of_each(length: int) -> None:
    numbers = np.random.default_rng(length).integers(0, 5, length)
    expected = [compress(numbers[: end + 1].tolist()) for end in range(length)]
    assert compress_prefixes(numbers).tolist() == expected


def test_targets_are_compress_of_the_numbers_since_the_last_reset() -> None:
    examples = sample(5, 40, seed=3)
    for tokens, targets, reaches in zip(*(x.tolist() for x in (
        examples.tokens, examples.targets, examples.reaches)), strict=True):  # fmt: skip
        since: list[int] = []
        for token, target, reach in zip(tokens, targets, reaches, strict=True):
            since = [] if token == RESET else [*since, token]
            assert (target, reach) == (compress(since), len(since))


@pytest.mark.parametrize("T", [2, 3, 4, 100])
def test_rows_hold_three_resets_and_numbers_from_0_to_4(T: int) -> None:
    tokens = sample(20, T, seed=0).tokens
    assert ((tokens == RESET).sum(1) == min(RESETS, T)).all()
    assert set(tokens.unique().tolist()) <= {0, 1, 2, 3, 4, RESET}
    assert tokens.dtype == torch.int64 and tokens.shape == (20, T)


def test_resets_fall_everywhere() -> None:
    places = (sample(400, 10, seed=1).tokens == RESET).float().mean(0)
    assert ((places - RESETS / 10).abs() < 0.12).all()


def test_examples_follow_their_seed() -> None:
    first, again, other = sample(4, 30, 7), sample(4, 30, 7), sample(4, 30, 8)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens, other.tokens)


def test_the_most_frequent_answer_is_rarely_right() -> None:
    """2.8 % of all steps at T = 1024, and 2.6 % at most where targets reach far back."""
    examples = sample(60, 1024, seed=0)
    for reaches, low, high in ((range(0, 1025), 0.024, 0.032), (range(20, 1025), 0.02, 0.028)):
        chosen = (examples.reaches >= reaches.start) & (examples.reaches < reaches.stop)
        counts = torch.bincount(examples.targets[chosen], minlength=MODULUS)
        assert low < float(counts.max() / counts.sum()) < high
