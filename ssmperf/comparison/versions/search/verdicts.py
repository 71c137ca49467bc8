"""What a bisection finds out about commits: which case it follows, and each commit's judgement by that case.

A case that was right and became wrong is followed by its answer: one judgement per commit. Otherwise the case
with the largest slow-down between the ends is followed by its time, in pairs of rounds with another commit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ssmperf.comparison.comparison import WRONG_STATUSES
from ssmperf.comparison.outcome import Pair, RunComparison
from ssmperf.comparison.versions.procedure import Versions, compare_versions
from ssmperf.comparison.versions.search.looks import NotMeasured, Ratio, Settled, measure_case
from ssmperf.comparison.versions.side_process import SideProcess, pass_on
from ssmperf.comparison.versions.sides import install
from ssmperf.comparison.versions.state import PLAN_FILE
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.run import Progress, Silent
from ssmperf.engine.measure import paired
from ssmperf.engine.runs import store
from ssmperf.errors import UsageError, VersionEnded, VersionFailed

GOOD, BAD, SKIP = 0, 1, 125  # as `git bisect run` reads them
WORDS = {GOOD: "good", BAD: "bad", SKIP: "skip"}
FEWEST_EXACT = 2  # pairs of numbers without noise


@dataclass(frozen=True, slots=True)
class CommitVerdict:
    """The verdict on a commit.

    code: GOOD, BAD or SKIP. text: the verdict and its reason in words.
    ratio, low, high: its time over that of another commit, with the interval; None if unknown.
    pairs: how many pairs of rounds it rests on.
    """

    code: int
    text: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int | None = None

    @classmethod
    def of(cls, code: int, text: str, found: Ratio) -> CommitVerdict:
        known = found.low > 0 and math.isfinite(found.high)
        low, high = (found.low, found.high) if known else (None, None)
        return cls(code, text, found.ratio, low, high, found.pairs)

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


@dataclass(frozen=True, slots=True)
class Followed:
    """The case that a search follows, and what the comparison of the ends says of it.

    text: the case in words. timed: whether by its time, else by its answer.
    exact: whether its number has no noise, such as bytes. others: how many other cases are slower or wrong.
    found: the judgement of the bad commit.
    """

    case_id: str
    suite: str
    text: str
    timed: bool
    exact: bool
    others: int
    found: CommitVerdict

    @property
    def midpoint(self) -> float:
        """The ratio that parts good commits from bad ones: in the middle of the ends', as logs."""
        return math.sqrt(self.found.ratio or 1.0)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Followed:
        return cls(**{**data, "found": CommitVerdict(**data["found"])})


