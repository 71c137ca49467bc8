"""At which lengths kernels are judged where T is named, and what a comparison makes of even ones alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ssmperf
from ssmperf import Case, Record, Run, Shape, Status
from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.outcome import Pair
from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.side_process import SideProcess
from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.execute.request import Request, select
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.runs import scope
from ssmperf.engine.runs.scope import Restriction
from ssmperf.errors import UnknownName, VersionFailed
from ssmperf.suitekit import judged_lines, registry

HGRN = {"models": "hgrn", "backends": "blelloch"}
NAMED = (["T=512"], ["T=64:256:x2"], ["T=512", "B=2", "C=8"], ["T=64", "T=128"], ["B=2"])


def planned(
    axis: Sequence[str], judged_at: str = "own", suites: Sequence[str] = (), **more: Any
) -> list[Case]:
    selection, _ = select(device="cpu", axis=axis, judged_at=judged_at, **{**HGRN, **more})
    return make_plan(selection, suites or ["correctness", "throughput"]).to_run


def lengths(cases: Sequence[Case], suite: str) -> set[int]:
    return {case.shape["T"] for case in cases if case.suite == suite}


class TestPlan:
    @pytest.mark.parametrize("axis", NAMED, ids=str)
    def test_a_comparison_judges_at_odd_lengths_and_times_at_those_named(self, axis: list[str]) -> None:
        own, asked = planned(axis), planned(axis, "named")
        assert all(T % 2 and T > 1 for T in lengths(own, "correctness"))
        assert lengths(own, "throughput") == lengths(asked, "throughput")
        for letter in ("B", "C"):
            named = {text.partition("=")[2] for text in axis if text.startswith(letter)}
            sizes = {str(case.shape[letter]) for case in own}
            assert not named or sizes == named

    @pytest.mark.parametrize("axis", [["T=512"], ["T=512,1024", "B=2"]], ids=str)
    def test_a_run_judges_what_is_asked(self, axis: list[str]) -> None:
        cases = planned(axis, "named")
        assert lengths(cases, "correctness") == lengths(cases, "throughput")

    def test_key_heads_divide_heads_at_the_suite_s_own_lengths(self) -> None:
        cases = planned(
            ["T=64", "G=2"], suites=["correctness"], models="gated_deltanet", backends="chunkwise"
        )
        assert {case.shape["G"] if "G" in case.shape else case.shape["H"] for case in cases} == {2}

    def test_both_kinds_of_lengths_can_be_had(self) -> None:
        assert lengths(planned(["T=512"], "both"), "correctness") == {67, 512}
        assert Versions("a", "b", {}).judged_at == "own"
        assert Versions("a", "b", {}, cases=("3f",)).judged_at == "both"  # either kind may have that id

    @pytest.mark.parametrize("suite", ["stability", "extrapolation"])
    def test_a_suite_that_asks_about_lengths_takes_them(self, suite: str) -> None:
        cases = planned(["T=48"], suites=[suite])
        assert lengths([case for case in cases if "task" not in case.operand_source], suite) == {48}

    def test_it_is_decided_by_what_a_suite_ranks(self) -> None:
        selection, _ = select(device="cpu", axis=["T=512", "B=2"], judged_at="own")
        taken = {name: selection.handed_to(suite.section) for name, suite in registry.suites().items()}
        kept = {name for name, handed in taken.items() if handed == (selection,)}
        assert {name for name, suite in registry.suites().items() if suite.section.rank} <= kept
        assert "correctness" not in kept
        (own,) = selection.handed_to(ssmperf.Section(title="", question="", columns=()))
        assert own.lengths is None and [each.name for each in own.sizes] == ["B"]

    def test_another_answer_is_refused(self) -> None:
        with pytest.raises(UnknownName, match="--judged-at"):
            planned(["T=512"], "everywhere")


def run(axis: Sequence[str] = (), judged_at: str = "named", *, described: bool = True, bad: int = 0) -> Run:
    """Make a run of a selection in which all cases are ok, but those at the length `bad`."""
    suites = ["correctness", "throughput"]
    of = {"models": "gated_deltanet", "backends": "chunkwise"} if "packing" in str(axis) else HGRN
    selection, _ = select(device="cpu", axis=axis, judged_at=judged_at, **of)
    plan = make_plan(selection, suites)
    meta: dict[str, Any] = {
        "suites": {name: registry.suite(name).section.to_json() for name in suites},
        "plan": {"cases": len(plan.cases), "case_ids": [each.case.id for each in plan.cases]},
    }
    if described:
        meta[scope.META] = json.loads(json.dumps(scope.describe(selection, suites, plan)))
    numbers = {"latency_s": 1e-3, "peak_bytes": 1, "samples_s": [1e-3, 1.01e-3, 0.99e-3] * 10}
    records = [
        Record(case, Status.WRONG, "because", "e")
        if case.shape["T"] == bad
        else Record(case, Status.OK, None, "e", numbers)
        for case in plan.to_run
    ]
    return Run(Path("x"), meta, records)


def judged(base: Run, new: Run, **more: Any) -> dict[str, Pair]:
    """Give the pairs of correctness by their verdict."""
    pairs = compare_runs(base, new, **more).pairs
    return {pair.verdict: pair for pair in pairs if pair.case.suite == "correctness"}


class TestComparison:
    @pytest.mark.parametrize(
        ("axis", "words"),
        [
            (["T=512"], "T = 512"),
            (["T=64,512"], "T = 64, 512"),
            (["T=1"], "T = 1"),
            (["packing=64x2"], "packing 64x2"),
        ],
    )
    def test_even_lengths_alone_are_never_the_same(self, axis: list[str], words: str) -> None:
        found = compare_runs(run(axis), run(axis), restriction=Restriction(suites=("correctness",)))
        assert {pair.verdict for pair in found.pairs} == {"ambiguous"} and found.exit_code == 4
        assert all(f"judged at {words} only" in (pair.reason or "") for pair in found.pairs)
        assert judged_lines([run(axis)]) == [f"correctness: judged at {words} only"]

    def test_an_odd_sequence_among_packed_ones_is_enough(self) -> None:
        assert judged(run(["packing=64,33"]), run(["packing=64,33"])).keys() == {"same"}

    @pytest.mark.parametrize("axis", [(), ["T=67"], ["T=64,65"], ["B=2"]], ids=str)
    def test_an_odd_length_is_enough(self, axis: Sequence[str]) -> None:
        assert judged(run(axis), run(axis)).keys() == {"same"}

    def test_where_no_length_was_chosen_nothing_is_said(self) -> None:
        assert judged_lines([run(), run(["B=2"]), run(["T=512"], "own")]) == []
        assert judged_lines([run(["T=67"])]) == ["correctness: judged at T = 67 only"]

    @pytest.mark.parametrize("name", ["table", "markdown", "html"])
    def test_every_report_says_it(self, name: str) -> None:
        text = registry.report(name)([run(["T=512"])], None)
        assert "correctness: judged at T = 512 only" in text
        assert "judged at" not in registry.report(name)([run()], None)

    def test_a_kept_run_of_even_lengths_is_compared_with_one_of_a_gate(self) -> None:
        """What the kept run judged is not missing, and the new lengths are as good as new."""
        assert judged(run(["T=512"]), run(["T=512"], "own")).keys() == {"new"}
        assert judged(run(["T=512"], "own"), run(["T=512"])).keys() == {"ambiguous"}

    def test_what_is_wrong_stays_wrong(self) -> None:
        assert judged(run(["T=512"]), run(["T=512"], bad=512)).keys() == {"wrong"}
        pair = judged(run(["T=512"], bad=512), run(["T=512"]))["ambiguous"]
        assert "it was wrong" in (pair.reason or "")

    def test_a_case_that_is_named_is_compared_as_it_is(self) -> None:
        (case,) = (each for each in planned(["T=512"], "named") if each.suite == "correctness")
        named = Restriction(cases=(case.id,))
        assert judged(run(["T=512"]), run(["T=512"]), restriction=named).keys() == {"same"}

    def test_a_run_that_does_not_say_what_was_asked_is_taken_as_before(self) -> None:
        old = run(["T=512"], described=False)
        assert judged(old, old).keys() == {"same"}


OLDER = """#!/bin/bash
read -r line
echo "$line" >"{noted}"
echo '{{"cases": [], "refusal": null}}'
cat >/dev/null
"""


class TestVersions:
    def side(self, tmp_path: Path, name: str, judged_at: str, heard: list[Any]) -> SideProcess:
        """Start a side whose ssmperf is from before the lengths of suites."""
        python = tmp_path / "python"
        python.write_text(OLDER.format(noted=tmp_path / "noted"))
        python.chmod(0o755)
        side = Side("v1", "git ref", str(tmp_path), str(python))
        arguments = {"suite": "correctness", "axis": ["T=512"], "judged_at": judged_at}
        return SideProcess(name, side, tmp_path / name, arguments, heard.append, 2)

    def test_an_older_base_is_asked_for_nothing_that_it_does_not_know(self, tmp_path: Path) -> None:
        heard: list[Any] = []
        self.side(tmp_path, "base", "own", heard).close()
        asked = json.loads((tmp_path / "noted").read_text())
        assert asked["judged_at"] == "own" and "judged_at" not in asked["request"]
        assert heard == [{"judged_at": "named"}]  # so new is asked for that as well

    def test_an_older_new_version_cannot_judge_where_base_does(self, tmp_path: Path) -> None:
        with pytest.raises(VersionFailed, match="leave out the axis T"):
            self.side(tmp_path, "new", "own", [])
        self.side(tmp_path, "new", "named", []).close()

    @pytest.mark.parametrize(
        ("suite", "axis", "answer"),
        [
            ("correctness", ["T=512"], "own"),
            ("throughput", ["T=512"], "named"),
            ("correctness", ["B=2"], "named"),
        ],
    )
    def test_a_side_tells_whether_it_judges_elsewhere(
        self, suite: str, axis: list[str], answer: str, tmp_path: Path
    ) -> None:
        request = Request.of(suite, models="hgrn", axis=axis, device="cpu", judged_at="own", out=tmp_path)
        assert request.judged_at == answer


class OnlyEven(torch.autograd.Function):
    """Passes a result on. Its gradient is doubled at odd lengths beyond those of other calls."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.factor = 2 if output.shape[1] % 2 and output.shape[1] > 40 else 1
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return ctx.factor * gradient


