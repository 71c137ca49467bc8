"""The forecast of `ab --dry-run` and `bisect --dry-run`: cases, and about how long they take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.comparison.versions.procedure import Versions, list_cases
from ssmperf.comparison.versions.search.candidates import ancestor, git, path_in_tree
from ssmperf.comparison.versions.sides import kind_of, shallow_words
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.measure.paired import fresh_pairs
from ssmperf.engine.plan.estimate import expected_s
from ssmperf.errors import UsageError
from ssmperf.shell.terminal.display import counted, duration, shown_lines


@dataclass(frozen=True, slots=True)
class Forecast:
    """The size of a comparison, or of a search that compares several times.

    base, new: the versions in words. cases: number that both have. compared: number of those measured in
        pairs of rounds; the others are judged once on each side.
    pairs: of rounds. fresh_pairs: of the cases that stand out.
    commits: that a search chooses from, None for one comparison. comparisons: their number, roughly.
    least_s, most_s: rough durations if no case stands out, and if all do.
    """

    base: str
    new: str
    cases: int
    compared: int
    pairs: int
    fresh_pairs: int
    commits: int | None
    comparisons: int
    least_s: float
    most_s: float

    @property
    def text(self) -> str:
        """The forecast in words, the duration last."""
        once = self.cases - self.compared
        lines = [f"base: {self.base}", f"new: {self.new}"]
        if self.compared:
            fresh = f"{self.fresh_pairs} fresh ones of those that stand out"
            rounds = counted(self.pairs, "pair")
            lines.append(f"{counted(self.compared, 'case')} in {rounds} of rounds, and {fresh}")
        if once:
            lines.append(f"{counted(once, 'case')} judged once on each side")
        if self.commits is not None:
            lines.append(
                f"{counted(self.commits, 'commit')}: about {counted(self.comparisons, 'comparison')}"
            )
        longer = f", {duration(self.most_s)} if all cases stand out" if self.compared else ""
        lines.append(f"takes about {duration(self.least_s)}{longer}; nothing was measured")
        return shown_lines("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def forecast(wanted: Versions) -> Forecast:
    """Say what comparing two versions would measure. They are installed for that, as for a comparison.

    Raises:
        VersionFailed, UsageError, VersionEnded: as `compare_versions` does.
    """
    sides, cases = list_cases(wanted)
    least_s, most_s = _durations(wanted, cases)
    return Forecast(
        base=sides["base"].label,
        new=sides["new"].label,
        cases=len(cases),
        compared=len(_ranked(cases)),
        pairs=wanted.first,
        fresh_pairs=_fresh(wanted, cases),
        commits=None,
        comparisons=1,
        least_s=least_s,
        most_s=most_s,
    )


def forecast_search(wanted: Versions) -> Forecast:
    """Say what a bisection would measure: its ends, about log2 of the commits, and the culprit's parent.

    Raises:
        UsageError: an end is no commit, or the good one is no ancestor of the bad one.
        VersionFailed, VersionEnded: an end cannot be installed or does not have the case.
    """
    good, bad = (kind_of(text)[1] for text in (wanted.base, wanted.new))
    if good is None or bad is None or good == bad or not ancestor(good, bad):
        raise UsageError(
            "bisect searches between two commits, the good one an ancestor of the bad one: got "
            f"{wanted.base} and {wanted.new}{shallow_words()}"
        )
    between = int(git(Path.cwd(), "rev-list", "--count", f"{good}..{bad}"))
    steps = 2 + math.ceil(math.log2(between))
    files = tuple(path_in_tree(file, bad) for file in wanted.plugins)
    one = forecast(replace(wanted, plugins=files))
    return replace(
        one, commits=between, comparisons=steps, least_s=steps * one.least_s, most_s=steps * one.most_s
    )


def _ranked(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if registry.suite(case.suite).section.rank]


def _fresh(wanted: Versions, cases: Sequence[Case]) -> int:
    return fresh_pairs(len(_ranked(cases))) if wanted.fresh is None else wanted.fresh


def _durations(wanted: Versions, cases: Sequence[Case]) -> tuple[float, float]:
    """Forecast the seconds of a comparison if no case stands out, and if all do."""
    ranked = _ranked(cases)
    once_s = expected_s([case for case in cases if case not in ranked])
    rounds = (wanted.first, wanted.first + _fresh(wanted, cases))
    least_s, most_s = (2 * (once_s + expected_s(ranked, rounds=each)) for each in rounds)
    return least_s, most_s
