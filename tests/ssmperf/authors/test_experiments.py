"""Experiments on planted faults: each is named by what it is in, and a strange one by nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf.authors.verification import experiments
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.diagnosis.experiments import conclusion, experiments_on, explained_by_experiments
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.suitekit import registry

Operands = dict[str, Any]


def planted(
    name: str, change: Callable[[Operands], Operands], after: Callable[..., Any] = lambda x, *results: results
) -> Callable[..., Any]:
    """Make a recurrence that changes its operands, or its results."""
    recurrence = registry.recurrence(name)

    def function(*operands: Any, **named: Any) -> Any:
        bound = recurrence.signature.bind(*operands, **named).arguments
        present = {key: value for key, value in bound.items() if value is not None}
        return after(present, *recurrence.definition(**{**present, **change(present)}))

    return function


def weak_decay(x: Operands) -> Operands:
    return {"log_a": -x["log_a"].abs().sqrt()} if "log_a" in x else {}


def half_the_state(x: Operands) -> Operands:
    return {"initial_state": 0.5 * x["initial_state"]} if "initial_state" in x else {}


def wrong_at_odd_T(x: Operands, output: Any, state: Any) -> Any:
    return (output + output.sin(), state) if x["q"].shape[1] % 2 else (output, state)


def strange(x: Operands, output: Any, state: Any) -> Any:
    return output + (3 * output).sin(), state


def in_float32(x: Operands, output: Any, state: Any) -> Any:
    return output.float().to(output.dtype), state.float().to(state.dtype)


def same(x: Operands) -> Operands:
    return {}


ATTENTION = "linear_attention"
FAULTS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "decay": (
        planted(ATTENTION, weak_decay),
        ATTENTION,
        "Right where gates are 1: it is in how the decay enters.",
    ),
    "initial state": (
        planted(ATTENTION, half_the_state),
        ATTENTION,
        "Right without an initial state: it is in how the initial state enters.",
    ),
    "odd T": (
        planted(ATTENTION, same, wrong_at_odd_T),
        ATTENTION,
        "Right where T is even: it is in how it treats an odd T.",
    ),
    "heads": (
        planted(ATTENTION, lambda x: {"v": x["v"].roll(1, 2)}),
        ATTENTION,
        "Right with one head: it is in how heads are told apart.",
    ),
    "β": (
        planted("delta_rule", lambda x: {"beta": x["beta"] ** 2}),
        "delta_rule",
        "Right where β is 1: it is in how β enters.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str) -> None:
    function, of, text = FAULTS[fault]
    assert text in str(ssmperf.verify(of, function, gates="key", device="cpu").reason)


def test_a_strange_fault_is_explained_by_nothing() -> None:
    found = ssmperf.verify(ATTENTION, planted(ATTENTION, same, strange), gates="key", device="cpu", H=2, B=2)
    verdict = found.verdicts["sigmoid/key"]
    tested = len(experiments_on(found.case)) + verdict.diagnosis[0]["tested"]
    assert str(verdict.reason).endswith(f"None of {tested} explanations fits.")


def test_float32_inside_float64_is_named() -> None:
    function = planted(ATTENTION, same, in_float32)
    found = ssmperf.verify(ATTENTION, function, gates="key", device="cpu", dtype="float64")
    assert str(found.reason).endswith("Accurate to float32 only: declare dtypes.")


def test_each_fault_has_experiments_once_and_what_is_right_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []

    def noted(case: Case, verdict: Verdict, judge: Callable[[Case], Verdict]) -> str:
        asked.append(case)
        return explained_by_experiments(case, verdict, judge)

    monkeypatch.setattr(experiments, "explained_by_experiments", noted)
    assert ssmperf.verify(ATTENTION, planted(ATTENTION, same), gates="key", device="cpu")
    assert not asked
    assert not ssmperf.verify(ATTENTION, planted(ATTENTION, same, strange), gates="key", device="cpu")
    assert len(asked) == 1


@pytest.mark.slow
def test_fuzz_prints_what_experiments_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    function = planted(ATTENTION, lambda x: {"v": x["v"].roll(1, 2)})
    found = ssmperf.fuzz(ATTENTION, function, device="cpu", examples=10, seed=1)
    assert "Right with one head" in str(found)
    assert any("Right with one head" in fault["experiments"] for fault in found.to_json()["faults"])


CASE = Case("verify", ATTENTION, "x", Shape(B=2, T=200, H=2, K=4, V=4), operand_source="sigmoid/key")
WRONG = Verdict(Status.WRONG, "output", {"output": 1.0}, {"output": 1e-5})


def test_few_experiments_are_run_on_a_short_case() -> None:
    judged: list[Case] = []

    def judge(case: Case) -> Verdict:
        judged.append(case)
        return WRONG

    explained_by_experiments(CASE, WRONG, judge)
    assert len(judged) <= 11 and all(case.shape["T"] <= 69 for case in judged)


@pytest.mark.parametrize(
    "judged", [Verdict(Status.OK), Verdict(Status.UNSUPPORTED), Verdict(Status.TIMEOUT)], ids=str
)
def test_what_is_not_wrong_again_is_left_alone(judged: Verdict) -> None:
    assert explained_by_experiments(CASE, WRONG, lambda case: judged) == ""


def test_an_odd_T_is_named_only_if_each_even_one_is_right_and_no_other_odd_one() -> None:
    odd = Case("verify", ATTENTION, "x", Shape(B=1, T=67, H=1, K=4, V=4), operand_source="ones/key")

    def found(right: set[int]) -> str:
        return conclusion(
            WRONG,
            [
                (each, Verdict(Status.OK) if each.case.shape["T"] in right else WRONG)
                for each in experiments_on(odd)
            ],
        )

    assert found({64, 68}) == "Right where T is even: it is in how it treats an odd T."
    assert found({64}) == "Right at T = 64, a multiple of 64: it is in the last chunk, which T does not fill."
    assert found({68}) == ""
    last = "Right at T = 64, a multiple of 64: it is in the last chunk, which T does not fill."
    assert found({64, 68, 69}) == found({64, 69}) == last  # such as one that loses a step where T % 4 is 3
    assert found({69}) == ""
