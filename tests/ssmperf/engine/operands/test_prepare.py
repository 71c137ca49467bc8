"""Kernels with a native form: judged with their preparation, timed without it, or with it end to end."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Case, Record, Shape, Status, UnknownName
from ssmperf.authoring import Prepared
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.measure.passes import TimedPass, pass_of
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.values import call_of
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.registry import discovery, tables
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.suitekit import registry

NAME = "planted_native"
SLEEP_S = 0.02
CASE = Case(
    suite="throughput",
    recurrence="scan",
    backend=NAME,
    shape=Shape(B=2, T=9, C=3),
    operand_source="sigmoid/data",
    cache="hot",
)
PASSES = ("forward", "backward", "forward_backward")
calls: Counter[str] = Counter()


def to_native(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Any = None
) -> Prepared:
    """Put time last and take gates out of logs, slowly."""
    calls["prepare"] += 1
    time.sleep(SLEEP_S)
    gates = log_a.exp().expand(b.shape).to(b.dtype)
    state = None if initial_state is None else initial_state[..., None]
    return Prepared((gates.mT.contiguous(), b.mT.contiguous(), state), back)


def back(raw: Any) -> tuple[Tensor, Tensor]:
    calls["finish"] += 1
    return raw[0].mT, raw[1].to(torch.promote_types(raw[1].dtype, torch.float32))


def loop(gates: Tensor, inputs: Tensor, state: Tensor | None) -> Any:
    """Compute the states of all steps, (B, C, T), and the last one."""
    calls["native"] += 1
    h = torch.zeros_like(inputs[..., :1]) if state is None else state
    states = []
    for a_t, b_t in zip(gates.split(1, -1), inputs.split(1, -1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.cat(states, -1), states[-1][..., 0]


def register(prepare: Any) -> Any:
    return ssmperf.backend("scan", name=NAME, prepare=prepare)(loop)


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    yield
    discovery.forget({("backend", f"scan/{NAME}")} & set(tables.origins), set())


def measure(**changes: Any) -> Record:
    ceilings = Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0)
    context = Context("cpu", "env", Settings(0.001, 0.05), ceilings)
    return run_case(replace(CASE, **changes), context)


def measured(pass_: str, timing: str = "native") -> tuple[TimedPass, Any]:
    case = replace(CASE, pass_=pass_, timing=timing)
    values = subject_of(case, "cpu").values(0, with_state=False)
    backend = registry.backend("scan", NAME)
    return pass_of(case, backend, backend.function, values), values


@pytest.mark.parametrize("pass_", PASSES)
def test_a_native_call_prepares_nothing_and_an_end_to_end_call_all(pass_: str) -> None:
    register(to_native)
    for timing, prepared in (("native", 0), ("end-to-end", int(pass_ != "backward"))):
        work, _ = measured(pass_, timing)
        calls.clear()
        work.call()
        assert (calls["prepare"], calls["finish"]) == (prepared, prepared)
        assert calls["native"] == int(pass_ != "backward")


@pytest.mark.slow(but=("forward",))
@pytest.mark.parametrize("pass_", PASSES)
def test_both_timings_are_right_and_recorded(pass_: str) -> None:
    register(to_native)
    native, whole = (measure(pass_=pass_, timing=timing) for timing in ("native", "end-to-end"))
    for record in (native, whole):
        assert record.status is Status.OK, record.reason
        assert record.case.pass_ == pass_
    assert native.case.id != whole.case.id
    if pass_ != "backward":  # the graph of a backward pass is made before it is timed
        assert whole.numbers["latency_s"] >= SLEEP_S


@pytest.mark.parametrize("timing", ("native", "end-to-end"))
@pytest.mark.parametrize("pass_", ("backward", "forward_backward"))
def test_gradients_of_the_timed_call_are_the_operands(pass_: str, timing: str) -> None:
    register(to_native)
    work, values = measured(pass_, timing)
    for factor in (1.0, -2.0):
        values.grad_output.mul_(factor)
        definition = registry.recurrence("scan").definition
        expected = call_of("forward_backward", definition, values)()
        work.refresh()
        found = work.results(work.call())
        assert list(found) == ["log_a", "b"]
        for gradient, wanted in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("pass_", PASSES)
def test_what_is_touched_can_be_rewritten_between_calls(pass_: str) -> None:
    register(to_native)
    work, values = measured(pass_)
    assert work.touched
    with torch.no_grad():
        for tensor in work.touched:
            tensor.view(-1)[:1].mul_(1)
    work.call()
    if pass_ != "forward":
        assert work.results(work.call())["b"].shape == values.operands["b"].shape


@pytest.mark.slow(but=("forward_backward",))
@pytest.mark.parametrize("pass_", PASSES)
def test_a_clock_may_take_a_step_before_its_first_values(pass_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a GPU does, to learn how long the host needs for it."""
    timed = Context.median_s

    def early(self: Context, case: Case, call: Callable[[], Any], **options: Any) -> float:
        call()
        return timed(self, case, call, **options)

    monkeypatch.setattr(Context, "median_s", early)
    register(to_native)
    record = measure(pass_=pass_)
    assert record.status is Status.OK, record.reason
    assert record.numbers["finish_s"] >= 0


