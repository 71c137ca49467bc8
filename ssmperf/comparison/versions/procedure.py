"""Compare two versions by pairs of rounds: all cases first, and then those that stand out, measured afresh.

The unit is a round: one number per case from fresh processes of a side. A pair is a round of either side, in
random order. The statistics are in `ssmperf.engine.measure.paired`.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssmperf.comparison.comparison import THRESHOLD, compare_pairs, parse_threshold
from ssmperf.comparison.outcome import RunComparison, check_unsure
from ssmperf.comparison.versions.follow_up import follow_up_sides
from ssmperf.comparison.versions.side_process import SideProcess, pass_on
from ssmperf.comparison.versions.sides import Side, install
from ssmperf.comparison.versions.state import PLAN_FILE, start, write_state
from ssmperf.comparison.versions.turns import can_take_turns, run_in_turns
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.execute.request import parse_pairs
from ssmperf.engine.execute.run import Progress, Silent
from ssmperf.engine.measure import paired
from ssmperf.engine.plan import nonce
from ssmperf.engine.plan.run_options import Names, names
from ssmperf.engine.plan.selection import BOTH, OWN
from ssmperf.engine.runs import store
from ssmperf.engine.runs.rounds import values_of
from ssmperf.engine.runs.scope import Restriction
from ssmperf.engine.runs.standings import declared_ranks
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UsageError, VersionFailed

MOST_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions to compare, and how.

    base, new: the versions, as `ssmperf.comparison.versions.sides.install` reads them.
    arguments: those of `Request.of` for both sides. plugins: plug-in files for both.
    cases: ids of cases to which the comparison is restricted, or their first letters; empty for all.
    threshold: the largest change that counts as the same.
    first, fresh: pairs of the first stage, and of the second; None for as many as the number of cases asks.
    """

    base: str
    new: str
    arguments: Mapping[str, Any]
    plugins: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    threshold: float = THRESHOLD
    first: int = paired.FIRST_PAIRS
    fresh: int | None = None

    def __post_init__(self) -> None:
        for name, count, least in (("first", self.first, 2), ("second", self.fresh, 5)):
            if count is not None and not least <= count <= MOST_PAIRS:
                raise UsageError(
                    f"the {name} stage needs between {least} and {MOST_PAIRS} pairs, got {count}"
                )

    @classmethod
    def of(
        cls,
        base: str,
        new: str,
        suite: Names,
        choices: Mapping[str, Any],
        plugins: Sequence[str],
        cases: Names,
        pairs: str | None,
        threshold: str | float,
    ) -> Versions:
        """Make it from what users write: see `ssmperf.ab`.

        Raises:
            UsageError: a value is illegal.
        """
        first, fresh = parse_pairs(pairs)
        given = {name: value for name, value in choices.items() if value is not None}
        chosen = names(cases) or () if cases else ()
        limit = parse_threshold(threshold)
        return cls(base, new, {"suite": suite, **given}, tuple(plugins), chosen, limit, first, fresh)

    @property
    def judged_at(self) -> str:
        """At which lengths suites judge that rank nothing: a case that is named may have either T."""
        return BOTH if self.cases else OWN

    def to_json(self) -> dict[str, Any]:
        """Return the facts that a resumed comparison must share."""
        return {
            "base": self.base,
            "new": self.new,
            "arguments": dict(self.arguments),
            "plugins": list(self.plugins),
            "cases": list(self.cases),
            "threshold": self.threshold,
            "first": self.first,
            "fresh": self.fresh,
        }


def compare_versions(
    wanted: Versions,
    out: Path,
    *,
    resume: bool = False,
    unsure: str = "fail",
    progress: Progress | None = None,
) -> RunComparison:
    """Measure both versions in turn until the procedure has its verdicts.

    out: folder of the comparison: the runs `base` and `new`, their logs, and `ab.json`.
    resume: continue the comparison there. unsure: "fail" or "pass", what ambiguity alone is worth.

    Raises:
        VersionFailed: a version cannot be installed or refuses the request, or the versions have no case in
            common.
        UsageError: a version does not exist, a folder cannot be used, or `unsure` is illegal.
        VersionEnded: a side ended.
    """
    check_unsure(unsure)  # before anything is measured
    most = paired.fresh_pairs(10**9) if wanted.fresh is None else wanted.fresh
    with open_pairs(wanted, out, wanted.first + most, resume=resume, progress=progress) as pairs:
        pairs.measure_first()
        values = pairs.values(pairs.common, range(wanted.first))
        screened: list[str] = []
        if values:
            flags = paired.screen(_ratios(values), wanted.threshold)
            screened = [id_ for id_, flag in zip(values, flags, strict=True) if flag]
        fresh = paired.fresh_pairs(len(values)) if wanted.fresh is None else wanted.fresh
        more = {"screened": screened, "fresh_pairs": fresh if screened else 0, "unsure": unsure}
        write_state(out / PLAN_FILE, {**pairs.state, **more})
        pairs.measure_fresh(screened, fresh)
        sides = pairs.sides
    base, new = (store.load(out / name) for name in ("base", "new"))
    found = conclude(base, new, wanted, screened, fresh, unsure=unsure)
    return follow_up_sides(found, sides, wanted.plugins)