class Meter(Protocol):
    """Measures commits. `MeasuringJudge` does; tests make up times."""

    def follow(self, folder: Path) -> Followed:
        """Compare the ends, and choose the case to follow. Its judgement says whether there is a search."""
        ...

    def compare(self, followed: Followed, base: str, new: str, folder: Path, settled: Settled) -> Ratio | str:
        """Measure the case in pairs until a question is settled; a text says why it cannot be measured."""
        ...

    def judge(self, followed: Followed, commit: str, folder: Path) -> CommitVerdict:
        """Judge a commit by the answer of the case."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuringJudge:
    """Measures commits by `ab`, and by single judgements.

    wanted: the ends. secret: the nonce of all judgements, so that each commit sees the same values.
    """

    wanted: Versions
    secret: str
    progress: Progress | None = None

    @property
    def pairs(self) -> int:
        return self.wanted.fresh or paired.FRESH_PAIRS

    def follow(self, folder: Path) -> Followed:
        """Compare the ends by `ab` over all cases, and go on with the case to follow.

        Raises:
            UsageError: the request is wrong, or the answer of the good commit is.
            VersionFailed, VersionEnded: an end cannot be measured.
        """
        arguments = {**self.wanted.arguments, "nonce": self.secret}
        ends = replace(self.wanted, arguments=arguments)
        found = compare_versions(ends, folder, resume=(folder / PLAN_FILE).exists(), progress=self.progress)
        broken = [pair for pair in found.pairs if pair.verdict == "wrong"]
        if broken:
            return self._followed_by_answer(found, broken)
        slower = [pair for pair in found.pairs if pair.verdict == "slower"]
        timed = slower or [
            pair for pair in found.pairs if pair.verdict == "ambiguous" and (pair.ratio or 0) > 1
        ]
        if not timed:
            return _nothing(found)
        pair = max(timed, key=lambda pair: pair.ratio or 0.0)
        others = max(0, len(slower) - 1)
        end = CommitVerdict(BAD if slower else SKIP, pair.verdict, pair.ratio, pair.low, pair.high)
        followed = _of_pair(pair, timed=True, others=others, found=end)
        if followed.exact:
            return followed
        limit = 1 + self.wanted.threshold
        ratio = self._measured(ends, folder, followed, lambda at: shows_end(at, limit), self.wanted.first)
        return replace(followed, found=judged_end(ratio, limit))

    def compare(self, followed: Followed, base: str, new: str, folder: Path, settled: Settled) -> Ratio | str:
        pairs = FEWEST_EXACT if followed.exact else self.pairs
        arguments = {**self.wanted.arguments, "suite": followed.suite}
        wanted = replace(
            self.wanted, base=base, new=new, arguments=arguments, cases=(followed.case_id,), first=pairs
        )
        try:
            return self._measured(wanted, folder, followed, settled, 0)
        except (VersionFailed, VersionEnded) as error:
            if error.side == "base" and base == self.wanted.base:
                raise
            return f"cannot be measured: {error}"

    def judge(self, followed: Followed, commit: str, folder: Path) -> CommitVerdict:
        added = {"suite": followed.suite, "nonce": self.secret, "judged_at": self.wanted.judged_at}
        arguments = {**self.wanted.arguments, **added}
        try:
            record = judge_case(
                commit, self.wanted.plugins, arguments, followed.case_id, folder, self.progress
            )
        except (VersionFailed, VersionEnded) as error:
            return CommitVerdict(SKIP, f"cannot be judged: {error}")
        return of_record(record)

    def _measured(
        self, wanted: Versions, folder: Path, followed: Followed, settled: Settled, begin: int
    ) -> Ratio | str:
        pairs = FEWEST_EXACT if followed.exact else self.pairs
        id_, exact, progress = followed.case_id, followed.exact, self.progress
        try:
            return measure_case(
                wanted, folder, id_, pairs, settled, exact=exact, begin=begin, progress=progress
            )
        except NotMeasured as error:
            return f"cannot be measured: {error}"

    def _followed_by_answer(self, found: RunComparison, broken: list[Pair]) -> Followed:
        """Follow the first case that was right.

        Raises:
            UsageError: there is none.
        """
        right = {record.case.id for record in found.base.records if record.status is Status.OK}
        pair = next((pair for pair in broken if pair.case.id in right), None)
        if pair is None:
            before = next((r for r in found.base.records if r.case.id == broken[0].case.id), None)
            state = f"{before.status}: {before.reason}" if before else "not measured"
            raise UsageError(
                f"{broken[0].case} is not right at the good commit already ({state}): pass an earlier --good"
            )
        others = len(broken) - 1 + len(found.slower)
        return _of_pair(pair, timed=False, others=others, found=CommitVerdict(BAD, pair.reason or "wrong"))


def _of_pair(pair: Pair, *, timed: bool, others: int, found: CommitVerdict) -> Followed:
    exact = timed and pair.rounds is None
    return Followed(pair.case.id, pair.case.suite, str(pair.case), timed, exact, others, found)


def _nothing(found: RunComparison) -> Followed:
    """Say why there is nothing to follow, by the case that comes nearest to it."""
    rated = [pair for pair in found.pairs if pair.ratio is not None]
    worst = max(rated, key=lambda pair: pair.ratio or 0.0, default=None) or next(iter(found.pairs), None)
    code = GOOD if found.ok else SKIP
    if worst is None:
        return Followed("", "", "", False, False, 0, CommitVerdict(code, found.conclusion))
    text = ": ".join(filter(None, (worst.verdict, worst.reason)))
    judgement = CommitVerdict(code, text, worst.ratio, worst.low, worst.high, worst.rounds)
    return _of_pair(worst, timed=worst.ratio is not None, others=0, found=judgement)


def shows_end(found: Ratio, limit: float) -> bool:
    """Whether pairs of the ends tell where the midpoint is, or that there is no slow-down."""
    return found.low > max(1.0, math.sqrt(found.ratio)) or found.high <= limit


def judged_end(found: Ratio | str, limit: float) -> CommitVerdict:
    """Judge the bad end. limit: the least ratio that is a slow-down."""
    if isinstance(found, str):
        return CommitVerdict(SKIP, found)
    if found.low > 1 and found.ratio > limit:
        return CommitVerdict.of(BAD, "slower", found)
    return CommitVerdict.of(*((GOOD, "same") if found.high <= limit else (SKIP, "ambiguous")), found)


def of_record(record: Record) -> CommitVerdict:
    """Judge a commit by the record of its case: right is good, a wrong answer or a crash is bad."""
    if record.status is Status.OK:
        return CommitVerdict(GOOD, "ok")
    code = BAD if record.status in WRONG_STATUSES else SKIP
    return CommitVerdict(code, f"{record.status}: {record.reason}")


def judge_case(
    commit: str,
    plugins: tuple[str, ...],
    arguments: Mapping[str, Any],
    id_: str,
    folder: Path,
    progress: Progress | None,
) -> Record:
    """Run one case of a commit once.

    Raises:
        VersionFailed: it cannot be installed, or lacks the case. VersionEnded: its process ended.
    """
    side = install(commit, "new", plugins)
    folder.mkdir(parents=True, exist_ok=True)
    shown, run = progress or Silent(), folder / "new"
    hear = partial(pass_on, shown)
    shown.begin(1, 0)
    process = SideProcess("new", side, run, {**arguments, "rounds": 1}, hear, None)
    try:
        case = process.cases.get(id_)
        if case is None:
            why = f": {process.refusal}" if process.refusal else ""
            raise VersionFailed(f"{side.label} cannot run the case {id_}{why}", "new")
        process.prepare(0, [id_])
        process.wait_until_prepared()
        process.run_round(0, [id_])
    except BaseException:
        process.kill()
        raise
    finally:
        process.close()
        shown.end()
    return next(record for record in store.load(run).records if record.case.id == id_)
