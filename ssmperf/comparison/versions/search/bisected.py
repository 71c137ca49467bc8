"""The result of a bisection: the first slow or wrong commit, or the commits among which it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.comparison.versions.search.candidates import Commit
from ssmperf.comparison.versions.search.verdicts import BAD, CommitVerdict, Followed
from ssmperf.errors import ExitCode

DIGITS = 10  # of a commit, in texts and names of folders


@dataclass(frozen=True, slots=True)
class Direct:
    """A direct comparison of the newest commit of a range with a parent of the range.

    found: BAD if it is shown to be slower, or to be wrong where the parent is right.
    """

    base: Commit
    new: Commit
    found: CommitVerdict

    def to_json(self) -> dict[str, Any]:
        return {"base": self.base.name, "new": self.new.name, **self.found.to_json()}


@dataclass(frozen=True, slots=True)
class Further:
    """A further slow-down, before or after the named commit.

    commits: how many lie between, the new one included. found: the ratio of the new one over the base.
    shown: whether that is a slow-down by more than the threshold.
    """

    base: Commit
    new: Commit
    commits: int
    found: CommitVerdict
    shown: bool

    def to_json(self) -> dict[str, Any]:
        counted = {"commits": self.commits, "shown": self.shown}
        return {"base": self.base.name, "new": self.new.name, **counted, **self.found.to_json()}


@dataclass(frozen=True)
class Bisected:
    """The outcome of a bisection.

    texts: the good and the bad end as the user named them.
    first: the commits among which the first slow or wrong one is, the earliest first. named: that one, if it
        is shown to be slower than its parent.
    followed: the case that the search follows, with the judgement of the bad end.
    judged: all judgements by the commit's name. direct: comparisons of the last of `first` with the parents
        of these commits. further: what is known of other slow-downs; empty if no commit is named.
    widened: whether a direct comparison contradicted judgements, so that `first` has more commits.
    folder: where the comparisons are.
    """

    good: Commit
    bad: Commit
    texts: tuple[str, str]
    first: tuple[Commit, ...]
    named: Commit | None
    followed: Followed
    judged: Mapping[str, CommitVerdict]
    direct: tuple[Direct, ...]
    further: tuple[Further, ...]
    widened: bool
    folder: Path

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if self.named else ExitCode.UNSURE

    @property
    def judgement(self) -> CommitVerdict:
        """The judgement of the named commit, or of the bad one if there is none."""
        return self.judged[(self.named or self.bad).name]

    @property
    def conclusion(self) -> str:
        """The answer in lines: the commit with its author, date and ratios, or the range that is left."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        what = "slow" if self.followed.timed else "wrong"
        if self.named:
            found = self.direct[0].found
            reason = (
                f"{found.change} against its parent {self.direct[0].base.name[:DIGITS]}"
                if self.followed.timed
                else found.text
            )
            yield f"{self.named.name} is the first {what} commit: {reason}"
            yield f"    {self.named.date}  {self.named.author}"
            yield f"    {self.named.subject}"
            yield from self._against_good()
        else:
            yield f"the first {what} commit is one of these {len(self.first)}: {self._why()}"
            for each in self.first:
                yield f"    {each.name[:DIGITS]}  {each.date}  {each.subject}{self._judged(each)}"
        for direct in self.direct[1:] if self.named else self.direct:
            if direct.base != self.good or direct.new != self.bad:
                yield _compared(direct)
        yield f"the case: {self.followed.text} ({self.followed.case_id}){self._others()}"
        yield from self._further()
        yield from self._between()

    def _against_good(self) -> Iterator[str]:
        """Give the ratios of the parent, the named commit and the bad end against the good one."""
        if not self.followed.timed:
            parent = self.direct[0].base.name
            yield f"    its parent {parent[:DIGITS]} is right"
            return
        assert self.named is not None
        names = {"its parent": self.direct[0].base, "it": self.named, self.texts[1]: self.bad}
        if self.named == self.bad:
            del names[self.texts[1]]
        known = [
            f"{text} {self.judged[commit.name].change}"
            for text, commit in names.items()
            if commit.name in self.judged
        ]
        if self.direct[0].base == self.good:
            known.insert(0, "its parent is that commit")
        yield f"    against {self.texts[0]} ({self.good.name[:DIGITS]}): {', '.join(known)}"

    def _why(self) -> str:
        if self.widened:
            return "a direct comparison contradicts the judgements of fewer"
        if len(self.first) == 1:
            return "it is not shown to differ from its parent"
        return "those between could not be judged"

    def _judged(self, commit: Commit) -> str:
        found = self.judged.get(commit.name)
        return f": {found.word}, {found.text} {found.change}".rstrip() if found else ""

    def _others(self) -> str:
        count = self.followed.others
        if not count:
            return ""
        cases, them = ("case is", "it") if count == 1 else ("cases are", "them")
        state = "slower" if self.followed.timed else "wrong or slower"
        return f"; {count} other {cases} {state} at {self.texts[1]}: name {them} by --case"

    def _further(self) -> Iterator[str]:
        """Say of each side of the named commit whether a further slow-down was found there."""
        for each in self.further:
            side = "after it" if each.new == self.bad else "before it"
            ends = f"--good {each.base.name[:DIGITS]} --bad {each.new.name[:DIGITS]}"
            commits = f"{each.commits} {'commit' if each.commits == 1 else 'commits'}"
            if each.shown:
                yield f"a further slow-down lies {side}, {each.found.change} over {commits}: search {ends}"
            else:
                known = each.found.change or each.found.text
                yield f"no further slow-down is shown {side}: {known} over {commits}"

    def _between(self) -> Iterator[str]:
        """Name a commit of the range that is slower than the good end, and faster than the bad one."""
        end, good, bad = self.followed.found.low or 0.0, self.good.name[:DIGITS], self.bad.name[:DIGITS]
        for commit in () if self.named else self.first:
            found = self.judged.get(commit.name)
            if found and found.low and found.high and found.low > 1 and found.high < end:
                name = commit.name[:DIGITS]
                searches = f"--good {good} --bad {name}, and --good {name} --bad {bad}"
                yield f"more than one commit is slow, for {name} lies between the ends: search {searches}"
                return

    def to_json(self) -> dict[str, Any]:
        return {
            "exit_code": int(self.exit_code),
            "conclusion": self.conclusion,
            "texts": list(self.texts),
            "good": self.good.to_json(),
            "bad": self.bad.to_json(),
            "first": [each.to_json() for each in self.first],
            "named": None if self.named is None else self.named.to_json(),
            "followed": self.followed.to_json(),
            "midpoint": self.followed.midpoint if self.followed.timed else None,
            "judged": {name: each.to_json() for name, each in self.judged.items()},
            "direct": [each.to_json() for each in self.direct],
            "further": [each.to_json() for each in self.further],
            "widened": self.widened,
            "folder": str(self.folder),
        }


def _compared(direct: Direct) -> str:
    """Say what a direct comparison shows."""
    new, base = direct.new.name[:DIGITS], direct.base.name[:DIGITS]
    shown = "is" if direct.found.code == BAD else "is not shown to be"
    return f"    {new} {shown} slower than {base}: {direct.found.change or direct.found.text}"
