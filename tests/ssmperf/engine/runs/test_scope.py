"""Which cases of a base run a new run should have: by what was asked for, not by what was planned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Record, Run, Selection, Shape, Status, UnknownName, UnreadableRun, UsageError
from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.outcome import RunComparison
from ssmperf.engine.plan.plan import Plan, Planned
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.plan.sizes import parse_sizes
from ssmperf.engine.runs import scope
from ssmperf.engine.runs.scope import Restriction

MODELS, BACKENDS, PASSES = (
    ("gla", "hgrn", "retnet"),
    ("chunkwise", "sequential", "triton"),
    ("forward", "backward"),
)
LENGTHS = (1024, 2048)
GPU = Device("cuda")
FULL = Selection.of(GPU)


def case(model: str, backend: str, T: int = 2048, pass_: str = "forward", **changes: Any) -> Case:
    fields = {"dtype": "bfloat16", "device": "cuda", "suite": "throughput"} | changes
    return Case(
        recurrence="scan", backend=backend, shape=Shape(B=8, T=T, C=64), model=model, pass_=pass_, **fields
    )


ALL = [case(m, b, T, p) for m in MODELS for b in BACKENDS for T in LENGTHS for p in PASSES]


def run(
    cases: Sequence[Case],
    selection: Selection | None,
    *,
    lost: Sequence[Case] = (),
    planned: Sequence[Case] = (),
) -> Run:
    """Make a run that planned and measured some cases; `lost` and `planned` have no record."""
    plan = [*cases, *lost, *planned]
    meta: dict[str, Any] = {
        "suites": {"throughput": {"rank": "latency_s"}},
        "environments": {},
        "plan": {"cases": len(plan), "case_ids": [each.id for each in plan]},
    }
    if selection is not None:
        suites = sorted({each.suite for each in plan} or {"throughput"})
        described = scope.describe(selection, suites, Plan(tuple(map(Planned, plan))))
        meta[scope.META] = json.loads(json.dumps(described))  # as run.json gives it back
    numbers = {"latency_s": 1e-3, "latency_low_s": 0.999e-3, "latency_high_s": 1.001e-3}
    return Run(Path("x"), meta, [Record(each, Status.OK, None, "e", numbers) for each in cases])


def missing(found: RunComparison) -> list[Case]:
    return [pair.case for pair in found.pairs if pair.verdict == "missing"]


def named(cases: Sequence[Case], **wanted: str) -> list[Case]:
    return [each for each in cases if all(getattr(each, name) == value for name, value in wanted.items())]


NARROWER = {
    "models": (Selection.of(GPU, models=("gla",)), lambda c: c.model == "gla"),
    "backends": (Selection.of(GPU, backends=("triton",)), lambda c: c.backend == "triton"),
    "passes": (Selection.of(GPU, passes=("backward",)), lambda c: c.pass_ == "backward"),
    "sizes": (Selection.of(GPU, sizes=parse_sizes(["T=1024"])), lambda c: c.shape["T"] == 1024),
    "all of them": (
        Selection.of(
            GPU, models=("gla",), backends=("triton",), passes=("backward",), sizes=parse_sizes(["T=1024"])
        ),
        lambda c: (c.model, c.backend, c.pass_, c.shape["T"]) == ("gla", "triton", "backward", 1024),
    ),
}


@pytest.mark.parametrize("narrower", NARROWER)
def test_a_part_of_the_baseline_speaks_of_that_part_alone(narrower: str) -> None:
    selection, kept = NARROWER[narrower]
    part = [each for each in ALL if kept(each)]
    found = compare_runs(run(ALL, FULL), run(part, selection))
    assert {pair.case for pair in found.pairs} == set(part)
    assert found.counts == {"same": len(part)}


def test_five_cases_against_a_baseline_of_a_thousand_are_five() -> None:
    many = [
        case(m, b, T=64 * n, pass_=p) for m in MODELS for b in BACKENDS for n in range(1, 57) for p in PASSES
    ]
    selection = Selection.of(GPU, models=("gla",), backends=("triton",), sizes=parse_sizes(["T=64:320:+64"]),
                             passes=("forward",))  # fmt: skip
    part = [case("gla", "triton", T=64 * n) for n in range(1, 6)]
    found = compare_runs(run(many, FULL), run(part, selection))
    assert len(many) > 1000
    assert len(found.pairs) == 5 and "5 cases, 5 same" in found.conclusion


@pytest.mark.parametrize("axis", ["model", "backend", "shape", "pass_"])
def test_what_the_new_code_no_longer_has_is_missing(axis: str) -> None:
    """The same selection of everything, in code that lost a model, a backend, a shape or a pass."""
    gone = ALL[-1]
    left = [each for each in ALL if getattr(each, axis) != getattr(gone, axis)]
    found = compare_runs(run(ALL, FULL), run(left, FULL))
    assert set(missing(found)) == set(ALL) - set(left)
    assert found.exit_code == 3


def test_a_backend_that_a_chosen_model_lost_is_missing_among_that_model_alone() -> None:
    selection = Selection.of(GPU, models=("gla",))
    left = [each for each in named(ALL, model="gla") if each.backend != "triton"]
    found = compare_runs(run(ALL, FULL), run(left, selection))
    assert set(missing(found)) == set(named(ALL, model="gla", backend="triton"))


def test_a_model_that_both_runs_chose_is_missing_if_it_is_gone() -> None:
    selection = Selection.of(GPU, models=("gla", "hgrn"))
    part = [each for each in ALL if each.model != "retnet"]
    found = compare_runs(run(part, selection), run(named(ALL, model="gla"), selection))
    assert set(missing(found)) == set(named(ALL, model="hgrn"))


def test_a_case_that_a_plan_left_out_on_purpose_is_not_missed() -> None:
    """Where choices differ, the plan of what both runs know decides, not the product of the axes' values."""
    odd = case("gla", "triton", dtype="float32", operand_source="sigmoid/key")
    plain = [
        case("gla", "triton", dtype="bfloat16", operand_source="sigmoid/key"),
        case("gla", "triton", dtype="float32"),
    ]
    chosen = Selection.of(GPU, dtypes=("float32", "bfloat16"))
    assert missing(compare_runs(run([odd, *plain], chosen), run(plain, FULL))) == []


