"""How often `bisect` names an innocent commit, by simulation: histories at random, measured with noise.

Processes differ by 4 to 8 %. In two histories of three, one process in ten or in five is 30 % slower, as
beside a busy neighbour.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.versions.bisections import THRESHOLD, Knowing, Line, line, numbers, search

from ssmperf.comparison.versions.search.bisection import Undecided
from ssmperf.comparison.versions.search.looks import Ratio, Settled, settle
from ssmperf.comparison.versions.search.verdicts import Followed, judged_end, shows_end
from ssmperf.engine.measure import paired
from ssmperf.errors import ExitCode

COMMITS = 13


class Noisy(Knowing):
    """A meter that draws pairs of rounds with noise; its looks and intervals are those of `bisect`."""

    def __init__(self, names: Sequence[str], times: Sequence[float], rng: np.random.Generator) -> None:
        super().__init__(names, times)
        self.rng, self.spread, self.strays = rng, rng.uniform(0.04, 0.08), rng.choice([0.0, 0.1, 0.2])
        self.pairs = 0

    def draw(self, base: int, new: int, count: int) -> list[float]:
        self.pairs += count
        processes = self.spread * self.rng.standard_normal((2, count))
        processes += math.log(1.3) * (self.rng.random((2, count)) < self.strays)
        return list(math.log(self.times[new] / self.times[base]) + processes[1] - processes[0])

    def settled(self, base: int, new: int, settled: Settled) -> Ratio:
        logs: list[float] = []

        def measure(count: int) -> list[float]:
            logs.extend(self.draw(base, new, count - len(logs)))
            return logs

        return settle(measure, paired.FRESH_PAIRS, settled, exact=False)

    def follow(self, folder: Path) -> Followed:
        limit = 1 + THRESHOLD
        found = self.settled(0, len(self.names) - 1, lambda at: shows_end(at, limit))
        return Followed("3f2a", "throughput", "a case", True, False, 0, judged_end(found, limit))

    def compare(self, followed: Followed, base: str, new: str, folder: Path, settled: Settled) -> Ratio | str:
        return self.settled(self.names.index(base), self.names.index(new), settled)


def formerly(meter: Noisy) -> list[int] | None:
    """Search by the former rule: `ab`'s verdict at half of the way, and no comparison with the parent."""

    def verdict(new: int, threshold: float) -> paired.PairVerdict:
        first = [meter.draw(0, new, paired.FIRST_PAIRS)]
        screened = paired.screen(first, threshold)
        fresh = [meter.draw(0, new, paired.FRESH_PAIRS)] if screened[0] else []
        return paired.confirm(first, fresh, screened, threshold)[0]

    last = len(meter.names) - 1
    end = verdict(last, THRESHOLD)
    if end.verdict != "slower":
        return None
    halfway = max(THRESHOLD, math.sqrt(end.ratio) - 1)
    candidates = Line(meter.names[0], meter.names[last])
    words = {"slower": "bad", "same": "good", "faster": "good", "ambiguous": "skip"}
    while (commit := candidates.next()) is not None:
        found = verdict(meter.names.index(commit), halfway)
        candidates.mark(commit, words[found.verdict])
    return [meter.names.index(commit) for commit in candidates.found()]


def outcome(left: Sequence[int] | None, named: bool, steps: Mapping[int, float]) -> str:
    if left is None:
        return "undecided"
    largest = max(steps, key=lambda step: steps[step])
    if named:
        return "right" if left[0] == largest else "other step" if left[0] in steps else "INNOCENT"
    return "honest range" if set(steps) & set(left) else "DISHONEST"


@pytest.mark.slow
def test_no_innocent_commit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the histories with one step, 15 to 30 %; the former rule names innocent commits in the same ones."""
    names = line(monkeypatch, COMMITS)
    counts, former = Counter[str](), Counter[str]()
    for seed in range(100):
        rng = np.random.default_rng(seed)
        step, size = int(rng.integers(1, COMMITS)), float(rng.uniform(0.15, 0.30))
        times = [1.0] * step + [1 + size] * (COMMITS - step)
        try:
            found = search(Noisy(names, times, rng), tmp_path / str(seed))
            assert (found.exit_code == ExitCode.OK) == (found.named is not None)
            counts[outcome(numbers(found, names), found.named is not None, {step: size})] += 1
        except Undecided:
            counts["undecided"] += 1
        old = formerly(Noisy(names, times, np.random.default_rng(seed + 1000)))
        former[outcome(old, old is not None and len(old) == 1, {step: size})] += 1
    assert counts["INNOCENT"] == 0 and counts["DISHONEST"] <= 1, counts
    assert counts["right"] >= 75 and counts["undecided"] <= 2, counts
    assert former["INNOCENT"] >= 2 and former["right"] <= 50, former


@pytest.mark.slow
def test_nothing_is_named_where_nothing_happened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A commit that the search arrives at by wrong judgements is named in 5 % of the cases at most."""
    names = line(monkeypatch, COMMITS)
    slower = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        meter = Noisy(names, [1.0] * COMMITS, rng)
        slower += meter.settled(5, 6, lambda at: at.low > 1).low > 1
    assert slower <= 19, slower  # three standard errors above 10


def test_of_two_steps_none_between_them_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = line(monkeypatch, COMMITS)
    counts = Counter[str]()
    mentioned = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        first, second = sorted(map(int, rng.choice(range(1, COMMITS), 2, replace=False)))
        steps = dict(zip((first, second), rng.permutation([0.15, 0.30]).tolist(), strict=True))
        times = [
            math.prod(1 + size for at, size in steps.items() if at <= number) for number in range(COMMITS)
        ]
        found = search(Noisy(names, times, rng), tmp_path / str(seed))
        name = outcome(numbers(found, names), found.named is not None, steps)
        counts[name] += 1
        mentioned += name == "right" and any(each.shown for each in found.further)
    assert counts["INNOCENT"] == 0 and counts["DISHONEST"] <= 1, counts
    assert counts["right"] >= 20 and mentioned >= 0.7 * counts["right"], (counts, mentioned)