def test_a_wrong_preparation_is_wrong() -> None:
    def doubled(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        return to_native(2 * log_a, b, initial_state)

    register(doubled)
    record = measure()
    assert record.status is Status.WRONG
    assert "output: relative error" in str(record.reason)
    assert "latency_s" not in record.numbers


def test_a_wrong_way_back_is_wrong() -> None:
    def reversed_(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        prepared = to_native(log_a, b, initial_state)
        return replace(prepared, finish=lambda raw: (raw[0].mT.flip(1), raw[1]))

    register(reversed_)
    assert measure().status is Status.WRONG


@pytest.mark.parametrize("pass_", PASSES[1:])
def test_a_preparation_that_loses_a_gradient_is_wrong(pass_: str) -> None:
    def cut(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        return to_native(log_a.detach(), b, initial_state)

    register(cut)
    record = measure(pass_=pass_)
    assert record.status is Status.WRONG
    assert "no gradient reaches log_a" in str(record.reason)
    work, _ = measured(pass_)
    assert work.results(work.call())["log_a"] is None


@pytest.mark.parametrize("pass_", PASSES)
def test_a_refusal_of_the_preparation_is_unsupported(pass_: str) -> None:
    def refuses(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        raise ssmperf.Unsupported("not in this layout")

    register(refuses)
    record = measure(pass_=pass_)
    assert (record.status, record.reason) == (Status.UNSUPPORTED, "not in this layout")


def test_the_decorated_function_stays_the_native_call() -> None:
    assert register(to_native) is loop
    backend = registry.backend("scan", NAME)
    assert backend.native is loop
    assert backend.prepare is to_native
    log_a, b = -torch.rand(2, 5, 3), torch.randn(2, 5, 3)
    state = torch.randn(2, 3)
    found = ssmperf.compute("scan", NAME, log_a, b, state)
    for got, wanted in zip(found, registry.recurrence("scan").definition(log_a, b, state), strict=True):
        torch.testing.assert_close(got, wanted)


def test_no_operand_counts_wider_than_the_native_ones() -> None:
    def halves(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Prepared:
        prepared = to_native(log_a, b, initial_state)
        gates, inputs, state = prepared.operands
        return replace(prepared, operands=(gates.bfloat16(), inputs, state))

    register(to_native)
    work, _ = measured("forward")
    assert {name: spec.itemsize for name, spec in work.specs.items()} == {"log_a": 4, "b": 4}
    discovery.forget({("backend", f"scan/{NAME}")}, set())
    register(halves)
    for pass_ in PASSES:
        work, _ = measured(pass_)
        assert {name: spec.itemsize for name, spec in work.specs.items()} == {"log_a": 2, "b": 2}


def test_the_example_of_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "their_scan" in block
    ]
    package = ModuleType("their_package")
    vars(package)["scan"] = lambda gates, inputs: loop(gates, inputs, None)[0]
    package.__spec__ = ModuleSpec("their_package", None)
    monkeypatch.setitem(sys.modules, "their_package", package)
    exec(code.replace("their_scan", NAME), {"__name__": "example"})
    for pass_ in PASSES:
        record = measure(pass_=pass_)
        assert record.status is Status.OK, record.reason


def test_timings_that_can_be_selected() -> None:
    assert Selection.of(timing="end-to-end").chosen("timing") == "end-to-end"
    with pytest.raises(UnknownName, match="end-to-end, native"):
        Selection.of(timing="wall")