def test_another_device_or_suite_is_outside() -> None:
    on_cpu = [case("gla", "sequential", device="cpu"), case("gla", "triton", suite="memory")]
    assert missing(compare_runs(run([*ALL, *on_cpu], FULL), run(ALL, FULL))) == []


def test_cases_of_an_earlier_selection_of_a_resumed_run_are_outside() -> None:
    selection = Selection.of(GPU, models=("hgrn",))
    resumed = run([each for each in ALL if each.model != "retnet"], selection)
    assert missing(compare_runs(resumed, run(named(ALL, model="hgrn"), selection))) == []


def test_an_interrupted_run_misses_what_it_planned() -> None:
    selection = Selection.of(GPU, models=("gla",))
    gla = named(ALL, model="gla")
    fresh = case("gla", "triton", T=4096)
    found = compare_runs(run(ALL, FULL), run(gla[:5], selection, lost=gla[5:], planned=[fresh]))
    assert set(missing(found)) == set(gla[5:])
    assert {pair.reason for pair in found.pairs if pair.verdict == "missing"} == {
        "it was planned, but the run ended before it"
    }
    assert found.unmeasured == 1 and found.counts["missing"] == len(gla[5:]) + 1
    assert any("the new run is unfinished: 8 of 13" in note for note in found.notes)
    unknown = compare_runs(run([], FULL), run(gla[:1], selection, lost=gla[1:2]))
    assert (unknown.counts, unknown.exit_code) == ({"missing": 1, "new": 1}, 3)


def test_a_planned_case_is_missing_although_its_like_was_measured() -> None:
    selection = Selection.of(GPU, models=("gla", "hgrn"))
    gla, hgrn = named(ALL, model="gla"), named(ALL, model="hgrn")
    found = compare_runs(run(ALL, FULL), run([*gla, *hgrn[1:]], selection, lost=hgrn[:1]))
    assert missing(found) == hgrn[:1]


def test_a_run_of_an_older_version_covers_everything() -> None:
    part = named(ALL, model="gla")
    assert set(missing(compare_runs(run(ALL, None), run(part, None)))) == set(ALL) - set(part)


def test_a_base_run_of_an_older_version_is_compared_by_values() -> None:
    selection = Selection.of(GPU, models=("gla",), sizes=parse_sizes(["T=1024"]))
    part = [each for each in named(ALL, model="gla") if each.shape["T"] == 1024]
    assert missing(compare_runs(run(ALL, None), run(part, selection))) == []
    no_triton = [each for each in part if each.backend != "triton"]
    gone = missing(compare_runs(run(ALL, None), run(no_triton, selection)))
    assert set(gone) == set(part) - set(no_triton)


@pytest.mark.parametrize(
    "damage", [[], "all", {"suites": 3}, {"planned": {"throughput": []}}, {"models": [1]}]
)
def test_a_damaged_selection_is_refused(damage: Any) -> None:
    new = run(ALL, FULL)
    whole = new.meta[scope.META]
    new.meta[scope.META] = {**whole, **damage} if isinstance(damage, dict) else damage  # type: ignore[index]
    with pytest.raises(UnreadableRun, match="selection"):
        compare_runs(run(ALL, FULL), new)


def test_a_restriction_applies_to_both_runs() -> None:
    base, new = run(ALL, FULL), run(named(ALL, backend="sequential"), FULL)
    found = compare_runs(base, new, restriction=Restriction(models=("gla",), backends=("sequential",)))
    assert {pair.case for pair in found.pairs} == set(named(ALL, model="gla", backend="sequential"))
    assert found.exit_code == 0
    lost = compare_runs(base, new, restriction=Restriction(models=("gla",)))
    assert set(missing(lost)) == set(named(ALL, model="gla")) - set(named(ALL, backend="sequential"))
    assert compare_runs(base, new, restriction=Restriction(suites=("throughput",))).exit_code == 3
    one, other = ALL[0].id, ALL[1].id[:12]
    few = compare_runs(base, base, restriction=Restriction(cases=(one, other)))
    assert {pair.case for pair in few.pairs} == set(ALL[:2]) and few.notes == ()
    with pytest.raises(UsageError, match="begins with 'zz'"):
        compare_runs(base, new, restriction=Restriction(cases=("zz",)))


@pytest.mark.parametrize(
    ("names", "nearest"),
    [
        ({"models": ("glaa",)}, "gla"),
        ({"backends": ("tritno",)}, "triton"),
        ({"suites": ("thruput",)}, "throughput"),
    ],
)
def test_a_restriction_to_nothing_is_refused(names: dict[str, Any], nearest: str) -> None:
    with pytest.raises(UnknownName, match=nearest):
        compare_runs(run(ALL, FULL), run(ALL, FULL), restriction=Restriction(**names))


def test_planned_values_leave_out_defaults() -> None:
    described = scope.describe(FULL, ("throughput",), Plan(tuple(map(Planned, ALL))))
    assert described["planned"]["throughput"]["gla"] == {
        "backend": list(BACKENDS),
        "shape": ["B8 T1024 C64", "B8 T2048 C64"],
        "dtype": ["bfloat16"],
        "pass": list(PASSES),
    }
    assert described["models"] is None and described["preset"] == "standard"
