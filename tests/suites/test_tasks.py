"""Tasks to learn: each target is what a plain solver finds in the row, in the law of the data card."""

from __future__ import annotations

import email
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ssmperf.suites.tasks.memory_horizon import RESET, compress
from ssmperf.suites.tasks.mqar import POWER
from ssmperf.suites.tasks.needle import FIRST_VALUE, QUESTION

from ssmperf import UnknownName, UsageError
from ssmperf.authoring import IGNORED, Draw, Examples, repeated_share, split_text
from ssmperf.suitekit import registry

TEXT = Path(email.__file__).parent  # a folder of text
Answers = dict[int, int]  # target by position
NAMES = ("memory_horizon", "mqar", "mqar:pairs=3:vocabulary=16", "selective_copying:tokens=5", "needle",
         "needle:needles=3", "induction", "language")  # fmt: skip


def recall(row: list[int]) -> Answers:
    """Solve mqar: the tokens before the second half of the first key's pairs are pairs."""
    known: dict[int, int] = {}
    found: Answers = {}
    for place, token in enumerate(row):
        if token in known:
            found[place] = known[token]
        elif place % 2 == 0 and token and place + 1 < len(row) and row[place + 1]:
            known[token] = row[place + 1]
    return found


def copy(row: list[int]) -> Answers:
    data = [token for token in row if token not in (0, 15)]
    return dict(zip([place for place, token in enumerate(row) if token == 15], data, strict=True))


def ask(row: list[int]) -> Answers:
    said = {row[place + 1]: row[place + 2] for place in range(len(row) - 2) if row[place] == QUESTION}
    return {len(row) - 1: said[row[-1]] - FIRST_VALUE}


def induce(row: list[int]) -> Answers:
    return {len(row) - 1: row[row.index(row[-1]) + 1]}


def read_on(row: list[int]) -> Answers:
    return dict(enumerate(row[1:]))


def horizon(row: list[int]) -> Answers:
    starts = [-1, *(place for place, token in enumerate(row) if token == RESET)]
    return {
        place: compress(row[max(start for start in starts if start <= place) + 1 : place + 1])
        for place in range(len(row))
    }


SOLVERS: dict[str, Callable[[list[int]], Answers]] = {
    "memory_horizon": horizon,
    "mqar": recall,
    "selective_copying": copy,
    "needle": ask,
    "induction": induce,
    "language": read_on,
}


def examples(name: str, *, held_out: bool = False, **numbers: int) -> Examples:
    """Draw from a task; its text is a package of the standard library."""
    asked = {"rows": 20, "T": 64, "trained": 32, "seed": 1, **numbers}
    found: Examples = registry.task(name).sample(Draw(**asked, held_out=held_out, corpus=TEXT))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_targets_are_what_a_plain_solver_finds(name: str) -> None:
    task, solve = registry.task(name), SOLVERS[name.partition(":")[0]]
    found = examples(name)
    assert found.tokens.shape == found.targets.shape == found.reaches.shape == (20, 64)
    assert int(found.tokens.max()) < task.vocabulary and int(found.tokens.min()) >= 0
    for tokens, targets, reaches in zip(*(part.tolist() for part in (
        found.tokens, found.targets, found.reaches)), strict=True):  # fmt: skip
        told = {place: target for place, target in enumerate(targets) if target != IGNORED}
        if name == "language":
            told.pop(63)  # its answer is the first byte behind the row
        assert told == solve(tokens) and set(targets) - {IGNORED} <= set(range(task.classes))
        assert all(0 <= reaches[place] <= place + 1 for place in told)


@pytest.mark.parametrize("name", NAMES)
def test_examples_follow_their_draw(name: str) -> None:
    first, again, other = examples(name), examples(name), examples(name, seed=2)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens, other.tokens)


def test_every_task_is_tested() -> None:
    assert {name.partition(":")[0] for name in NAMES} <= set(registry.tasks())
    ours = {name for name in registry.tasks() if registry.file_of("task", name) is None}
    assert ours == set(SOLVERS)


def test_what_is_asked_does_not_grow_with_the_length() -> None:
    for name in ("mqar", "selective_copying", "needle", "induction"):
        counts = [(examples(name, T=T).targets != IGNORED).sum(1).unique().tolist() for T in (32, 64, 512)]
        assert counts[0] == counts[1] == counts[2] and len(counts[0]) == 1


def test_pairs_and_chance_follow_from_the_length_of_the_training() -> None:
    """As in the papers: 4, 8 and 16 pairs at T = 64, 128 and 256."""
    task = registry.task("mqar")
    for T, pairs in ((64, 4), (128, 8), (256, 16)):
        found = examples("mqar", T=T, trained=T)
        assert ((found.targets != IGNORED).sum(1) == pairs).all() and task.chance(T) == 1 / pairs
    assert registry.task("mqar:pairs=64").chance(512) == 1 / 64
    assert registry.task("induction").chance(512) == 1 / 15


