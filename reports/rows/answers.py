"""Answers: for each phase of a workload, the fastest backend that is right, its memory and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssmperf.suitekit import GATES, PHASES, TRAINING, UNPACKED, workloads_of

from . import contests, envelopes, frames, ranking, units

if TYPE_CHECKING:
    from ssmperf import Run

TRAIN, _, DECODE = PHASES
_GATES = {source: name for name, source in GATES.items()}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PhaseAnswer:
    """What a run says about one form of a phase.

    form: batch, length and packing, as text. gates: `start`, `steep`, … or another source of operands.
    contest: of the pass; of the sum of forward and backward, where both were timed.
    right_to: up to which length and decay a stability run found the winner right.
    """

    workload: str
    phase: str
    form: str
    gates: str
    contest: contests.Contest
    right_to: str

    def to_json(self) -> dict[str, Any]:
        fields = ("workload", "phase", "form", "gates", "right_to")
        own = {name: getattr(self, name) for name in fields}
        return own | {name: self.contest[name] for name in contests.OF_CALL} | {"contest": self.contest}


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
                    met = contests.contests_of(own, section.rank)
                    contests.mark_refuted(met, rows)
                    found += _of_phase(workload, phase, met, reach)
    for name in {answer.workload for answer in found}:
        contests.mark_older([answer.contest for answer in found if answer.workload == name])
    return sorted(found, key=_order)


def _of_phase(
    workload: str, phase: str, found: list[contests.Contest], reach: Mapping[tuple[str, ...], str]
) -> Iterator[PhaseAnswer]:
    for contest in contests.of_passes(found, [TRAINING]) if phase == TRAIN else found:
        names = (contest["owner"], contest["where"], contest["dtype"], units.plain(contest["backend"]))
        yield PhaseAnswer(workload, phase, _form(contest), _gates(contest), contest, reach.get(names, ""))


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


def _form(contest: contests.Contest) -> str:
    """Name the batch, the length and the packing."""
    sizes, packing = contest["sizes"], contest["axes"]["packing"]
    if packing != UNPACKED:
        return f"packed {units.plain(packing)}"
    return f"B {sizes['B']:,}" if contest["pass"] == DECODE else f"B {sizes['B']:,}, T {sizes['T']:,}"


def _gates(contest: contests.Contest) -> str:
    source = str(contest["axes"]["operand_source"])
    return _GATES.get(source, units.plain(source))


def _order(answer: PhaseAnswer) -> tuple[Any, ...]:
    phase = PHASES.index(answer.phase) if answer.phase in PHASES else len(PHASES)
    gates = [*GATES].index(answer.gates) if answer.gates in GATES else len(GATES)
    return (answer.workload, phase, gates, answer.form.startswith("packed"))
