"""The outcome of comparing two runs: one verdict per case, a line that sums them up, and remarks."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.origin import hardware
from ssmperf.engine.cases.record import Status, one_line
from ssmperf.engine.runs.scope import Restriction
from ssmperf.engine.runs.store import Run
from ssmperf.errors import ExitCode, UnknownName

if TYPE_CHECKING:
    import pandas

# In the order of tables: verdicts that people act on come first.
VERDICTS = {
    "slower": "worse by more than the threshold, and by more than the noise allows",
    "wrong": "the new record is wrong, nan or crash",
    "lost": "it was ok and no longer is, or its numbers contradict themselves",
    "missing": "it was measured, or planned, and is not in the new run",
    "ambiguous": "the noise does not allow a verdict; or not comparable",
    "faster": "better by more than the threshold, and by more than the noise allows",
    "mended": "it was not ok and now is",
    "same": "within the threshold, and twice the threshold would have been found",
    "new": "not in the base run",
    "failing": "it was not ok and still is not, but gives no wrong answer",
}
EVERYTHING = Restriction()
BROKEN = ("wrong", "lost", "missing")
UNSURE = ("fail", "pass")
SHORT_ID = 8  # least digits of a case's id in tables
LONGEST_NAME, LONGEST_REASON = 80, 200  # letters of foreign text in the line that sums up a comparison
EXIT_MEANS = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSION: "a regression",
    ExitCode.BAD_CASE: "wrong, lost or missing cases",
    ExitCode.UNSURE: "cannot tell",
}


def check_unsure(answer: str) -> None:
    """Raise UnknownName for an invalid value of `--unsure`."""
    if answer not in UNSURE:
        raise UnknownName("answer to --unsure", answer, UNSURE)


@dataclass(frozen=True, slots=True)
class Pair:
    """One case in both runs.

    ratio: new / base of `field`. low, high: the ends of its interval.
    p: probability of such a ratio without any change, corrected for the number of cases.
    least_change: the least increase, such as 0.08, for which the case would have counted as slower.
    rounds: number of rounds on each side, or of fresh pairs of rounds.
    """

    case: Case
    verdict: str
    reason: str | None = None
    field: str | None = None
    base: float | None = None
    new: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    least_change: float | None = None
    rounds: int | None = None

    def to_json(self) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(self) if field.name != "case")
        values = {name: getattr(self, name) for name in names}
        return {"case_id": self.case.id, **self.case.to_json(), **values}


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of ratios, new over base, and the number of cases."""

    ratio: float
    cases: int

    def to_json(self) -> dict[str, Any]:
        return {"ratio": self.ratio, "cases": self.cases}