def scan(log_a, b, initial_state=None):  # type: ignore[no-untyped-def]
    output, state = registry.recurrence("scan").definition(log_a, b, initial_state)
    return OnlyEven.apply(output), state


class TestVerify:
    @pytest.mark.parametrize("choices", [{}, {"initial_state": False}, {"regime": "small"}], ids=str)
    def test_a_gradient_that_is_wrong_at_odd_lengths_alone_is_found(self, choices: dict[str, Any]) -> None:
        report = ssmperf.verify("scan", scan, T=64, B=1, C=2, device="cpu", gates="data", **choices)
        assert not report and ", at T = 67: gradient of" in str(report.reason)

    def test_a_length_of_one_step_is_judged_alone(self) -> None:
        assert ssmperf.verify("scan", scan, T=1, B=1, C=2, device="cpu", gates="data")

    def test_what_is_right_has_no_further_verdicts(self) -> None:
        right = registry.recurrence("scan").definition
        report = ssmperf.verify("scan", right, T=8, B=1, C=2, device="cpu", gates="data")
        assert report and len(report.verdicts) == 2 and "T8 C2 and T67" in str(report)

    def test_a_refusal_of_odd_lengths_is_no_fault(self) -> None:
        def tiles(log_a, b, initial_state=None):  # type: ignore[no-untyped-def]
            if b.shape[1] % 2:
                raise ssmperf.Unsupported("a T that is no multiple of 2")
            return registry.recurrence("scan").definition(log_a, b, initial_state)

        report = ssmperf.verify("scan", tiles, T=8, B=1, C=2, device="cpu", gates="data", initial_state=False)
        assert report and "no multiple of 2" in str(report.not_covered["sigmoid/data, at T = 67"])


def test_shapes_are_unchanged() -> None:
    """The suite's own lengths are those of earlier versions, so that ids stay."""
    assert {case.shape for case in planned(()) if case.suite == "correctness"} == {Shape(B=2, T=67, C=64)}
