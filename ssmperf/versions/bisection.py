"""Find the commit that made a case slower: `git bisect`, in which `ab` against the good commit is the judge.

What an exit code of `ab` means for the search, in the codes of `git bisect run`: a candidate that is not
slower is good (0), a slower one is bad (1). One whose answer is wrong, or that the noise does not allow to
judge (3 and 4), is skipped (125), and so is one that cannot be installed or does not have the case. A request
that is wrong for the good commit already (2) ends the search (128).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.errors import ExitCode, SsmperfError, UnreadableRun, UsageError, VersionEnded, VersionFailed
from ssmperf.execute.run import Progress
from ssmperf.runs.outcome import RunComparison, percent
from ssmperf.versions.candidates import Candidates, Commit, ancestor, path_in_tree
from ssmperf.versions.procedure import PLAN_FILE, Versions, compare_versions, write_state
from ssmperf.versions.sides import kind_of, shallow_words

STATE_FILE = "bisect.json"
MOST_HALFWAY = 0.5  # largest change that counts as the same, whatever the change between the ends
DIGITS = 10  # of a commit, in texts and names of folders
GOOD, BAD, SKIP, ABORT = 0, 1, 125, 128  # as `git bisect run` reads them
GIT_CODES: Mapping[int, int] = {
    ExitCode.OK: GOOD,
    ExitCode.REGRESSION: BAD,
    ExitCode.USAGE: ABORT,
    ExitCode.BAD_CASE: SKIP,
    ExitCode.UNSURE: SKIP,
}
WORDS = {GOOD: "good", BAD: "bad", SKIP: "skip"}


class Undecided(SsmperfError):
    """The bad commit cannot be told from the good one."""

    exit_code = ExitCode.UNSURE


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a commit.

    code: GOOD, BAD or SKIP. text: the verdict and its reason in words.
    ratio, low, high: its time over that of the good commit, and the interval of `ab`; None if unknown.
    """

    code: int
    text: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def word(self) -> str:
        """The verdict as `git bisect` takes it."""
        return WORDS[self.code]

    @property
    def change(self) -> str:
        """The ratio with its interval as text; empty if it is unknown."""
        if self.ratio is None:
            return ""
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.ratio:.3f}×{interval}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# good commit, candidate, folder of the comparison, and the largest change that counts as the same
Judge = Callable[[str, str, Path, float], Judgement]
OnStep = Callable[[Commit, int, int], None]  # candidate, commits left, judgements left
OnJudged = Callable[[Commit, Judgement], None]


@dataclass(frozen=True)
class Bisected:
    """The outcome of a bisection.

    first: the first slow commit; several if commits between them could not be judged.
    judged: all judgements by the commit's name. folder: where the comparisons are.
    """

    good: Commit
    bad: Commit
    first: tuple[Commit, ...]
    judged: Mapping[str, Judgement]
    folder: Path

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if len(self.first) == 1 else ExitCode.UNSURE

    @property
    def judgement(self) -> Judgement:
        """The judgement of the first slow commit, or of the bad one if several may be the first."""
        return self.judged[self.first[0].name if len(self.first) == 1 else self.bad.name]

    @property
    def conclusion(self) -> str:
        """The first slow commit with its author, date and ratio, in one or more lines."""
        if len(self.first) == 1:
            commit = self.first[0]
            return "\n".join((
                f"{commit.name} is the first slow commit: {self.judgement.change} against "
                f"{self.good.name[:DIGITS]}",
                f"    {commit.date}  {commit.author}",
                f"    {commit.subject}",
            ))  # fmt: skip
        lines = [f"    {each.name[:DIGITS]}  {each.date}  {each.subject}" for each in self.first]
        head = f"the first slow commit is one of these {len(self.first)}; those between could not be judged:"
        return "\n".join((head, *lines))

    def to_json(self) -> dict[str, Any]:
        return {
            "exit_code": int(self.exit_code),
            "conclusion": self.conclusion,
            "good": self.good.to_json(),
            "bad": self.bad.to_json(),
            "first": [each.to_json() for each in self.first],
            "judged": {name: each.to_json() for name, each in self.judged.items()},
            "folder": str(self.folder),
        }


def bisect(
    wanted: Versions,
    out: Path,
    *,
    halfway: bool = True,
    resume: bool = False,
    judge: Judge | None = None,
    on_step: OnStep | None = None,
    on_judged: OnJudged | None = None,
    progress: Progress | None = None,
) -> Bisected:
    """Search for the first commit after `wanted.base` that is slower than it, up to `wanted.new`.

    Both ends are compared first, by `wanted.threshold`. `wanted.plugins` that the bad commit has are taken
    from the tree of each candidate; one that lacks such a file is skipped.

    out: folder of the search: `bisect.json`, and a comparison per candidate.
    halfway: judge candidates by half of the change between the ends, if that is more than the threshold.
        Noise then matters less, and of several slow-downs the one is found that crosses the half.
    resume: continue that search; judgements are not repeated.
    judge: compares a candidate with the good commit; None for `ab`. progress: receives that of its measuring.

    Raises:
        UsageError: an end is no commit, both are the same, the good one is no ancestor of the bad one, the
            request is wrong, the bad one is not slower, or a folder cannot be used.
        Undecided: the bad one cannot be compared with the good one.
    """
    good, bad = (_commit(text) for text in (wanted.base, wanted.new))
    if good == bad:
        same = f"{wanted.base} and {wanted.new} are the same commit ({good[:DIGITS]})"
        raise UsageError(f"{same}: nothing lies between them")
    if not ancestor(good, bad):
        ends = f"{wanted.base} ({good[:DIGITS]}) is no ancestor of {wanted.new} ({bad[:DIGITS]})"
        raise UsageError(ends + shallow_words())
    wanted = replace(wanted, plugins=tuple(path_in_tree(file, bad) for file in wanted.plugins))
    described = json.loads(json.dumps({**wanted.to_json(), "base": good, "new": bad, "halfway": halfway}))
    judged = _start(out, described, resume=resume)
    _write(out, described, judged)
    with Candidates(good, bad) as candidates:
        search = _Search(
            wanted,
            good,
            out,
            candidates,
            judge or Measured(wanted, progress),
            judged,
            described,
            halfway,
            on_step,
            on_judged,
        )
        search.judge_end(bad)
        return search.run(bad)