@contextlib.contextmanager
def open_pairs(
    wanted: Versions, out: Path, rounds: int, *, resume: bool, progress: Progress | None
) -> Iterator[Pairs]:
    """Install both versions and start their processes, which measure pairs until the end of the block.

    rounds: the most that either side will measure.

    Raises:
        UsageError, VersionFailed, VersionEnded: as `compare_versions`.
    """
    state = start(wanted.to_json(), out, resume=resume)
    sides = _install(wanted)
    described = {name: side.to_json() for name, side in sides.items()}
    before = state.get("sides", described)
    moved = [name for name, side in described.items() if before.get(name) != side]
    if moved:
        raise UsageError(
            f"{' and '.join(moved)}: another commit or content than measured in {out}; pass another --out"
        )
    state |= {"sides": described}
    write_state(out / PLAN_FILE, state)
    with Pairs(wanted, sides, out, state, rounds, progress or Silent()) as pairs:
        yield pairs


def list_cases(wanted: Versions) -> tuple[Mapping[str, Side], list[Case]]:
    """Install both versions, and list the cases that would be measured on both sides. Measures nothing.

    Raises:
        VersionFailed, UsageError, VersionEnded: as `compare_versions` does.
    """
    sides = _install(wanted)
    secret = nonce.as_text(nonce.fresh())
    with (
        tempfile.TemporaryDirectory(prefix="ssmperf-ab-") as folder,
        Pairs(wanted, sides, Path(folder), {"nonce": secret}, wanted.first, Silent()) as pairs,
    ):
        return sides, [pairs.processes["base"].cases[id_] for id_ in pairs.common]


def _install(wanted: Versions) -> dict[str, Side]:
    return {
        name: install(text, name, wanted.plugins)
        for name, text in (("base", wanted.base), ("new", wanted.new))
    }


def conclude(
    base: Run, new: Run, wanted: Versions, screened: Sequence[str], fresh: int, *, unsure: str = "fail"
) -> RunComparison:
    """Draw the verdicts from the rounds of both runs. A case that was not ok in some round has none."""
    first = common_values(base, new, range(wanted.first))
    again = common_values(base, new, range(wanted.first, wanted.first + fresh))
    known = [id_ for id_ in first if id_ not in screened or id_ in again]
    marked = [id_ in screened for id_ in known]
    verdicts: Mapping[str, Any] = {}
    if known:
        found = paired.confirm(
            _ratios({id_: first[id_] for id_ in known}),
            _ratios({id_: again[id_] for id_, mark in zip(known, marked, strict=True) if mark}, fresh),
            np.array(marked),
            wanted.threshold,
        )
        verdicts = dict(zip(known, found, strict=True))
    restriction = Restriction(cases=wanted.cases)
    comparison = compare_pairs(
        base, new, verdicts, threshold=wanted.threshold, unsure=unsure, restriction=restriction
    )
    used = {**first, **again}
    pairs = [
        replace(pair, base=_mean(used[pair.case.id][0]), new=_mean(used[pair.case.id][1]))
        if pair.case.id in verdicts
        else pair
        for pair in comparison.pairs
    ]
    return replace(comparison, pairs=tuple(pairs))


def _mean(values: Sequence[float]) -> float:
    """Compute the geometric mean, over the rounds on which a verdict rests."""
    return math.exp(sum(map(math.log, values)) / len(values))


def common_values(base: Run, new: Run, numbers: Iterable[int]) -> dict[str, tuple[list[float], list[float]]]:
    """List the values of both sides in these rounds, for the cases that have all of them."""
    fields = declared_ranks(base.meta)
    wanted = list(numbers)
    found = {}
    for id_ in base.rounds.keys() & new.rounds.keys():
        rank = fields.get(base.rounds[id_][0].case.suite)
        pair = tuple(_values(run.rounds[id_], rank, wanted) for run in (base, new))
        if rank and all(len(values) == len(wanted) for values in pair):
            found[id_] = (pair[0], pair[1])
    return dict(sorted(found.items()))


def _values(rounds: Sequence[Record], rank: str | None, numbers: Sequence[int]) -> list[float]:
    by_number = {record.numbers.get("round", 0): record for record in rounds}
    chosen = [by_number[number] for number in numbers if number in by_number]
    return values_of(chosen, rank) if rank else []


def _ratios(values: Mapping[str, tuple[list[float], list[float]]], pairs: int = 0) -> Any:
    """Make the array (cases, pairs) of log ratios new / base."""
    rows = [[math.log(new / base) for base, new in zip(*each, strict=True)] for each in values.values()]
    return np.array(rows, dtype=np.float64) if rows else np.zeros((0, pairs))


