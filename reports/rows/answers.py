"""Answers: for each phase of a workload, the fastest backend that is right, its memory and its limit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf.suitekit import GATES, PHASES, UNPACKED, workloads_of

from . import contests, envelopes, frames, ranking, units

if TYPE_CHECKING:
    from ssmperf import Run

_GATES = {source: name for name, source in GATES.items()}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PhaseAnswer:
    """What a run says about one form of a phase.

    form: batch, length and packing, as text. gates: `start`, `steep`, … or another source of operands.
    contest: of the pass; of the sum of forward and backward, where both were timed.
    peak_bytes: the larger of both passes. limit_fraction: of both passes together.
    right_to: up to which length and decay a stability run found the winner right.
    """

    workload: str
    phase: str
    form: str
    gates: str
    contest: contests.Contest
    peak_bytes: float | None
    limit_fraction: float | None
    right_to: str

    def to_json(self) -> dict[str, Any]:
        fields = ("workload", "phase", "form", "gates", "peak_bytes", "limit_fraction", "right_to")
        return {name: getattr(self, name) for name in fields} | {"contest": self.contest}


def answers(runs: Sequence[Run], parts: Mapping[str, ranking.Part]) -> list[PhaseAnswer]:
    """List the answers of all runs with workloads, by workload, phase and form. parts: their ranked rows."""
    reach: dict[tuple[str, ...], str] | None = None
    found: list[PhaseAnswer] = []
    for name, run in zip(frames.run_names(runs), runs, strict=True):
        for key, ids in workloads_of(run.meta).items():
            reach = _reach(parts) if reach is None else reach
            workload, _, phase = key.rpartition(":")
            for section, rows in parts.values():
                if units.is_time(section.rank):
                    own = rows[(rows["run"] == name) & rows["case_id"].isin(ids)]
                    found += _of_phase(workload, phase, own, section.rank, reach)
    return sorted(found, key=_order)


def _of_phase(
    workload: str, phase: str, rows: pd.DataFrame, rank: str, reach: Mapping[tuple[str, ...], str]
) -> Iterator[PhaseAnswer]:
    place = frames.KEY.index("pass")
    groups: dict[tuple[Hashable, ...], list[int]] = {}
    for number, key in enumerate(frames.keys(rows)):
        groups.setdefault(key, []).append(number)
    forms: dict[tuple[Hashable, ...], dict[str, tuple[contests.Contest, list[Row]]]] = {}
    for key, numbers in groups.items():
        members = rows.iloc[numbers]
        for contest in contests.contests_of(members, rank):
            passes = forms.setdefault((*key[:place], *key[place + 1 :]), {})
            passes[contest["pass"]] = contest, [*frames.records(members)]
    for passes in forms.values():
        asked = [*passes.values()]
        if passes.keys() == {*contests.PARTS}:
            parts = {name: contest for name, (contest, _) in passes.items()}
            asked = [(contests.by_sum(parts), [row for _, found in asked for row in found])]
        for contest, seen in asked:
            won = [row for row in seen if row["backend"] == contest["backend"]]
            right_to = reach.get(_owner(seen[0], contest["backend"]), "")
            form, gates = _form(seen[0]), _gates(seen[0])
            yield PhaseAnswer(workload, phase, form, gates, contest, _peak(won), _share(won, rank), right_to)


def _reach(parts: Mapping[str, ranking.Part]) -> dict[tuple[str, ...], str]:
    """Say up to where each backend is right, by model, device, dtype and backend, where a suite asked."""
    return {
        _owner(first, first["backend"]): text
        for section, rows in parts.values()
        if section.envelope
        for first, _, text in envelopes.reached(rows, section.envelope)
    }


def _owner(row: Row, backend: Any) -> tuple[str, ...]:
    model = row["recurrence"] if units.missing(row["model"]) else row["model"]
    where = row["environment"] or row["device"]
    return tuple(map(units.plain, (model, where, row["dtype"], backend)))


def _form(row: Row) -> str:
    """Name the batch, the length and the packing."""
    if row["packing"] != UNPACKED:
        return f"packed {units.plain(row['packing'])}"
    return f"B {row['B']:,.0f}" if row["pass"] == "decode" else f"B {row['B']:,.0f}, T {row['T']:,.0f}"


def _gates(row: Row) -> str:
    source = str(row["operand_source"])
    return _GATES.get(source, units.plain(source))


def _peak(rows: Sequence[Row]) -> float | None:
    known = [units.as_float(row.get("peak_bytes")) for row in rows]
    return max((each for each in known if each is not None), default=None)


def _share(rows: Sequence[Row], rank: str) -> float | None:
    """Give the least time over the time, of all passes together."""
    pairs = [(units.as_float(row.get("limit_fraction")), units.as_float(row.get(rank))) for row in rows]
    if not pairs or any(share is None or seconds is None for share, seconds in pairs):
        return None
    total = sum(seconds for _, seconds in pairs if seconds is not None)
    return sum(share * seconds for share, seconds in pairs if share and seconds) / total if total else None


def _order(answer: PhaseAnswer) -> tuple[Any, ...]:
    phase = PHASES.index(answer.phase) if answer.phase in PHASES else len(PHASES)
    gates = [*GATES].index(answer.gates) if answer.gates in GATES else len(GATES)
    return (answer.workload, phase, gates, answer.form.startswith("packed"))