def test_first_gaps_follow_the_power_law() -> None:
    """Of all slots, the first one that is drawn has a probability proportional to (slot + 1)^(a − 1)."""
    found = examples("mqar:pairs=1", rows=8000, T=66, trained=32)
    gaps = ((found.targets != IGNORED).nonzero()[:, 1] - 2) // 2
    weights = np.arange(1, 33) ** (POWER - 1)
    expected = 8000 * weights / weights.sum()
    seen = torch.bincount(gaps, minlength=32).numpy()
    assert (((seen - expected) ** 2 / expected).sum()) < 31 + 5 * np.sqrt(2 * 31)


def test_options_are_part_of_the_name() -> None:
    assert registry.task("mqar:vocabulary=16:pairs=3").name == "mqar:pairs=3:vocabulary=16"
    assert registry.task("mqar:pairs=0").name == "mqar"
    zoology = registry.task("mqar")
    assert (zoology.tied, zoology.dropout, zoology.std) == (True, 0.1, 0.02)
    own = registry.task("mqar:tied=false:dropout=0:std=0")
    assert (own.tied, own.dropout, own.std) == (False, 0, None)
    with pytest.raises(UnknownName, match="vocabulary"):
        registry.task("mqar:words=3")
    for name in (
        "mqar:vocabulary=7",
        "mqar:dropout=1",
        "mqar:std=-1",
        "needle:needles=17",
        "selective_copying:alphabet=3",
    ):
        with pytest.raises(UsageError):
            registry.task(name)
    with pytest.raises(UsageError, match="T of at least"):
        examples("mqar:pairs=20")


def test_text_is_held_out_by_file(tmp_path: Path) -> None:
    """Each file has a letter of its own, and no letter is in both parts."""
    for number in range(40):
        (tmp_path / f"{number}.txt").write_bytes(bytes([number]) * 50)
    parts = [{*part} for part in split_text(tmp_path)]
    assert parts[0] | parts[1] == set(range(40)) and not parts[0] & parts[1]
    task = registry.task("language")
    for held_out in (False, True):
        found = task.sample(Draw(200, 8, trained=8, seed=0, held_out=held_out, corpus=tmp_path))
        assert {*found.tokens.flatten().tolist()} <= parts[held_out]
    single = tmp_path / "0.txt"
    single.write_bytes(bytes(range(100)))
    assert split_text(single) == (bytes(range(90)), bytes(range(90, 100)))


def test_what_repeats_other_files_is_not_held_out(tmp_path: Path) -> None:
    """A file that shares one line of 50 bytes with another repeats a twentieth of its windows."""
    drawn = np.random.default_rng(0)
    line = drawn.bytes(50)
    for number in range(40):
        own = drawn.bytes(19 * (50 - 31))
        (tmp_path / f"{number}.txt").write_bytes(own + line if number else drawn.bytes(400))
    learnt, unseen = split_text(tmp_path)
    assert unseen == (tmp_path / "0.txt").read_bytes() and line in learnt
    assert repeated_share(tmp_path) == 0
    (tmp_path / "0.txt").write_bytes(line)
    split_text.cache_clear()
    with pytest.raises(ValueError, match="pass a single file"):
        split_text(tmp_path)
    single = tmp_path / "1.txt"
    single.write_bytes((drawn.bytes(45) + line) * 10)
    assert repeated_share(single) == 1


@pytest.mark.slow
def test_less_than_a_fiftieth_of_the_library_is_repeated() -> None:
    """Counted by sets of bytes, on every 97th window."""
    learnt, unseen = split_text()
    seen = {learnt[place : place + 32] for place in range(len(learnt) - 31)}
    places = range(0, len(unseen) - 31, 97)
    share = sum(unseen[place : place + 32] in seen for place in places) / len(places)
    assert share < 0.02 and abs(share - repeated_share()) < 0.005


def test_text_of_tests_is_not_that_of_validation(tmp_path: Path) -> None:
    """No byte of this file comes twice."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(250)))
    seen: dict[bool, set[int]] = {}
    for validation in (False, True):
        draw = Draw(200, 8, trained=8, seed=0, held_out=True, validation=validation, corpus=text)
        seen[validation] = {*registry.task("language").sample(draw).tokens.flatten().tolist()}
    assert seen == {False: {*range(225, 245)}, True: {*range(245, 250)}}
    short = tmp_path / "short"
    short.write_bytes(bytes(range(40)))
    with pytest.raises(UsageError, match="only 4 of its bytes"):
        registry.task("language").sample(replace(draw, corpus=short))


def test_longer_rows_of_text_are_the_same_bytes() -> None:
    short, long = (examples("language", T=T, rows=64, held_out=True) for T in (32, 512))
    assert long.tokens.shape == (4, 512)
    assert torch.equal(short.tokens.flatten(), long.tokens.flatten())