@dataclass(frozen=True, slots=True)
class Measured:
    """Judges a candidate by `ab`."""

    wanted: Versions
    progress: Progress | None = None

    def __call__(self, good: str, candidate: str, folder: Path, threshold: float) -> Judgement:
        """Compare a candidate with the good commit.

        Raises:
            VersionFailed, VersionEnded: the good commit cannot be measured.
        """
        pair = replace(self.wanted, base=good, new=candidate, threshold=threshold)
        try:
            found = compare_versions(
                pair, folder, resume=(folder / PLAN_FILE).exists(), progress=self.progress
            )
        except (VersionFailed, VersionEnded) as error:
            if error.side == "base":
                raise
            return Judgement(SKIP, f"cannot be measured: {error}")
        return of_comparison(found)


def of_comparison(found: RunComparison) -> Judgement:
    """Read the verdict on a candidate from its comparison with the good commit."""
    code = GIT_CODES[found.exit_code]
    rated = [pair for pair in found.pairs if pair.ratio is not None]
    worst = max(rated, key=lambda pair: (pair.verdict == "slower", pair.ratio), default=None)
    text = found.conclusion if worst is None or code == SKIP else worst.verdict
    if worst is None:
        return Judgement(code, text)
    return Judgement(code, text, worst.ratio, worst.low, worst.high)


@dataclass
class _Search:
    """A search under way. described: the facts that a resumed search must share."""

    wanted: Versions
    good: str
    out: Path
    candidates: Candidates
    judge: Judge
    judged: dict[str, Judgement]
    described: Mapping[str, Any]
    halfway: bool
    on_step: OnStep | None
    on_judged: OnJudged | None

    def judge_end(self, bad: str) -> None:
        """Compare the ends, which also shows that the request is right.

        Raises:
            UsageError: the bad commit is not slower than the good one.
            Undecided: it cannot be judged.
        """
        found = self._judgement(bad, self.wanted.threshold)
        ends = f"{self.wanted.new} ({bad[:DIGITS]})", f"{self.wanted.base} ({self.good[:DIGITS]})"
        why = f"{found.text} {found.change}".rstrip()
        if found.code == SKIP:
            raise Undecided(f"{ends[0]} cannot be compared with {ends[1]}: {why}")
        if found.code == GOOD:
            limit = percent(self.wanted.threshold)
            raise UsageError(f"{ends[0]} is not slower than {ends[1]} by more than {limit}: {why}")

    def run(self, bad: str) -> Bisected:
        """Judge the commits that `git bisect` asks for, until it knows the first slow one."""
        threshold, change = self.wanted.threshold, self.judged[bad].ratio
        if self.halfway and change is not None:
            threshold = max(threshold, min(math.sqrt(change) - 1, MOST_HALFWAY))
        while (candidate := self.candidates.next()) is not None:
            self.candidates.mark(candidate, self._judgement(candidate, threshold).word)
        describe = self.candidates.describe
        first = tuple(map(describe, self.candidates.found()))
        return Bisected(describe(self.good), describe(bad), first, dict(self.judged), self.out)

    def _judgement(self, commit: str, threshold: float) -> Judgement:
        if commit not in self.judged:
            described = self.candidates.describe(commit)
            if self.on_step:
                self.on_step(described, *self.candidates.left())
            missing = [
                file
                for file in self.wanted.plugins
                if self.candidates.has(self.candidates.bad, file) and not self.candidates.has(commit, file)
            ]
            self.judged[commit] = (
                Judgement(SKIP, f"it has no {missing[0]}")
                if missing
                else self.judge(self.good, commit, self.out / commit[:DIGITS], threshold)
            )
            _write(self.out, self.described, self.judged)
            if self.on_judged:
                self.on_judged(described, self.judged[commit])
        return self.judged[commit]


def _commit(text: str) -> str:
    """Find the commit that a git ref names.

    Raises:
        UsageError: it names none.
    """
    kind, commit = kind_of(text)
    if commit is None:
        raise UsageError(f"bisect searches between commits: {text} is a {kind}")
    return commit


def _start(out: Path, described: Mapping[str, Any], *, resume: bool) -> dict[str, Judgement]:
    """Begin a search in a folder, or read the judgements of the one to resume."""
    file = out / STATE_FILE
    try:
        if resume and file.exists():
            state = json.loads(file.read_text())
            changed = [name for name, value in described.items() if state["wanted"].get(name) != value]
            if changed:
                raise UsageError(
                    f"the search in {out} was begun with another {', '.join(changed)}: pass the same, or "
                    "another --out"
                )
            return {name: Judgement(**each) for name, each in state["judged"].items()}
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} already exists and is not empty: pass --resume or another --out")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableRun(f"cannot read {file}: {error}") from error
    return {}


def _write(out: Path, described: Mapping[str, Any], judged: Mapping[str, Judgement]) -> None:
    state = {"wanted": described, "judged": {name: each.to_json() for name, each in judged.items()}}
    write_state(out / STATE_FILE, state)
