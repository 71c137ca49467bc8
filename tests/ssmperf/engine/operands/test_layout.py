"""The layout `time_last`: the same operands with time innermost, in every call that is judged or measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Case, Record, Shape, Status, UsageError
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.request import select
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.suitekit import registry

CASE = Case(
    "throughput", "scan", "spy", Shape(B=2, T=9, C=3), "hgrn", layout="time_last", cache="hot", device="cpu"
)
SUITES = [
    ("correctness", "forward_backward"),
    ("throughput", "forward"),
    ("throughput", "backward"),
    ("throughput", "forward_backward"),
    ("memory", "forward_backward"),
    ("stability", "forward"),
    ("extrapolation", "forward"),
]


def measure(case: Case) -> Record:
    ceilings = Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0)
    return run_case(case, Context("cpu", "env", Settings(0.001, 0.01), ceilings))


class Scan(torch.autograd.Function):
    """Computes the definition with its gradients by autograd, and records the strides of its operands."""

    seen: ClassVar[list[tuple[str, tuple[int, ...], int]]] = []

    @staticmethod
    def forward(ctx: Any, log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Any:
        for name, value in (("log_a", log_a), ("b", b)):
            Scan.seen.append((name, tuple(value.shape), value.stride(1)))
        ctx.save_for_backward(log_a, b, initial_state)
        return registry.recurrence("scan").definition(log_a, b, initial_state)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor) -> Any:  # type: ignore[override]
        Scan.seen.append(("gradient", tuple(grad.shape), grad.stride(1)))
        if torch.is_grad_enabled():
            raise ssmperf.Unsupported("no second derivatives")
        leaves = [x if x is None else x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            ends = registry.recurrence("scan").definition(*leaves)
        given = [x for x in leaves if x is not None]
        return (*torch.autograd.grad(ends, given, [grad, grad_state]), *[None] * (3 - len(given)))


@pytest.fixture
def seen(own_registrations: None) -> list[tuple[str, tuple[int, ...], int]]:
    """Record the name, shape and stride over time of every operand that a backend gets."""

    @ssmperf.backend("scan", name="spy")
    def spy(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Any:
        return Scan.apply(log_a, b, initial_state)

    Scan.seen.clear()
    return Scan.seen


@pytest.mark.parametrize(("suite", "pass_"), SUITES)
def test_every_call_of_a_suite_finds_time_innermost(
    seen: list[tuple[str, tuple[int, ...], int]], suite: str, pass_: str
) -> None:
    bare = {"model": None, "operand_source": "sigmoid/data"} if suite == "stability" else {}
    record = measure(replace(CASE, suite=suite, pass_=pass_, **bare))  # type: ignore[arg-type]
    assert record.status is Status.OK, record.reason
    assert {name for name, _, _ in seen} >= ({"b", "log_a"} if pass_ == "forward" else {"b", "gradient"})
    assert {stride for _, _, stride in seen} == {1}
    if pass_ != "forward" and suite != "memory":
        assert set(record.numbers["errors"]) >= {"gradient of b", "gradient of log_a"}


def test_channels_are_innermost_unless_it_is_asked_for(seen: list[tuple[str, tuple[int, ...], int]]) -> None:
    measure(replace(CASE, layout="channels_last", pass_="backward"))
    assert {stride for _, shape, stride in seen if shape[1] == 9} == {3}


@pytest.mark.usefixtures("own_registrations")
def test_a_backend_that_takes_memory_for_the_operands_is_wrong() -> None:
    definition = registry.recurrence("scan").definition

    @ssmperf.backend("scan", name="spy")
    def by_memory(log_a: Tensor, b: Tensor, initial_state: Any = None, *, phase: Any = None) -> Any:
        as_channels_last = (x.as_strided(x.shape, (27, 3, 1)) for x in (log_a, b))
        return definition(*as_channels_last, initial_state)

    assert measure(CASE).status is Status.WRONG
    assert measure(replace(CASE, layout="channels_last")).status is Status.OK


@pytest.mark.parametrize("source", ["sigmoid/data", "sigmoid/const", "phase/data_complex"])
def test_the_values_are_the_same(source: str) -> None:
    case = replace(CASE, model=None, operand_source=source)
    last, first = (
        subject_of(replace(case, layout=layout), "cpu").values(0, with_state=True)
        for layout in ("time_last", "channels_last")
    )
    assert last.operands.keys() == first.operands.keys()
    for name, value in [*last.tensors.items(), ("gradient", last.grad_output)]:
        other = first.grad_output if name == "gradient" else first.operands[name]
        assert torch.equal(value, other)
        timed = value.dim() == 3 and value.shape[1] == 9
        assert value.stride() == ((27, 1, 9) if timed else other.stride())
        assert other.is_contiguous()


def plan(**choices: Any) -> Plan:
    selection, _ = select(**{"device": "cpu", "models": "hgrn", "backends": "sequential", **choices})
    return make_plan(selection, ["throughput"])


def test_it_is_planned_beside_the_other() -> None:
    cases = [item.case for item in plan(layout="channels_last,time_last", pass_="forward").cases]
    layouts = [case.layout for case in cases if case.shape["T"] == cases[0].shape["T"]]
    assert sorted(layouts) == ["channels_last", "time_last"]


def test_what_cannot_take_it_says_why() -> None:
    entry = replace(registry.backend("scan", "sequential"), layouts=("channels_last",))
    assert entry.refusal(device="cpu", layout="time_last") == "no time_last layout (it takes channels_last)"
    assert entry.refusal(device="cpu", layout="channels_last") is None
    assert "block" in str(plan(layout="time_last", level="block").refused[0].refusal)
    with pytest.raises(UsageError, match="valid: channels_last, time_last"):
        replace(entry, layouts=("sideways",))


@pytest.mark.usefixtures("own_registrations")
def test_a_declared_layout_is_refused_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(registry.backend("scan", "sequential"), layouts=("channels_last",))
    monkeypatch.setattr(registry, "backend", lambda owner, name: entry)
    planned = plan(layout="time_last", pass_="forward").cases
    assert {item.refusal for item in planned} == {"no time_last layout (it takes channels_last)"}


def test_bits_are_compared_between_calls_of_one_layout() -> None:
    """Complex operators on a CPU may round differently if strides differ."""
    shape = Shape(B=2, T=67, C=64)
    bare = replace(CASE, suite="correctness", model=None, backend="sequential", shape=shape)
    record = measure(replace(bare, operand_source="phase/data_complex", pass_="forward_backward"))
    assert record.status is Status.OK, record.reason
