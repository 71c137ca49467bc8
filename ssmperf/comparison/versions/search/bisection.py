"""Find the commit that made a case slower, or wrong: `git bisect` with judgements that may say "skip".

The ends are compared first, which fixes the case to follow. A commit is good if the whole interval of its
ratio against the good end lies below the midpoint of the ends' ratios, and bad if the whole interval lies
above; else more pairs are measured (`looks`), and then it is skipped. A case that became wrong is judged once
per commit.

A search that trusts its judgements names an innocent commit if one of them is wrong. So what is left at its
end is compared directly: its newest commit with the parents of the range, in fresh pairs. A commit is named
only if it is slower than its parent by that comparison. If none is shown to be, a judgement at the border of
the range is doubtful, and the range grows to where it would be without the judgements at both borders.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssmperf.comparison.outcome import percent
from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.search.bisected import DIGITS, Bisected, Direct, Further
from ssmperf.comparison.versions.search.candidates import Candidates, Commit, ancestor, path_in_tree
from ssmperf.comparison.versions.search.looks import Ratio
from ssmperf.comparison.versions.search.verdicts import (
    BAD,
    GOOD,
    SKIP,
    CommitVerdict,
    Followed,
    MeasuringJudge,
    Meter,
)
from ssmperf.comparison.versions.sides import kind_of, shallow_words
from ssmperf.comparison.versions.state import write_state
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.plan import nonce
from ssmperf.errors import ExitCode, SsmperfError, UnreadableRun, UsageError

STATE_FILE = "bisect.json"
RULE = "midpoint"  # by which commits are judged; searches of earlier versions had another


class Undecided(SsmperfError):
    """The bad commit cannot be told from the good one."""

    exit_code = ExitCode.UNSURE


OnStep = Callable[[Commit, int, int], None]  # candidate, commits left, judgements left
OnJudged = Callable[[Commit, CommitVerdict], None]


def bisect(
    wanted: Versions,
    out: Path,
    *,
    resume: bool = False,
    meter: Meter | None = None,
    on_step: OnStep | None = None,
    on_judged: OnJudged | None = None,
    progress: Progress | None = None,
) -> Bisected:
    """Search for the first commit after `wanted.base` that is slower than it or wrong, up to `wanted.new`.

    `wanted.threshold` is the least slow-down between the ends that is searched for. `wanted.plugins` that the
    bad commit has are taken from the tree of each candidate; one that lacks such a file is skipped.

    out: folder of the search: `bisect.json`, and a comparison per candidate.
    resume: continue that search; judgements are not repeated.
    meter: measures commits; None for `MeasuringJudge`. progress: receives that of its measuring.

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
    texts = wanted.base, wanted.new
    wanted = replace(
        wanted, base=good, new=bad, plugins=tuple(path_in_tree(file, bad) for file in wanted.plugins)
    )
    state = _SearchState(out, wanted, resume=resume)
    meter = meter or MeasuringJudge(wanted, state.secret, progress)
    with Candidates(good, bad) as candidates:
        search = _Search(wanted, texts, state, candidates, meter, on_step, on_judged)
        return search.run()


