"""Bisections whose times are made up, over commits of a repository or of a line that is kept in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.search import bisection
from ssmperf.comparison.versions.search.bisected import Bisected
from ssmperf.comparison.versions.search.bisection import bisect
from ssmperf.comparison.versions.search.candidates import Commit
from ssmperf.comparison.versions.search.looks import Ratio, Settled
from ssmperf.comparison.versions.search.verdicts import BAD, GOOD, SKIP, CommitVerdict, Followed, judged_end

THRESHOLD = 0.05


class Knowing:
    """A meter that knows the time of each commit, and measures it to within 2 %.

    odd: commits that cannot be measured, with the reason; or the ratio that is found against the good end.
    asked: what was compared, as numbers of commits.
    """

    timed = True

    def __init__(
        self, names: Sequence[str], times: Sequence[float], odd: Mapping[int, Any] | None = None
    ) -> None:
        self.names, self.times, self.odd = names, times, odd or {}
        self.asked: list[tuple[int, int]] = []

    def follow(self, folder: Path) -> Followed:
        found = self.ratio(0, len(self.names) - 1)
        end = CommitVerdict(SKIP, found) if isinstance(found, str) else judged_end(found, 1 + THRESHOLD)
        end = end if self.timed else self.answer(len(self.names) - 1)
        return Followed("3f2a", "throughput", "a case", self.timed, False, 0, end)

    def ratio(self, base: int, new: int) -> Ratio | str:
        earlier = self.asked.count((base, new))
        self.asked.append((base, new))
        for odd in map(self.odd.get, (base, new)):
            if isinstance(odd, str):
                return odd
        wrong = self.odd.get(new) if base == 0 and not earlier else None
        ratio = wrong or self.times[new] / self.times[base]
        return Ratio(ratio, ratio / 1.02, ratio * 1.02, 7)

    def compare(self, followed: Followed, base: str, new: str, folder: Path, settled: Settled) -> Ratio | str:
        assert followed.case_id == "3f2a"
        return self.ratio(self.names.index(base), self.names.index(new))

    def judge(self, followed: Followed, commit: str, folder: Path) -> CommitVerdict:
        number = self.names.index(commit)
        self.asked.append((number, number))
        return self.answer(number)

    def answer(self, number: int) -> CommitVerdict:
        if isinstance(odd := self.odd.get(number), str):
            return CommitVerdict(SKIP, odd)
        return CommitVerdict(BAD, "wrong: by 3.0") if self.times[number] > 1 else CommitVerdict(GOOD, "ok")

    @property
    def candidates(self) -> list[int]:
        return [new for base, new in self.asked if base in (0, new)]


class Answering(Knowing):
    """A meter whose case is wrong at the slow commits."""

    timed = False


def slow_from(names: Sequence[str], number: int, odd: Mapping[int, Any] | None = None) -> Knowing:
    return Knowing(names, [1.3 if each >= number else 1.0 for each in range(len(names))], odd)


def numbers(found: Bisected, names: Sequence[str]) -> list[int]:
    return [names.index(each.name) for each in found.first]


class Line:
    """Stands in for `Candidates` without git: commits in a line, of which the middle one is asked for."""

    names: Sequence[str]

    def __init__(self, good: str, bad: str) -> None:
        self.good, self.bad = good, bad
        self.low, self.high = self.names.index(good), self.names.index(bad)
        self.skipped: set[int] = set()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *details: object) -> None: ...

    def next(self) -> str | None:
        middle = (self.low + self.high) / 2
        open_ = [each for each in range(self.low + 1, self.high) if each not in self.skipped]
        return self.names[min(open_, key=lambda each: abs(each - middle))] if open_ else None

    def mark(self, commit: str, verdict: str) -> None:
        number = self.names.index(commit)
        if verdict == "skip":
            self.skipped.add(number)
        elif verdict == "good":
            self.low = number
        else:
            self.high = number

    def found(self) -> list[str]:
        return list(self.names[self.low + 1 : self.high + 1])

    def between(self, good: Iterable[str], bad: str) -> list[str]:
        return list(self.names[1 + max(map(self.names.index, good)) : self.names.index(bad) + 1])

    def parents(self, commits: Sequence[str]) -> list[str]:
        return [self.names[self.names.index(commits[0]) - 1]]

    def left(self) -> tuple[int, int]:
        return self.high - self.low, 1

    def describe(self, commit: str) -> Commit:
        return Commit(commit, "Ada", "2026-01-01T12:00:00+00:00", f"change {self.names.index(commit)}")

    def has(self, commit: str, path: str) -> bool:
        return True


def line(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """Make `bisect` search in a line of so many commits, and give their names."""
    names = [f"{number:02}" * 20 for number in range(count)]
    monkeypatch.setattr(Line, "names", names, raising=False)
    monkeypatch.setattr(bisection, "Candidates", Line)
    monkeypatch.setattr(bisection, "kind_of", lambda text: ("git ref", text))
    monkeypatch.setattr(bisection, "ancestor", lambda good, bad: True)
    return names


def search(meter: Any, out: Path, **more: Any) -> Bisected:
    """Search from the first of a line of commits to the last."""
    return bisect(Versions(meter.names[0], meter.names[-1], {}), out, meter=meter, **more)
