"""The answer of every timed call is checked: work that only some calls leave out is found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.plugins.late import (
    TIMED,
    Planted,
    filled_at_once,
    mode_left_on,
    stale_at_times,
    subclass_when_timed,
    unseen_by_known_vectors,
    with_signature,
    without_the_last_batch_item,
)
from support.processes.in_process import CEILINGS
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ssmperf
from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.operands.variation import CallSecret
from ssmperf.engine.trial.sums import Sums
from ssmperf.engine.trial.timed_answers import FULL, FULL_ALONE, TimedAnswers
from ssmperf.suitekit import registry

SHAPES = {"scan": Shape(B=2, T=40, C=3), "ratio_scan": Shape(B=2, T=40, C=3), "rnn": Shape(B=2, T=20, C=4)}
SOURCES = {"scan": "sigmoid/data", "ratio_scan": "sigmoid/const", "rnn": "sigmoid/gru"}
PASSES = ("forward", "backward", "forward_backward")


@pytest.fixture(autouse=True)
def timed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the timed calls of each test for the faults that begin with them."""
    before = TimedAnswers.before

    def counting(self: TimedAnswers, *, timed: bool) -> None:
        TIMED["calls"] += timed
        before(self, timed=timed)

    monkeypatch.setitem(TIMED, "calls", 0)
    monkeypatch.setattr(TimedAnswers, "before", counting)


def measure(planted: Planted, recurrence: str = "scan", pass_: str = "forward", **declared: Any) -> Record:
    """Run a throughput case of the definition with a planted fault, in this process."""
    entry = registry.recurrence(recurrence)
    kinds = entry.gate_kinds
    source = SOURCES[recurrence] if SOURCES[recurrence].split("/")[1] in kinds else f"sigmoid/{kinds[0]}"
    function = planted(entry.definition)
    function.__name__ = "planted"
    ssmperf.backend(recurrence, name="planted", dtypes=("float32",), **declared)(function)
    case = Case(
        "throughput",
        recurrence,
        "planted",
        SHAPES[recurrence],
        pass_=pass_,
        cache="hot",
        operand_source=source,
    )
    return run_case(case, Context("cpu", "env", Settings(0.01, 0.1), CEILINGS))


def right(definition: Callable[..., Any]) -> Callable[..., Any]:
    return with_signature(definition, lambda **operands: definition(**operands))


