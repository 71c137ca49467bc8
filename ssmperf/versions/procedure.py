"""Compare two versions by pairs of rounds: all cases first, and then those that stand out, measured afresh.

The unit is a round: one number per case from fresh processes of a side. A pair is a round of either side, in
random order. The statistics are in `ssmperf.measure.paired`.
"""

from __future__ import annotations

import json
import math
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.errors import UnreadableRun, UsageError, VersionFailed
from ssmperf.execute.request import Names, names
from ssmperf.execute.run import Progress, Silent
from ssmperf.measure import paired
from ssmperf.runs import store
from ssmperf.runs.comparison import THRESHOLD, compare_pairs, parse_threshold
from ssmperf.runs.outcome import RunComparison, check_unsure
from ssmperf.runs.rounds import values_of
from ssmperf.runs.scope import Restriction
from ssmperf.runs.standings import declared_ranks
from ssmperf.runs.store import Run
from ssmperf.trial import nonce
from ssmperf.versions.side_process import SideProcess
from ssmperf.versions.sides import Side, install
from ssmperf.versions.turns import can_take_turns, run_in_turns

PLAN_FILE = "ab.json"
MOST_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions to compare, and how.

    base, new: the versions, as `ssmperf.versions.sides.install` reads them.
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
    state = _start(wanted, out, resume=resume)
    sides = {
        name: install(text, name, wanted.plugins)
        for name, text in (("base", wanted.base), ("new", wanted.new))
    }
    described = {name: side.to_json() for name, side in sides.items()}
    before = state.get("sides", described)
    moved = [name for name, side in described.items() if before.get(name) != side]
    if moved:
        raise UsageError(
            f"{' and '.join(moved)}: another commit or content than measured in {out}; pass another --out"
        )
    state |= {"sides": described}
    write_state(out / PLAN_FILE, state)
    with _Pairs(wanted, sides, out, state["nonce"], progress or Silent()) as pairs:
        pairs.measure_first()
        values = pairs.values(pairs.common, range(wanted.first))
        screened: list[str] = []
        if values:
            flags = paired.screen(_ratios(values), wanted.threshold)
            screened = [id_ for id_, flag in zip(values, flags, strict=True) if flag]
        fresh = paired.fresh_pairs(len(values)) if wanted.fresh is None else wanted.fresh
        write_state(out / PLAN_FILE, {**state, "screened": screened, "fresh_pairs": fresh if screened else 0})
        pairs.measure_fresh(screened, fresh)
    base, new = (store.load(out / name) for name in ("base", "new"))
    found = conclude(base, new, wanted, screened, fresh, unsure=unsure)
    return replace(found, versions=(sides["base"].label, sides["new"].label))


def conclude(
    base: Run, new: Run, wanted: Versions, screened: Sequence[str], fresh: int, *, unsure: str = "fail"
) -> RunComparison:
    """Draw the verdicts from the rounds of both runs. A case that was not ok in some round has none."""
    first = _common_values(base, new, range(wanted.first))
    again = _common_values(base, new, range(wanted.first, wanted.first + fresh))
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


def parse_pairs(text: str | None) -> tuple[int, int | None]:
    """Read the numbers of pairs of the two stages, such as `5+7`; None means the usual ones.

    Raises:
        UsageError: it is something else.
    """
    if text is None:
        return paired.FIRST_PAIRS, None
    first, plus, fresh = text.partition("+")
    if not (plus and first.strip().isdecimal() and fresh.strip().isdecimal()):
        raise UsageError(f"--pairs must look like 5+7, got {text!r}")
    return int(first), int(fresh)


def _common_values(base: Run, new: Run, numbers: Iterable[int]) -> dict[str, tuple[list[float], list[float]]]:
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


def _start(wanted: Versions, out: Path, *, resume: bool) -> dict[str, Any]:
    """Make the first `ab.json` of a comparison, or read that of the one to resume."""
    file = out / PLAN_FILE
    described = json.loads(json.dumps(wanted.to_json()))  # as it is in the file: tuples are lists there
    if file.exists() and resume:
        try:
            state = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise UnreadableRun(f"cannot read {file}: {error}") from error
        if not isinstance(state, dict) or not isinstance(state.get("nonce"), str):
            raise UnreadableRun(f"{file} is damaged: it is no object with a nonce")
        changed = [name for name, value in described.items() if state.get(name) != value]
        if changed:
            raise UsageError(
                f"the comparison in {out} was begun with another {', '.join(changed)}: pass the same, or "
                "another --out"
            )
        return dict(state)
    try:
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} already exists and is not empty: pass --resume or another --out")
    except OSError as error:
        raise UsageError(f"cannot write the folder {out}: {error.strerror or error}") from error
    given = wanted.arguments.get("nonce")
    return {**described, "nonce": given or nonce.as_text(nonce.fresh())}


def write_state(file: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a comparison or a search as JSON; the file is always a whole one.

    Raises:
        UsageError: it cannot be written.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(state, indent=1) + "\n")
        temporary.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write to {file.parent}: {error.strerror or error}") from error


@dataclass
class _Pairs:
    """Measures pairs of rounds of two sides."""

    wanted: Versions
    sides: Mapping[str, Side]
    out: Path
    secret: str
    progress: Progress
    processes: dict[str, SideProcess] = field(default_factory=dict)
    common: list[str] = field(default_factory=list)

    def __enter__(self) -> _Pairs:
        fresh = paired.fresh_pairs(10**9) if self.wanted.fresh is None else self.wanted.fresh
        rounds = self.wanted.first + fresh
        arguments = {**self.wanted.arguments, "nonce": self.secret, "rounds": rounds}
        ends = socket.socketpair()
        try:
            for (name, side), end in zip(self.sides.items(), ends, strict=True):
                self.processes[name] = SideProcess(
                    name, side, self.out / name, arguments, self._hear, end.fileno()
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
        found = _common_values(base, new, numbers)
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
        if "start" in message:
            case = Case.from_json(message["start"])
            self.progress.start(case, case.device)
        elif "record" in message:
            case, status = Case.from_json(message["record"]), Status(message["status"])
            self.progress.finish(Record(case, status, message["reason"]))

    def _end(self) -> None:
        for process in self.processes.values():
            process.close()