@dataclass
class Pairs:
    """Measures pairs of rounds of two sides. Make it by `open_pairs`.

    state: what `ab.json` has. rounds: the most of a side. common: ids of the cases that both sides have.
    """

    wanted: Versions
    sides: Mapping[str, Side]
    out: Path
    state: Mapping[str, Any]
    rounds: int
    progress: Progress
    processes: dict[str, SideProcess] = field(default_factory=dict)
    common: list[str] = field(default_factory=list)

    def __enter__(self) -> Pairs:
        added = {"nonce": self.secret, "rounds": self.rounds, "judged_at": self.wanted.judged_at}
        self.arguments = {**self.wanted.arguments, **added}
        ends = socket.socketpair()
        try:
            for (name, side), end in zip(self.sides.items(), ends, strict=True):
                self.processes[name] = SideProcess(
                    name, side, self.out / name, self.arguments, self._hear, end.fileno()
                )
        except BaseException:
            self._end()
            raise
        finally:
            for end in ends:
                end.close()  # a side that ends is then seen by the other
        base, new = (self._chosen(self.processes[name].cases) for name in ("base", "new"))
        self.common = [id_ for id_ in base if id_ in new]
        try:
            Restriction(cases=self.wanted.cases).check(
                case for process in self.processes.values() for case in process.cases.values()
            )
        except UsageError:
            self._end()
            raise
        if not self.common:
            self._end()
            raise VersionFailed(
                f"the versions have no case in common to run: base has {len(base)}, new has {len(new)} of "
                f"those selected{self._refusals()}",
                "new" if base else "base",
            )
        self.progress.begin(self.wanted.first * 2 * len(self.common), 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.progress.end()
        if kind is not None:
            for process in self.processes.values():
                process.kill()
        self._end()

    def measure_first(self) -> None:
        """Measure the first stage: all cases of either side once, and in all pairs those that both rank."""
        for number in range(self.wanted.first):
            if number == 0:
                ids = {name: self._chosen(process.cases) for name, process in self.processes.items()}
                self.progress.drop(2 * len(self.common) - sum(map(len, ids.values())))
                self._run_pair(number, ids)
                ranked = self.values(self.common, range(1))
                self.progress.drop(2 * (self.wanted.first - 1) * (len(self.common) - len(ranked)))
                self.common = list(ranked)
            elif self.common:
                self._run_pair(number, dict.fromkeys(self.processes, self.common))

    def measure_fresh(self, screened: Sequence[str], pairs: int) -> None:
        """Measure the second stage: the screened cases alone."""
        self.progress.drop(-2 * pairs * len(screened))
        for number in range(self.wanted.first, self.wanted.first + pairs if screened else 0):
            self._run_pair(number, dict.fromkeys(self.processes, screened))

    def measure(self, id_: str, numbers: Iterable[int]) -> tuple[list[float], list[float]] | None:
        """Measure one case in these rounds, unless that was done; None if it is not ok in one of them."""
        wanted = list(numbers)
        missing = [number for number in wanted if not self.values([id_], [number])]
        self.progress.drop(-2 * sum(number >= self.wanted.first for number in missing))
        for number in missing:
            self._run_pair(number, dict.fromkeys(self.processes, (id_,)))
            if not self.values([id_], [number]):
                return None
        return self.values([id_], wanted)[id_]

    @property
    def secret(self) -> str:
        return str(self.state["nonce"])

    def _run_pair(self, number: int, ids: Mapping[str, Sequence[str]]) -> None:
        """Measure a round of either side. Both start their processes before the first of them measures."""
        for name, process in self.processes.items():
            process.prepare(number, ids[name])
        for process in self.processes.values():
            process.wait_until_prepared()
        if can_take_turns(self.processes):
            measured = run_in_turns(self.processes, number, ids, self.secret)
        else:
            order = self._order(number)
            measured = {name: self.processes[name].run_round(number, ids[name]) for name in order}
        for name, count in measured.items():
            self.progress.drop(len(ids[name]) - count)  # resumed, or not ok before

    def values(
        self, ids: Iterable[str], numbers: Iterable[int]
    ) -> dict[str, tuple[list[float], list[float]]]:
        """Read both sides' measurements in these rounds from the runs on disk."""
        base, new = (store.load(self.processes[name].run_folder) for name in ("base", "new"))
        found = common_values(base, new, numbers)
        return {id_: found[id_] for id_ in sorted(ids) if id_ in found}

    def _order(self, number: int) -> list[str]:
        """Draw which side of a pair comes first; a resumed comparison draws the same."""
        names = ["base", "new"]
        random.Random(f"pair {self.secret} {number}").shuffle(names)
        return names

    def _refusals(self) -> str:
        reasons = {name: process.refusal for name, process in self.processes.items() if process.refusal}
        return "".join(f"; {name} refuses some: {reason}" for name, reason in reasons.items())

    def _chosen(self, cases: Mapping[str, Case]) -> list[str]:
        beginnings = self.wanted.cases
        return [id_ for id_ in cases if not beginnings or id_.startswith(beginnings)]

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "judged_at" in message:
            self.arguments.update(message)  # so that new judges where base does
        else:
            pass_on(self.progress, message)

    def _end(self) -> None:
        for process in self.processes.values():
            process.close()
