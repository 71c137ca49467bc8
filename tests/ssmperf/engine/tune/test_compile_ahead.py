"""Kernels are compiled beside each other before the first case, and nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.execute import executor
from ssmperf.engine.execute.executor import LocalExecutor
from ssmperf.engine.execute.lane import Events
from ssmperf.engine.judge import answer
from ssmperf.engine.judge.answer import Answer, call_backend
from ssmperf.engine.plan.run_options import RunOptions
from ssmperf.engine.processes.nursery import Nursery
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.engine.tune import ahead


def case(backend: str = "sequential", T: int = 4, **more: Any) -> Case:
    made = Case(
        suite="throughput", model="hgrn", recurrence="scan", backend=backend, shape=Shape(B=1, T=T, C=2)
    )
    return replace(made, **({"pass_": "forward"} | more))


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery((), tmp_path / "nursery.log")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MOST_BESIDE", 2)
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: set(range(8)))


def compiled(nursery: Nursery, cases: list[Case], folder: Path, **more: Any) -> dict[str, float]:
    config = {"device": "cpu", "nonce": 7, "rows": {}}
    count = ahead.processes(len(cases))
    return ahead.compile_ahead(cases, count, nursery, config, folder / "compiling.log", **more)


def test_only_kernels_on_a_gpu_are_worth_it_and_each_call_once() -> None:
    kernel = case("triton", device="cuda")
    cases = [
        kernel,
        replace(kernel, timing="end-to-end"),  # the same call
        replace(kernel, shape=Shape(B=1, T=8, C=2)),
        replace(kernel, pass_="forward_backward"),
        replace(kernel, pass_="backward"),  # whose first call makes the graph, too
        replace(kernel, device="cpu"),
        replace(kernel, backend="sequential"),
        replace(kernel, backend="unknown"),
        replace(kernel, suite="correctness"),  # its calls have an initial state
    ]
    assert ahead.worth(cases) == [cases[0], cases[2], cases[3]]


@pytest.mark.parametrize(("cores", "cases", "count"), [(16, 100, 2), (2, 100, 0), (16, 3, 0), (4, 4, 2)])
def test_there_are_processes_for_cores_and_cases(
    monkeypatch: pytest.MonkeyPatch, cores: int, cases: int, count: int
) -> None:
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda _: set(range(cores)))
    assert ahead.processes(cases) == count


def test_every_case_is_called_once_and_a_failure_is_left_out(nursery: Nursery, tmp_path: Path) -> None:
    cases = [case(T=T) for T in range(4, 10)]
    cases[2] = replace(cases[2], backend="unknown")
    cases[4] = replace(cases[4], pass_="backward")
    told: list[str] = []
    found = compiled(nursery, cases, tmp_path, on_progress=lambda _, text: told.append(text))
    assert set(found) == {each.id for each in cases if each.backend != "unknown"}
    assert all(seconds > 0 for seconds in found.values())
    assert told[-1].endswith(f"{len(found)} of {len(cases)}")
    assert "unknown backend" in (tmp_path / "compiling.log").read_text()


def test_kernels_that_only_the_judge_needs_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []

    def spy(*arguments: Any, gradients: bool, **more: Any) -> Answer:
        found = call_backend(*arguments, gradients=gradients, **more)
        asked.append((gradients, not found.problem and not found.gradient_problem))
        return found

    monkeypatch.setattr(answer, "call_backend", spy)
    ahead.first_call_s(case(pass_="backward"), torch.device("cpu"), 7)
    assert asked == [(False, True), (True, True)]
    ahead.first_call_s(case(), torch.device("cpu"), 7)
    assert len(asked) == 2


def test_calls_that_the_suite_continues_have_a_state_while_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels with and without an initial state are two."""
    asked: list[bool] = []

    def spy(function: Any, values: Any, *arguments: Any, **more: Any) -> Answer:
        asked.append("initial_state" in values.operands)
        return call_backend(function, values, *arguments, **more)

    monkeypatch.setattr(answer, "call_backend", spy)
    drawn = replace(case(pass_="backward"), model=None, operand_source="sigmoid/data")
    for made in (drawn, replace(drawn, suite="fuzz"), replace(drawn, suite="fuzz", call="stateless")):
        ahead.first_call_s(made, torch.device("cpu"), 7)
    assert asked == [False, False, True, True, False, False]


def test_its_time_is_limited(nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "LIMIT_S", 0.0)
    assert compiled(nursery, [case(T=T) for T in range(4, 10)], tmp_path) == {}


def test_a_run_without_a_nursery_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    nursery.close()
    assert compiled(nursery, [case(T=T) for T in range(4, 10)], tmp_path) == {}


@pytest.mark.slow
def test_records_have_the_first_call_that_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, float]] = []

    def spy(*arguments: Any) -> dict[str, float]:
        seen.append(ahead.compile_ahead(*arguments))
        return seen[-1]

    monkeypatch.setattr(executor, "worth", list)
    monkeypatch.setattr(executor, "compile_ahead", spy)
    records: list[Record] = []
    events = Events(lambda *_: None, lambda *_: None, records.append)
    quick = replace(PRESETS["smoke"], min_time_s=0.001, max_time_s=0.01)
    local = LocalExecutor(("cpu",), tmp_path, quick, RunOptions(timeout=60.0))
    cases = [case(T=T) for T in (4, 5, 6, 7)]
    with local.session() as session:
        for _ in range(2):
            session.run(cases, events)
    assert [record.status for record in records] == [Status.OK] * 8
    (found,) = seen  # later rounds find everything compiled
    assert [record.numbers["first_call_s"] for record in records] == [found[each.id] for each in cases * 2]
    assert all(record.numbers["reference_s"] > 0 for record in records)