@dataclass(frozen=True, slots=True)
class SuiteMean:
    """The geometric means of a suite, over all cases and by backend. field: the number compared."""

    field: str
    overall: Mean
    backends: dict[str, Mean]

    def to_json(self) -> dict[str, Any]:
        backends = {name: mean.to_json() for name, mean in self.backends.items()}
        return {"field": self.field, **self.overall.to_json(), "backends": backends}


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The version that a run measured, its device and date.

    version: such as "git ref main (1a2b3c4d5e)", or the run's tag, the commit of ssmperf and the plug-ins.
    device: names of the hardware. measured: the time at which the run was begun, in ISO 8601. All three are
    empty if the run does not say: it is data from outside, and its reader escapes them.
    """

    version: str
    device: str
    measured: str

    def to_json(self) -> dict[str, str]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class RunComparison:
    """All pairs of two runs, those that people act on first.

    differences: between environments, which make times incomparable.
    notes: further remarks on the two runs.
    alarms: what a reader must know before the verdicts: files that contradict themselves, and cases that the
        new run was not asked for.
    method: how times were compared; empty if none were.
    unsure: "pass" if ambiguity alone does not fail, else "fail". restriction: the part that is compared.
    unmeasured: planned cases of the new run that have no record in either run; they count as missing.
    attempts: how often this pair was checked, this time included; None if that was not counted.
    versions: those that the base and the new run measured, in words; None if only the runs themselves tell.
    page: where the page about this comparison is, a path or an address; None if none was written.
    since, until: the base and the new version in a few words, such as a commit with subject and author; empty
        if only the runs themselves tell. commands: those that lead on from here, ready to be typed.
    repeat: the command that measures both versions again; empty if they were not measured in one go.
    """

    base: Run
    new: Run
    threshold: float
    pairs: tuple[Pair, ...]
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    method: str = ""
    unsure: str = "fail"
    restriction: Restriction = EVERYTHING
    unmeasured: int = 0
    attempts: int | None = None
    versions: tuple[str, str] | None = None
    page: str | None = None
    since: str = ""
    until: str = ""
    commands: tuple[str, ...] = ()
    repeat: str = ""

    @property
    def origins(self) -> dict[str, RunOrigin]:
        """The version that was measured on each side, its device and date."""
        base, new = self.versions or (None, None)
        return {"base": origin_of(self.base, base), "new": origin_of(self.new, new)}

    @property
    def counts(self) -> dict[str, int]:
        """The number of cases by verdict, those that people act on first."""
        counts = Counter(pair.verdict for pair in self.pairs)
        counts["missing"] += self.unmeasured
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def exit_code(self) -> ExitCode:
        """3 for a wrong, lost or missing case, then 1 for a slower one, then 4 if one cannot tell."""
        found = set(self.counts)
        if found & set(BROKEN):
            return ExitCode.BAD_CASE
        if "slower" in found:
            return ExitCode.REGRESSION
        if "ambiguous" in found:
            return ExitCode.OK if self.unsure == "pass" else ExitCode.UNSURE
        return ExitCode.OK if found & {"same", "faster", "mended"} else ExitCode.UNSURE

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code is ExitCode.OK

    @property
    def slower(self) -> list[Pair]:
        """The pairs that became slower, or larger, the worst first."""
        return [pair for pair in self.pairs if pair.verdict == "slower"]

    @property
    def conclusion(self) -> str:
        """The worst case, the meaning of the exit code, and the counts of the verdicts, in one line."""
        return self.concluded()

    def concluded(self, escape: Callable[[str], str] = str) -> str:
        """Give the conclusion for a format. escape: makes text from outside harmless there."""
        return "; ".join(filter(None, (self._worst(escape), self._tally)))

    def told(self, pair: Pair, escape: Callable[[str], str] = str) -> str:
        """Tell one case in a line: kernel, pass, model, shape, change or fault, and since which version."""
        case = pair.case
        names = (_cut(each, LONGEST_NAME) for each in (case.backend, case.subject, case.shape))
        backend, subject, shape = map(escape, names)
        text = f"{pair.verdict}: {backend} {escape(case.pass_)} of {subject} ({shape} {escape(case.dtype)})"
        if pair.ratio is not None:
            unit = "" if (pair.field or "").endswith("_s") else f" {escape(pair.field or '')}"
            text += f": {_ratio(pair.ratio)}×{unit}"
            if pair.low is not None and pair.high is not None and pair.low < pair.high:
                text += f" [{_ratio(pair.low)}, {_ratio(pair.high)}]"
        text += f" {self._before(pair)} {escape(self._base)}"
        reason = _cut((pair.reason or "").removeprefix(f"{pair.verdict}: "), LONGEST_REASON)
        return text if pair.verdict == "slower" or not reason else f"{text}: {escape(reason)}"

    def _worst(self, escape: Callable[[str], str]) -> str:
        """Tell the case that decides the exit code; empty if none has to be looked at."""
        grave = BROKEN if set(BROKEN) & set(self.counts) else () if self.ok else ("slower", "ambiguous")
        for verdict in grave:
            if found := [pair for pair in self.pairs if pair.verdict == verdict]:
                return self.told(max(found, key=lambda pair: pair.ratio or 0.0), escape)
        return f"missing: {self.unmeasured_text}" if self.unmeasured else ""

    @property
    def unmeasured_text(self) -> str:
        """The number of planned cases that no run has a record of, in words."""
        noun = "case" if self.unmeasured == 1 else "cases"
        return f"{self.unmeasured} planned {noun} that the base run does not have either"

    @cached_property
    def _statuses(self) -> dict[str, Status]:
        return {record.case.id: record.status for record in self.base.records}

    def _before(self, pair: Pair) -> str:
        """Relate a verdict to the base version, which may have been broken already."""
        status = self._statuses.get(pair.case.id)
        return "since" if status is Status.OK else "not in" if status is None else "as in"

    @property
    def _base(self) -> str:
        return self.since or _cut(self.origins["base"].version or self.base.path, LONGEST_NAME)

    @property
    def _tally(self) -> str:
        counted = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        meaning = EXIT_MEANS[self.exit_code]
        if self.ok and "ambiguous" in self.counts:
            meaning = "no regression found, but not all cases can be told"
        cases = sum(self.counts.values())
        return (
            f"{meaning}: {cases} {'case' if cases == 1 else 'cases'}, {counted or 'none in common'}; "
            f"threshold {percent(self.threshold, 3)} (exit {self.exit_code:d})"
        )

    def short_id(self, pair: Pair) -> str:
        """Abbreviate the id of a case to a beginning that no other case of the comparison has."""
        return pair.case.id[: self._id_length]

    @cached_property
    def _id_length(self) -> int:
        ids = {pair.case.id for pair in self.pairs}
        lengths = (n for n in range(SHORT_ID, 16) if len({id_[:n] for id_ in ids}) == len(ids))
        return next(lengths, 16)

    @property
    def resolution(self) -> str:
        """The least slow-down of a time that would have been found, in one line; empty without times."""
        found = sorted(
            pair.least_change
            for pair in self.pairs
            if pair.least_change is not None and pair.rounds is not None
        )
        if not found:
            return ""
        middle, most = (percent(value) for value in (found[(len(found) - 1) // 2], found[-1]))
        halves = (
            f"from {middle} in half of the cases, from {most} in all" if middle != most else f"from {most}"
        )
        return f"a slow-down would have been found {halves}"

    @property
    def means(self) -> dict[str, SuiteMean]:
        """The geometric means of the ratios by suite; incomparable cases are left out."""
        suites: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            if pair.low is not None:
                suites.setdefault(pair.case.suite, []).append(pair)
        return {suite: _means(pairs) for suite, pairs in sorted(suites.items())}

    def _repr_html_(self) -> str:
        """Give the comparison as HTML, for a notebook."""
        return str(registry.report("cell", "comparison")(self, None))

    def frame(self) -> pandas.DataFrame:
        """Make a DataFrame with one row per case, and one column per dimension of the shape."""
        import pandas

        rows = [{**pair.to_json(), **pair.case.shape, "shape": str(pair.case.shape)} for pair in self.pairs]
        return pandas.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "base": str(self.base.path),
            "new": str(self.new.path),
            "origins": {name: origin.to_json() for name, origin in self.origins.items()},
            "page": self.page,
            "threshold": self.threshold,
            "exit_code": int(self.exit_code),
            "conclusion": self.conclusion,
            "verdicts": self.counts,
            "means": {suite: mean.to_json() for suite, mean in self.means.items()},
            "method": self.method,
            "resolution": self.resolution,
            "unsure": self.unsure,
            "restriction": self.restriction.to_json(),
            "unmeasured": self.unmeasured,
            "attempts": self.attempts,
            "differences": list(self.differences),
            "notes": list(self.notes),
            "alarms": list(self.alarms),
            "commands": list(self.commands),
            "cases": [pair.to_json() for pair in self.pairs],
        }


def origin_of(run: Run, version: str | None = None) -> RunOrigin:
    """Describe a run. version: the measured one, if it is known better than from the run."""
    environments = [each for each in run.environments.values() if isinstance(each, Mapping)]
    created = run.meta.get("created")
    return RunOrigin(
        version or "; ".join(dict.fromkeys(_versions(run, environments))),
        ", ".join(hardware(run)),
        created if isinstance(created, str) else "",
    )


def _versions(run: Run, environments: list[Mapping[str, Any]]) -> Iterator[str]:
    """List the marks of a run's version: its tag, the version of ssmperf, its plug-ins."""
    if isinstance(tag := run.meta.get("tag"), str) and tag:
        yield tag
    for environment in environments:
        installed, git = (environment.get(name) for name in ("versions", "git"))
        number = installed.get("ssmperf") if isinstance(installed, Mapping) else None
        commit = git.get("commit") if isinstance(git, Mapping) else None
        if isinstance(commit, str):
            changes = " with changes" if isinstance(git, Mapping) and git.get("dirty") else ""
            yield " ".join(filter(None, ["ssmperf", number, f"({commit[:10]}{changes})"]))
        elif number:
            yield f"ssmperf {number}"
    plugins = run.meta.get("plugins")
    for file in plugins if isinstance(plugins, list) else ():
        yield f"plug-in {Path(str(file)).name}"


def _cut(text: object, longest: int) -> str:
    """Put foreign text on one printable line of so many letters."""
    line = one_line(str(text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def percent(value: float, digits: int = 2) -> str:
    """Write a share as a percentage with so many digits, without an exponent: 0.0834 as 8.3 %."""
    return f"{100 * value:.0f} %" if 100 * value >= 10 ** (digits - 0.5) else f"{100 * value:.{digits}g} %"


def _means(pairs: Iterable[Pair]) -> SuiteMean:
    backends: dict[str, list[float]] = {}
    field = ""
    for pair in pairs:
        assert pair.ratio is not None and pair.field is not None
        backends.setdefault(pair.case.backend, []).append(pair.ratio)
        field = pair.field
    every = [ratio for ratios in backends.values() for ratio in ratios]
    return SuiteMean(field, _mean(every), {name: _mean(backends[name]) for name in sorted(backends)})


def _mean(ratios: list[float]) -> Mean:
    return Mean(math.exp(math.fsum(map(math.log, ratios)) / len(ratios)), len(ratios))