class _SearchState:
    """All that a search has found out, in a file after each step.

    secret: the nonce of its judgements. judged: by the commit's name. direct: comparisons of two commits.
    """

    def __init__(self, out: Path, wanted: Versions, *, resume: bool) -> None:
        self.out = out
        self.described = json.loads(json.dumps({**wanted.to_json(), "rule": RULE}))
        kept = self._read() if resume else None
        if kept is None:
            try:
                if out.exists() and any(out.iterdir()):
                    raise UsageError(f"{out} already exists and is not empty: pass --resume or another --out")
            except OSError as error:
                raise UsageError(f"cannot write the folder {out}: {error.strerror or error}") from error
            given = wanted.arguments.get("nonce")
            kept = {"nonce": given or nonce.as_text(nonce.fresh())}
        file = out / STATE_FILE
        try:
            self.secret = str(kept["nonce"])
            self.followed = Followed.from_json(kept["followed"]) if kept.get("followed") else None
            self.judged = {name: CommitVerdict(**each) for name, each in kept.get("judged", {}).items()}
            self.direct = {name: CommitVerdict(**each) for name, each in kept.get("direct", {}).items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UnreadableRun(f"{file} is damaged ({error!r}): pass another --out") from error
        self.write()

    def write(self) -> None:
        state = {
            "wanted": self.described,
            "nonce": self.secret,
            "followed": self.followed and self.followed.to_json(),
            "judged": {name: each.to_json() for name, each in self.judged.items()},
            "direct": {name: each.to_json() for name, each in self.direct.items()},
        }
        write_state(self.out / STATE_FILE, state)

    def _read(self) -> dict[str, Any] | None:
        """Read the search to resume; None if there is none.

        Raises:
            UnreadableRun: the file is damaged. UsageError: it is of another search, or an earlier version.
        """
        file = self.out / STATE_FILE
        if not file.exists():
            return None
        try:
            state = json.loads(file.read_text())
            wanted = dict(state["wanted"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnreadableRun(f"cannot read {file}: {error!r}") from error
        if wanted.get("rule") != RULE:
            raise UsageError(
                f"{file} is of another version of ssmperf, which judged otherwise: pass another --out"
            )
        changed = [name for name, value in self.described.items() if wanted.get(name) != value]
        if changed:
            raise UsageError(
                f"the search in {self.out} was begun with another {', '.join(changed)}: pass the same, or "
                "another --out"
            )
        return dict(state)


class _Search:
    """A search under way. texts: the ends as the user named them."""

    def __init__(
        self,
        wanted: Versions,
        texts: tuple[str, str],
        state: _SearchState,
        candidates: Candidates,
        meter: Meter,
        on_step: OnStep | None,
        on_judged: OnJudged | None,
    ) -> None:
        self.wanted, self.texts, self.state, self.candidates, self.meter = (
            wanted, texts, state, candidates, meter
        )  # fmt: skip
        self.good, self.bad, self.threshold = wanted.base, wanted.new, wanted.threshold
        self.on_step, self.on_judged = on_step, on_judged

    def run(self) -> Bisected:
        """Judge the commits that `git bisect` asks for, and show what is left of them."""
        self.followed = self._follow()
        while (candidate := self.candidates.next()) is not None:
            self.candidates.mark(candidate, self._judgement(candidate).word)
        found = self.candidates.found()
        left, direct = self._shown(found)
        named = left[0] if len(left) == 1 and all(each.found.code == BAD for each in direct) else None
        describe = self.candidates.describe
        return Bisected(
            describe(self.good),
            describe(self.bad),
            self.texts,
            tuple(map(describe, left)),
            None if named is None else describe(named),
            self.followed,
            dict(self.state.judged),
            tuple(direct),
            tuple(self._further(named, direct[0].base.name)) if named and self.followed.timed else (),
            len(left) > len(found),
            self.state.out,
        )

    def _follow(self) -> Followed:
        """Compare the ends, which also shows that the request is right.

        Raises:
            UsageError: the bad commit is not slower than the good one.
            Undecided: it cannot be judged.
        """
        state = self.state
        if state.followed is None:
            end = self.candidates.describe(self.bad)
            self._announce(end)
            followed = self.meter.follow(state.out / self.bad[:DIGITS])
            state.followed, state.judged[self.bad] = followed, followed.found
            if not followed.timed:
                state.judged[self.good] = CommitVerdict(GOOD, "ok")
            state.write()
            self._tell(end, followed.found)
        followed, found = state.followed, state.followed.found
        new, base = (
            f"{text} ({name[:DIGITS]})"
            for text, name in zip(reversed(self.texts), (self.bad, self.good), strict=True)
        )
        why = f"{found.text} {found.change}".rstrip()
        if found.code == SKIP:
            raise Undecided(f"{new} cannot be compared with {base}: {why}")
        if found.code == GOOD:
            limit = f" by more than {percent(self.threshold)}" if followed.timed else ", nor wrong"
            raise UsageError(f"{new} is not slower than {base}{limit}: {why}")
        return followed

    def _judgement(self, commit: str) -> CommitVerdict:
        """Judge a commit, unless that was done."""
        judged = self.state.judged
        if commit not in judged:
            described = self.candidates.describe(commit)
            self._announce(described)
            missing = [
                file
                for file in self.wanted.plugins
                if self.candidates.has(self.bad, file) and not self.candidates.has(commit, file)
            ]
            judged[commit] = (
                CommitVerdict(SKIP, f"it has no {missing[0]}") if missing else self._judge(commit)
            )
            self.state.write()
            self._tell(described, judged[commit])
        return judged[commit]

    def _judge(self, commit: str) -> CommitVerdict:
        folder = self.state.out / commit[:DIGITS]
        if not self.followed.timed:
            return self.meter.judge(self.followed, commit, folder)
        middle = self.followed.midpoint
        found = self.meter.compare(
            self.followed, self.good, commit, folder, lambda at: at.high < middle or at.low > middle
        )
        if isinstance(found, str):
            return CommitVerdict(SKIP, found)
        text = f"the midpoint {middle:.3f}×"
        if found.high < middle:
            return CommitVerdict.of(GOOD, f"below {text}", found)
        if found.low > middle:
            return CommitVerdict.of(BAD, f"above {text}", found)
        return CommitVerdict.of(SKIP, f"{found.pairs} pairs do not tell it from {text}", found)

    def _shown(self, left: list[str]) -> tuple[list[str], list[Direct]]:
        """Compare the newest commit of a range with the range's parents, and widen it until it is slower.

        The whole range between the ends is shown by their comparison.
        """
        while True:
            bases = self.candidates.parents(left)
            direct = [self._direct(base, left[-1]) for base in bases]
            if direct and all(each.found.code == BAD for each in direct):
                return left, direct
            wider = self._without_borders(left, bases)
            if wider == left:
                return left, direct
            left = wider

    def _without_borders(self, left: list[str], bases: list[str]) -> list[str]:
        """List what would be left without the judgements of a range's newest commit and of its parents."""
        judged = self.state.judged
        inside = {*left, *bases}
        good = [name for name, each in judged.items() if each.code == GOOD and name not in inside]
        bad = [name for name, each in judged.items() if each.code == BAD and name != left[-1]]
        ranges = [self.candidates.between([self.good, *good], name) for name in (self.bad, *bad)]
        return min((each for each in ranges if set(each) >= set(left)), key=len, default=left)

    def _direct(self, base: str, new: str) -> Direct:
        """Compare a commit with an earlier one in fresh pairs; BAD if it is shown to be slower."""
        describe = self.candidates.describe
        if (base, new) == (self.good, self.bad):
            return Direct(describe(base), describe(new), self.followed.found)
        if not self.followed.timed:  # one judgement of either is all there is
            before, found = self._judgement(base), self._judgement(new)
            if before.code != GOOD:
                found = CommitVerdict(SKIP, f"its parent {base[:DIGITS]} is {before.word}: {before.text}")
            return Direct(describe(base), describe(new), found)
        return Direct(describe(base), describe(new), self._compared(base, new, lambda at: at.low > 1))

    def _compared(self, base: str, new: str, settled: Callable[[Ratio], bool]) -> CommitVerdict:
        """Compare two commits in pairs that no other judgement rests on, unless that was done."""
        key = f"{base[:DIGITS]}..{new[:DIGITS]}"
        direct = self.state.direct
        if key not in direct:
            described = self.candidates.describe(new)
            self._announce(described, left=1)
            found = self.meter.compare(self.followed, base, new, self.state.out / key, settled)
            against = f"than {base[:DIGITS]}"
            if isinstance(found, str):
                direct[key] = CommitVerdict(SKIP, found)
            elif found.low > 1:
                direct[key] = CommitVerdict.of(BAD, f"slower {against}", found)
            else:
                direct[key] = CommitVerdict.of(SKIP, f"not shown to be slower {against}", found)
            self.state.write()
            self._tell(described, direct[key])
        return direct[key]

    def _further(self, named: str, parent: str) -> list[Further]:
        """Look for a further slow-down before and after the named commit, as far as the ratios suggest one.

        What is known comes from the judgements. Where they suggest more than the threshold, and do not show
        it, more is measured.
        """
        judged, limit = self.state.judged, 1 + self.threshold
        culprit, end = judged[named], judged[self.bad]
        places = []
        if parent != self.good and parent in judged:
            places.append((self.good, parent, judged[parent]))
        if named != self.bad:
            places.append((named, self.bad, _quotient(end, culprit)))
        found = []
        for base, new, known in places:
            if known.ratio is not None and known.ratio > limit:
                known = self._compared(base, new, lambda at: at.low > 1 or at.high < limit)
            shown = known.ratio is not None and known.ratio > limit and (known.low or 0) > 1
            describe, commits = self.candidates.describe, self.candidates.between([base], new)
            found.append(Further(describe(base), describe(new), len(commits), known, shown))
        return found

    def _announce(self, commit: Commit, left: int | None = None) -> None:
        if self.on_step:
            self.on_step(commit, *(self.candidates.left() if left is None else (left, 1)))

    def _tell(self, commit: Commit, found: CommitVerdict) -> None:
        if self.on_judged:
            self.on_judged(commit, found)


def _quotient(end: CommitVerdict, culprit: CommitVerdict) -> CommitVerdict:
    """Divide two ratios against the same commit. Each end of the interval takes the worse ends of both."""
    if None in (end.ratio, end.low, end.high, culprit.ratio, culprit.low, culprit.high):
        return CommitVerdict(SKIP, "unknown")
    assert end.ratio and end.low and end.high and culprit.ratio and culprit.low and culprit.high
    numbers = end.ratio / culprit.ratio, end.low / culprit.high, end.high / culprit.low
    return CommitVerdict(SKIP, "from both ratios against the good commit", *numbers)


def _commit(text: str) -> str:
    """Find the commit that a git ref names.

    Raises:
        UsageError: it names none.
    """
    kind, commit = kind_of(text)
    if commit is None:
        raise UsageError(f"bisect searches between commits: {text} is a {kind}")
    return commit