class Frozen(torch.autograd.Function):
    """Passes on the first gradient that it has seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.calls = 0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        ctx.calls += 1
        if ctx.calls <= 3:
            ctx.kept = gradient.clone()
        return ctx.kept


def frozen_gradient(definition: Callable[..., Any]) -> Callable[..., Any]:
    def compute(**operands: Any) -> Any:
        output, state = definition(**operands)
        return Frozen.apply(output), state

    return with_signature(definition, compute)


def test_no_vector_is_there_to_be_found_while_the_backend_runs(
    own_registrations: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FULL, True, 0)
    monkeypatch.setitem(FULL, False, 0)
    record = measure(unseen_by_known_vectors)
    assert record.status is Status.WRONG and "a random sum over its result" in str(record.reason)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("recurrence", SHAPES)
def test_what_is_right_stays_ok(own_registrations: None, recurrence: str, pass_: str) -> None:
    record = measure(right, recurrence, pass_)
    assert record.status is Status.OK, record.reason


@pytest.mark.parametrize("planted", [stale_at_times, without_the_last_batch_item])
@pytest.mark.parametrize("recurrence", ["scan", "ratio_scan"])
def test_work_left_out_of_some_calls_is_found(
    own_registrations: None, recurrence: str, planted: Planted
) -> None:
    record = measure(planted, recurrence)
    assert record.status is Status.WRONG
    assert "when it was timed" in str(record.reason)


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.parametrize(("value", "reason"), [(math.nan, "unwritten"), (0.5, "another answer")])
def test_one_call_on_a_mixture_that_is_left_out_is_found(
    own_registrations: None, monkeypatch: pytest.MonkeyPatch, value: float, reason: str, attempt: int
) -> None:
    """Where few calls are timed, chance spares none."""
    monkeypatch.setattr("ssmperf.engine.trial.timed_answers.KINDS", (True,))
    monkeypatch.setattr("ssmperf.engine.trial.timed_answers.FULL", {True: 0, False: 0})
    record = measure(filled_at_once(value))
    assert record.status is Status.WRONG and reason in str(record.reason), record.reason


def test_a_gradient_that_does_not_follow_is_found(own_registrations: None) -> None:
    record = measure(frozen_gradient, "scan", "backward")
    assert record.status is Status.WRONG
    assert "when it was timed" in str(record.reason)


@pytest.mark.parametrize(("together_s", "hidden_s"), [(7.0, 4.0), (3.5, None)])
@pytest.mark.parametrize("pass_", ["backward", "forward_backward"])
def test_hidden_work_is_looked_for_twice_on_fresh_values(
    own_registrations: None,
    monkeypatch: pytest.MonkeyPatch,
    pass_: str,
    together_s: float,
    hidden_s: float | None,
) -> None:
    seconds, observers = iter([1.0, 2.0, 7.0, 1.0, 2.0, together_s]), []

    def median_s(self: Context, *arguments: Any, observer: Any = None, **options: Any) -> float:
        observers.append(observer)
        return next(seconds)

    monkeypatch.setattr(Context, "median_s", median_s)
    monkeypatch.setattr(Context, "is_guest", lambda *_: True)
    record = measure(right, pass_=pass_)
    assert record.status is Status.OK, record.reason
    assert record.numbers.get("hidden_s") == (hidden_s if pass_ == "backward" else None)
    assert any("hidden" in doubt for doubt in record.numbers["doubts"]) is (hidden_s is not None)
    passes = [each.answers.variation.pass_ for each in observers]
    assert passes == ["forward", "backward", "forward_backward"] * 2


def test_a_function_of_its_own_is_timed_on_mixtures(own_registrations: None) -> None:
    def squared(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Any = None) -> Any:
        output, state = registry.recurrence("scan").definition(log_a, b, initial_state, phase=phase)
        return output * output.abs(), state

    record = measure(lambda _: squared, equivalent=False, definition=squared)
    assert record.status is Status.OK, record.reason


FEWEST_TIMED = 7  # a pilot of one sample, and six more


def kinds_drawn(timed: int, seed: int) -> list[bool]:
    """Draw which of so many timed calls are on mixtures, where answers combine."""
    drawn: list[CallSecret] = []
    answers = TimedAnswers.__new__(TimedAnswers)
    answers.variation = SimpleNamespace(  # type: ignore[assignment]
        combines=True, draw=lambda secret, mixed: CallSecret(seed=1 if mixed else None)
    )
    answers.secret, answers.draws, answers._kinds = random.Random(seed), drawn, []  # type: ignore[assignment]
    answers._write, answers._spoil = drawn.append, lambda: None  # type: ignore[method-assign]
    for _ in range(timed):
        answers.before(timed=True)
    return [each.seed is not None for each in drawn]


def test_the_fewest_timed_calls_have_both_kinds_in_any_order() -> None:
    """Otherwise nothing is compared, and the median may be that of answers that are only combined."""
    drawn = [kinds_drawn(FEWEST_TIMED, seed) for seed in range(100)]
    assert {sum(each) for each in drawn} == {3, 4}
    assert all({each[place] for each in drawn} == {True, False} for place in range(FEWEST_TIMED))


@pytest.mark.parametrize("combines", [True, False])
def test_any_timed_call_may_be_judged_in_full(combines: bool) -> None:
    """Which ones is drawn after they were made, and each is as likely as any other of its kind."""
    counts = dict.fromkeys(range(12), 0)
    for seed in range(600):
        answers = TimedAnswers.__new__(TimedAnswers)
        answers.secret = random.Random(seed)  # type: ignore[assignment]
        answers.variation = SimpleNamespace(combines=combines)  # type: ignore[assignment]
        answers._kept, answers._seen = {True: [], False: []}, {True: 0, False: 0}
        for call in range(12):
            answers.drawn = CallSecret(seed=call if call % 2 or not combines else None)
            answers._keep(call)
        kept = {mixed: [result for _, result in found] for mixed, found in answers._kept.items()}
        assert {mixed: len(found) for mixed, found in kept.items()} == (
            FULL if combines else {True: FULL_ALONE, False: 0}
        )
        for call in (*kept[True], *kept[False]):
            counts[call] += 1
    expected = [600 * (FULL[bool(call % 2)] / 6 if combines else FULL_ALONE / 12) for call in counts]
    assert list(counts.values()) == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize(
    ("planted", "reason"), [(mode_left_on, "left a mode of torch on"), (subclass_when_timed, "no plain")]
)
def test_a_lazy_result_of_a_timed_call_is_found(
    own_registrations: None, planted: Planted, reason: str
) -> None:
    try:
        record = measure(planted)
    finally:
        while _get_current_dispatch_mode_stack():
            _get_current_dispatch_mode_stack()[-1].__exit__(None, None, None)
    assert record.status is Status.WRONG and reason in str(record.reason), record.reason


def test_the_fewest_timed_calls_are_compared() -> None:
    for mixed in ([0, 2, 4], [1, 2, 4, 6]):
        few = TimedAnswers.__new__(TimedAnswers)
        few.draws = [CallSecret(seed=each if each in mixed else None) for each in range(FEWEST_TIMED)]
        assert few._combining([1.0 if each in mixed else 0.1 for each in range(FEWEST_TIMED)]) is None
        assert few.uneven is not None


@pytest.mark.parametrize("stale", [False, True])
def test_equal_sums_of_two_mixtures_are_found_only_if_an_answer_is_not_its_own(stale: bool) -> None:
    """A thousand pairs of float32 sums hold two equal ones by chance, once in some ten thousand cases."""
    answers = TimedAnswers.__new__(TimedAnswers)
    answers.draws = [CallSecret(seed=each) for each in range(30)]
    answers.variation = SimpleNamespace(combines=True)  # type: ignore[assignment]
    answers.secret = random.Random(0)  # type: ignore[assignment]
    answers._repeats = lambda index, _, **__: not stale or index != 17  # type: ignore[method-assign]
    alike = {each: (float(each % 14 if each in (3, 17) else 100 + each),) for each in range(30)}
    answers._sums = SimpleNamespace(alike=lambda: alike)  # type: ignore[assignment]
    found = answers._repeating([[0.0] for _ in alike])
    assert found == ("timed calls 4 and 18 gave the same answer to different values" if stale else None)


@pytest.mark.parametrize("first", [0, 1])
def test_an_answer_that_is_returned_again_is_found_by_calls_that_return_it_again(first: int) -> None:
    """Every other call returns the last one's answer, also of those that look for it."""
    kept: list[Tensor] = []

    def call(drawn: CallSecret) -> Tensor:
        kept.append(kept[-1] if len(kept) % 2 != first and kept else torch.randn(64, generator=seeded(drawn)))
        return kept[-1]

    answers = TimedAnswers.__new__(TimedAnswers)
    answers.secret = random.Random(first)  # type: ignore[assignment]
    answers.variation = SimpleNamespace(  # type: ignore[assignment]
        combines=False, draw=lambda secret, mixed: CallSecret(seed=secret.randrange(2**20))
    )
    answers._call = call  # type: ignore[method-assign]
    answers.draws = [CallSecret(seed=seed) for seed in range(FEWEST_TIMED)]
    answers._sums = Sums([torch.zeros(64)], answers.secret)
    answers._limits = [1e-4]
    for drawn in answers.draws:
        answers.sums.add([call(drawn)], None)
    assert "gave the same answer" in str(answers._repeating(answers.sums.products()))


