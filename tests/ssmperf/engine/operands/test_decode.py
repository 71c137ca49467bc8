"""The pass `decode`: one token from a given state, without gradients, planned once, judged and timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import ssmperf
from ssmperf import Case, Record, Shape, Status, UsageError
from ssmperf.authors.profiling import trace as profiling
from ssmperf.engine.cases.case import PASSES
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.request import select
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.suitekit import registry

CASE = Case(
    "throughput", "scan", "spy", Shape(B=2, T=1, C=3), "hgrn", cache="hot", pass_="decode", device="cpu"
)


def measure(case: Case) -> Record:
    ceilings = Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0)
    return run_case(case, Context("cpu", "env", Settings(0.001, 0.01), ceilings))


def plan(suite: str = "throughput", **choices: Any) -> Plan:
    selection, _ = select(**{"device": "cpu", "pass_": "decode", "backends": "sequential", **choices})
    return make_plan(selection, [suite])


@pytest.fixture
def calls(own_registrations: None) -> list[dict[str, Any]]:
    """Record the calls of a backend that computes the definition."""
    found: list[dict[str, Any]] = []
    definition = registry.recurrence("scan").definition

    @ssmperf.backend("scan", name="spy")
    def spy(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Any:
        output, state = definition(log_a, b, initial_state, phase=phase)
        shape = None if initial_state is None else tuple(initial_state.shape)
        found.append({"T": b.shape[1], "state": shape, "graph": output.requires_grad})
        return output, state

    return found


@pytest.mark.parametrize("suite", ["throughput", "correctness"])
@pytest.mark.parametrize(("model", "gates"), [("hgrn", None), (None, "sigmoid/const")])
def test_every_call_is_one_token_from_a_state(
    calls: list[dict[str, Any]], suite: str, model: str | None, gates: str | None
) -> None:
    record = measure(replace(CASE, suite=suite, model=model, operand_source=gates or "model"))
    assert record.status is Status.OK, record.reason
    assert record.numbers["error_final_state"] is not None
    assert record.numbers["error_gradients"] is None
    assert calls
    assert all(call == {"T": 1, "state": (2, 3), "graph": False} for call in calls)


def test_its_time_counts_the_state_as_traffic(calls: list[dict[str, Any]]) -> None:
    numbers = measure(CASE).numbers
    assert numbers["latency_s"] > 0
    assert numbers["least_bytes"] == 5 * 2 * 3 * 4  # the gate, b, h and the states before and after
    assert numbers["tokens_per_s"] == pytest.approx(2 / numbers["latency_s"])


@pytest.mark.parametrize("suite", ["throughput", "correctness"])
@pytest.mark.parametrize("fault", ["ignores the state", "keeps the state"])
@pytest.mark.usefixtures("own_registrations")
def test_a_state_that_is_not_read_or_not_updated_is_wrong(suite: str, fault: str) -> None:
    definition = registry.recurrence("scan").definition

    @ssmperf.backend("scan", name="spy")
    def broken(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Any:
        if fault == "ignores the state":
            return definition(log_a, b, None, phase=phase)
        output, _ = definition(log_a, b, initial_state, phase=phase)
        return output, initial_state.clone()

    assert measure(replace(CASE, suite=suite)).status is Status.WRONG


def test_lengths_that_differ_are_one_token() -> None:
    cases = [item.case for item in plan(models="hgrn,gla", preset="standard").cases]
    assert [(case.model, case.shape["T"]) for case in cases] == [("gla", 1), ("hgrn", 1)]
    both = plan(models="hgrn", pass_="forward,decode", axis="T=16,32").cases
    assert [(item.case.pass_, item.case.shape["T"]) for item in both] == [
        ("decode", 1), ("forward", 16), ("forward", 32),
    ]  # fmt: skip


def test_an_axis_over_its_one_token_is_refused() -> None:
    with pytest.raises(UsageError, match="one token"):
        plan(models="hgrn", axis="T=16,32")
    assert plan(models="hgrn", axis="T=1").to_run


@pytest.mark.parametrize("suite", ["throughput", "correctness"])
@pytest.mark.parametrize("subject", ["hgrn", "scan"])
def test_its_command_repeats_it_alone(suite: str, subject: str) -> None:
    for item in plan(suite, models=subject).to_run[:5]:
        words = command_that_repeats(item, ()).split()
        options = dict(zip(words[4::2], words[5::2], strict=True))
        axes = [f"{letter}={size}" for letter, size in item.shape.items()]
        again = plan(suite, models=subject, axis=axes, regime=options.get("--regime"), dtype=item.dtype)
        assert [each.case for each in again.cases] == [item]


def test_what_cannot_decode_says_why() -> None:
    refused = plan(models="s4d_lin", backends=None)
    assert not refused.to_run
    assert {item.refusal for item in refused.refused} == {
        "no decode pass: long_conv has no state to continue from"
    }
    block = plan(models="hgrn", level="block")
    assert not block.to_run
    assert "block" in str(block.refused[0].refusal)
    for suite in ("memory", "stability", "extrapolation"):
        with pytest.raises(UsageError, match="no pass decode"):
            plan(suite, models="hgrn")


@pytest.mark.usefixtures("own_registrations")
def test_a_backend_may_have_other_passes_alone() -> None:
    entry = registry.backend("scan", "sequential")
    assert entry.passes == PASSES
    assert replace(entry, passes=PASSES[:3]).refusal(device="cpu", pass_="decode") == "no decode pass"


def test_it_is_no_default_pass() -> None:
    for suite in ("throughput", "correctness"):
        selection = Selection.of(models=("hgrn",), backends=("sequential",))
        assert "decode" not in {item.case.pass_ for item in make_plan(selection, [suite]).cases}


def test_one_call_is_profiled(tmp_path: Path) -> None:
    choices = {"device": "cpu", "models": "hgrn", "backends": "sequential", "preset": "standard"}
    selection, _ = select(**choices, axis="C=16", pass_="decode")  # type: ignore[arg-type]
    found = profiling.profile(selection, "cpu", tmp_path)
    assert (found.case.pass_, found.case.shape["T"]) == ("decode", 1)
    assert found.launches
