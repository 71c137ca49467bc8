"""The space: what is drawn is what declarations allow, and covers what they name."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ssmperf.authors.fuzzing.configurations.draws import Draws
from ssmperf.authors.fuzzing.configurations.fixed import fixed_cases
from ssmperf.authors.fuzzing.configurations.space import FuzzExample, Space, budget_of, case_of
from ssmperf.engine.cases.calls.call import parse
from ssmperf.engine.cases.case import Case
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.refusal import refusal
from ssmperf.suitekit import registry

RECURRENCES = tuple(registry.recurrences())


def space_of(owner: str, backend: str = "sequential", device: str = "cpu") -> Space:
    entry = registry.backend(owner, backend)
    return Space(owner, entry, device, budget_of(entry, device))


@functools.cache
def drawn(space: Space, classes: int = 24, seed: int = 0) -> list[Case]:
    found = itertools.islice(Draws(space, seed).classes(), classes)
    return [case for each in found for case, _ in each.cases.values()]


@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_nothing_that_is_drawn_is_refused(recurrence: str) -> None:
    selection, _ = select(device="cpu")
    cases = drawn(space_of(recurrence))
    reasons = [reason for case in cases if (reason := refusal(case, selection))]
    assert len(cases) > 90 and reasons == []


@pytest.mark.parametrize("legal", [range(8, 129, 8), (128,), range(1, 5)])
def test_sizes_are_those_that_the_backend_declares(legal: Sequence[int]) -> None:
    entry = replace(registry.backend("delta_rule", "sequential"), sizes={"K": legal}, dtypes=("bfloat16",))
    space = Space("delta_rule", entry, "cuda", budget_of(entry, "cuda"))
    cases = [*drawn(space), *fixed_cases([space])]
    assert {case.shape["K"] for case in cases} <= set(legal)
    assert len({case.shape["K"] for case in cases}) > min(len(legal), 4) - 1
    assert not any(":float32" in case.call for case in cases)
    assert max(case.shape["V"] for case in cases) > 100


def test_a_model_is_drawn_on_its_own_operands() -> None:
    selection, _ = select(device="cpu")
    cases = drawn(space_of("gla"), classes=12)
    assert {case.model for case in cases} == {"gla"}
    assert {case.operand_source.partition("/")[0] for case in cases} == {"model", "decay"}
    assert sum(refusal(case, selection) is not None for case in cases) <= len(cases) // 20


def test_every_kind_of_call_is_drawn() -> None:
    cases = drawn(space_of("linear_attention", device="cuda"), classes=150)
    calls = [parse(case.call) for case in cases]
    assert {case.dtype for case in cases} == {"float32", "float64", "bfloat16", "float16"}
    assert {case.pass_ for case in cases} == {"forward", "forward_backward", "decode"}
    assert {case.layout for case in cases} == {"channels_last", "time_last"}
    assert {word for call in calls for word in call.circumstances} >= {
        "autocast", "stateless", "stream", "graph", "inference", "checkpoint",
    }  # fmt: skip
    assert {view for call in calls for view in call.views.values()} >= {
        "strided",
        "expanded",
        "shifted",
        "missing",
    }
    assert any("G" in case.shape for case in cases) and any(case.shape["T"] > 4096 for case in cases)
    lengths = [case.packing.split(",") for case in cases if case.packing != "none"]
    assert any("0" in each for each in lengths) and any("1" in each for each in lengths)
    assert any(call.wanted for call in calls) and any(call.dtypes for call in calls)
    assert any(call.dtypes.get("v") == "complex64" for call in calls)


def test_an_example_of_another_class_keeps_what_means_something() -> None:
    """Shrinking a class puts the example of a failing one into others."""
    for each in itertools.islice(Draws(space_of("linear_attention"), 0).classes(), 30):
        example = FuzzExample(3, (4, 0), True, 2, 5, "phase", 1, ("stateless", "checkpoint", "dy:expanded"))
        case = case_of(each.kind, example)
        gradients = case.pass_ == "forward_backward"
        assert ("dy:expanded" in case.call) == ("checkpoint" in case.call) == gradients
        assert not ("stateless" in case.call and "initial_state" in case.call)


def test_equal_seeds_draw_equal_cases() -> None:
    one, same, other = (drawn(space_of("scan"), 6, seed) for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_fixed_cases_have_the_edges(recurrence: str, device: str) -> None:
    cases = fixed_cases([space_of(recurrence, device=device)])
    selection, _ = select(device=device, planning=True)
    assert all(refusal(case, selection) is None for case in cases if case.shape["T"] < 1000)
    assert {case.shape["T"] for case in cases} >= {1, 2}
    assert any(case.shape["B"] > 65_535 for case in cases)
    assert any(":far" in case.call for case in cases)
    small = {case.dtype for case in cases if case.operand_source.startswith("small/")}
    assert small <= {"float16", "bfloat16"} and (small or "float16" not in space_of(recurrence).dtypes)


def test_kernels_in_the_interpreter_have_few_programs_and_as_many_kinds_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program takes a tenth of a second there, and a case has thirty of each of its heads."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    space = space_of("linear_attention", "triton")
    cases = drawn(space, classes=100)
    assert max(case.shape["B"] * case.shape["H"] for case in [*cases, *fixed_cases([space])]) <= 8
    assert max(math.prod(case.shape[letter] for letter in "BTHKV") for case in cases) <= 1 << 11
    assert {case.pass_ for case in cases} == {"forward", "forward_backward", "decode"}
    assert {case.dtype for case in cases} >= {"float32", "float16"}
    assert any("G" in case.shape for case in cases) and any(case.shape["K"] > 64 for case in cases)


def test_a_state_of_a_call_with_phases_is_drawn_in_both_precisions() -> None:
    cases = drawn(space_of("linear_attention", device="cuda"), classes=150)
    states = {parse(case.call).dtypes.get("initial_state") for case in cases}
    assert states >= {"complex64", "complex128"}


def test_the_command_of_a_case_repeats_it() -> None:
    """`run --suite fuzz` makes the case that the words select."""
    for case in drawn(space_of("linear_attention"), classes=10):
        sizes = [f"{letter}={size}" for letter, size in case.shape.items()]
        if case.packing != "none":
            sizes = [each for each in sizes if each[0] not in "BT"]
        selection, _ = select(
            models="linear_attention", backends="sequential", device="cpu", axis=tuple(sizes),
            dtype=case.dtype, gate_dtype=case.gate_dtype, layout=case.layout, regime=case.operand_source,
            pass_=case.pass_, seed=case.seed, packing=case.packing, call=case.call,
        )  # fmt: skip
        assert [item.case for item in make_plan(selection, ["fuzz"]).cases] == [case]