def seeded(drawn: CallSecret) -> torch.Generator:
    assert drawn.seed is not None
    return torch.Generator().manual_seed(drawn.seed)


def draws_in_turn(count: int) -> TimedAnswers:
    """Make an observer that has seen calls on combinations and mixtures in turn."""
    answers = TimedAnswers.__new__(TimedAnswers)
    answers.draws = [CallSecret(seed=None if index % 2 else index) for index in range(count)]
    return answers


def test_few_calls_that_differ_by_chance_are_not_wrong_but_asked_again() -> None:
    few, many = draws_in_turn(8), draws_in_turn(60)
    assert few._combining([6.0, 1.0] * 4) is None
    assert few.uneven is not None and "chance" in few.uneven
    assert "does not do the same work" in str(many._combining([6.0, 1.0] * 30))
    assert many._combining([1.0, 1.1] * 30) is None and many.uneven is None


@pytest.mark.parametrize(("pass_", "level"), [*((each, "op") for each in PASSES), ("backward", "block")])
def test_an_uneven_case_is_timed_again_with_more_calls(
    pass_: str, level: str, own_registrations: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a backward pass the operands are part of a graph, of a layer with the weights that it keeps."""
    asked: list[int | None] = []
    timed, judged = Context.time, TimedAnswers._combining

    def time(self: Context, *arguments: Any, samples: int | None = None, **options: Any) -> Any:
        asked.append(samples)
        return timed(self, *arguments, samples=samples, **options)

    def chance(self: TimedAnswers, seconds: Any) -> str | None:
        found = judged(self, seconds)
        self.uneven = "it may be chance" if len(asked) == 1 else self.uneven
        return found

    monkeypatch.setattr(Context, "time", time)
    monkeypatch.setattr(TimedAnswers, "_combining", chance)
    if level == "op":
        record = measure(right, pass_=pass_)
    else:
        case = Case("throughput", "scan", "sequential", SHAPES["scan"], "hgrn", pass_=pass_, level="block")
        record = run_case(case, Context("cpu", "env", Settings(0.01, 0.1), CEILINGS))
    assert record.status is Status.OK and asked == [None, 60], record.reason
    assert record.numbers["samples"] >= 60 and "it may be chance" not in record.numbers["doubts"]
