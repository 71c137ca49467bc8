"""`check --remeasure`: undecided cases are measured again in pairs, and only their verdicts change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.versions import remeasure as module
from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.remeasure import arguments_for, commit_of, remeasure
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UsageError

SECTIONS = {"throughput": {"title": "T", "question": "", "columns": [], "rank": "latency_s"}}


def case(backend: str = "blelloch", **changes: Any) -> Case:
    shape = Shape({"B": 1, "T": 64, "C": 4})
    fields = {
        "suite": "throughput",
        "recurrence": "scan",
        "model": "hgrn",
        "backend": backend,
        "shape": shape,
    }
    return Case(**{**fields, "cache": "hot", **changes})


def run(*records: Record, **meta: Any) -> Run:
    found = {"suites": SECTIONS, "environments": {"e": {}}, "created": str(id(records)), **meta}
    return Run(Path("runs/x"), found, list(records))


def timed(seconds: float, backend: str = "blelloch") -> Record:
    samples = [seconds * (1 + 1e-3 * index) for index in range(-10, 11)]
    return Record(case(backend), Status.OK, None, "e", {"latency_s": seconds, "samples_s": samples})


def test_undecided_cases_get_the_verdict_of_the_pairs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The slower case is measured again and found to be the same; the others keep their verdicts."""
    seen: list[Versions] = []
    base = run(timed(1.0), timed(1.0, "hillis_steele"), timed(1.0, "chunkwise"))
    wrong = Record(case("chunkwise"), Status.WRONG, "because", "e")
    found = compare_runs(base, run(timed(3.0), timed(1.0, "hillis_steele"), wrong))
    assert {pair.verdict for pair in found.pairs} == {"slower", "same", "wrong"}

    def measured(wanted: Versions, out: Path, **_: Any) -> Any:
        seen.append(wanted)
        pair = next(pair for pair in found.pairs if pair.verdict == "slower")
        return replace(found, pairs=(replace(pair, verdict="same", ratio=1.0, rounds=7),))

    monkeypatch.setattr(module, "compare_versions", measured)
    again = remeasure(found, tmp_path / "ab", base="one", new="two")
    assert {pair.case.backend: pair.verdict for pair in again.pairs} == {
        "blelloch": "same",
        "hillis_steele": "same",
        "chunkwise": "wrong",
    }
    assert seen[0].cases == (case().id,) and (seen[0].base, seen[0].new) == ("one", "two")
    assert "1 case was measured again" in again.notes[-1]


def test_nothing_is_measured_where_all_is_decided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "compare_versions", lambda *_, **__: pytest.fail("measured"))
    found = compare_runs(run(timed(1.0)), run(timed(1.0)))
    assert remeasure(found, tmp_path / "ab") is found


def test_the_arguments_plan_the_cases_again() -> None:
    wanted = [case(), case("hillis_steele", pass_="backward"), case(dtype="bfloat16"), case(model="mingru")]
    request = Request.of(
        **arguments_for(wanted, run(selection={"preset": "smoke"}, sampling={"max_time_s": 0.3}))
    )
    planned = {item.case.id for item in make_plan(request.selection, request.suites).cases}
    assert {each.id for each in wanted} <= planned
    assert request.scale.max_time_s == 0.3


def test_cases_of_bare_recurrences_are_planned_by_their_regime() -> None:
    wanted = [
        case(model=None, operand_source="sigmoid/data"),
        case(model=None, operand_source="retnet/const"),
    ]
    request = Request.of(**arguments_for(wanted, run()))
    planned = {item.case.id for item in make_plan(request.selection, request.suites).cases}
    assert {each.id for each in wanted} <= planned


@pytest.mark.parametrize(
    "others", [[case(model=None, operand_source="sigmoid/data")], [case(seed=1)]], ids=["sources", "seeds"]
)
def test_what_one_run_cannot_hold_is_refused(others: list[Case]) -> None:
    with pytest.raises(UsageError, match=r"together|seed"):
        arguments_for([case(), *others], run())


@pytest.mark.parametrize(
    ("environment", "meta", "reason"),
    [
        ({}, {}, "does not say"),
        ({"git": {"commit": None}}, {}, "does not say"),
        ({"git": {"commit": "f" * 40, "dirty": False}}, {}, "not in this repository"),
        ({"git": {"commit": "f" * 40, "dirty": True}}, {}, "with changes"),
        ({"git": {"commit": "f" * 40, "dirty": False}}, {"plugins": ["a.py"]}, "plug-in"),
    ],
)
def test_a_run_that_names_no_version_needs_one(
    environment: dict[str, Any], meta: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        commit_of(run(environments={"e": environment}, **meta), "base")
    assert "--base-version" in str(caught.value)
