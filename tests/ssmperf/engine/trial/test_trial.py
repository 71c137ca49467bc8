"""The judge apart: it gives the same verdicts as one in this process, and the driver hears of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.in_process import CEILINGS

import ssmperf
from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.execute.lane import WINDOW_S, contradiction
from ssmperf.engine.execute.worker import is_out_of_memory
from ssmperf.engine.judge.answer import Answer, call_backend, contract_of
from ssmperf.engine.judge.reference import small_results
from ssmperf.engine.judge.tolerance import tolerance
from ssmperf.engine.judge.verdict import judge_answer
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.operands.variation import CallSecret
from ssmperf.engine.plan import nonce
from ssmperf.engine.plan.parts.household import household
from ssmperf.engine.processes.nursery import Nursery
from ssmperf.engine.processes.spares import IMPORTS
from ssmperf.engine.trial.arena import Arena, Mappings
from ssmperf.engine.trial.client import RemoteJudge
from ssmperf.engine.trial.judge import Judge
from ssmperf.engine.trial.process import JudgeProcess
from ssmperf.engine.trial.question import CaseFacts, Question
from ssmperf.errors import JudgeFailed, Unsupported, UsageError
from ssmperf.suitekit import registry

CASE = Case("throughput", "scan", "sequential", Shape(B=2, T=13, C=4), model="hgrn", pass_="backward")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    folder = tmp_path_factory.mktemp("judge")
    nursery = Nursery(IMPORTS, folder / "nursery.log")
    config = {"device": "cpu", "threads": 1, "plugins": None, "shared": False, "ceilings": CEILINGS.to_json()}
    judge = JudgeProcess(nursery, config, folder / "judge.log", 60.0)
    judge.wait_until_ready(60.0)
    yield judge
    judge.close()
    nursery.close()


@pytest.fixture(scope="module")
def remote(process: JudgeProcess) -> Iterator[RemoteJudge]:
    judge = RemoteJudge(os.dup(process.worker_socket), "cpu")
    begin(process, judge, "first", CASE)
    yield judge
    judge.close()


def begin(process: JudgeProcess, judge: RemoteJudge, number: str, case: Case, **facts: Any) -> None:
    """Let the driver announce a case, and the worker begin it."""
    process.begin(number, CaseFacts(case, **facts))
    judge.begin(number)


def answer_of(case: Case, number: int, *, factor: float = 1.0) -> Answer:
    subject = subject_of(case, "cpu")
    values = subject.values(number, with_state=False)
    definition = registry.recurrence(case.recurrence).definition
    found = call_backend(
        definition, values, contract_of(subject, definition, values), gradients=case.gradients
    )
    return Answer({name: factor * value for name, value in found.results.items()})


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_both_judges_say_the_same(remote: RemoteJudge, factor: float) -> None:
    question, answer = Question(CASE, 5, gradients=True), answer_of(CASE, 5, factor=factor)
    here, there = (judge.verdict(question, answer) for judge in (Judge("cpu"), remote))
    assert here.status is there.status is (Status.OK if factor == 1.0 else Status.WRONG)
    assert here.errors == there.errors
    assert here.tolerances == there.tolerances


def test_a_reference_without_room_is_no_crash(remote: RemoteJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"failed": "CUDA out of memory. Tried to allocate 64.00 MiB. Advice", "memory": True}
    monkeypatch.setattr(RemoteJudge, "_ask", lambda *_: told)
    with pytest.raises(torch.OutOfMemoryError, match="no room for its reference: CUDA") as raised:
        remote.verdict(Question(CASE, 1), Answer())
    assert is_out_of_memory(raised.value)  # by which the worker makes its case `oom`


def test_no_instance_of_the_client_has_a_method_of_its_own(remote: RemoteJudge) -> None:
    with pytest.raises(AttributeError):
        remote.verdict = lambda *_: None  # type: ignore[method-assign]


def test_the_driver_hears_of_each_verdict_under_its_number(
    remote: RemoteJudge, process: JudgeProcess
) -> None:
    begin(process, remote, "one", CASE, searches=True)
    remote.verdict(Question(CASE, 1, gradients=True), answer_of(CASE, 1))
    remote.verdict(Question(CASE, 1, gradients=True), answer_of(CASE, 1, factor=2.0))
    remote.verdict(Question(CASE, 1, gradients=True, counts=False), answer_of(CASE, 1, factor=2.0))
    assert remote.asked == 2
    assert process.entered("one") == ["ok", "wrong"]
    assert process.entered("another") == []


def test_without_a_search_every_verdict_counts(remote: RemoteJudge, process: JudgeProcess) -> None:
    begin(process, remote, "counted", CASE)
    remote.verdict(Question(CASE, 1, gradients=True, counts=False), answer_of(CASE, 1, factor=2.0))
    assert remote.asked == 1
    assert process.entered("counted") == ["wrong"]


def test_a_combination_is_judged_by_the_bases(remote: RemoteJudge) -> None:
    drawn = CallSecret((0.5, -1.25))
    parts = []
    for number in (0, 1):
        subject = subject_of(CASE, "cpu")
        operands = subject.values(1, with_state=False)
        values = dataclasses.replace(
            operands, grad_output=subject.values(number, with_state=False).grad_output
        )
        definition = registry.recurrence("scan").definition
        contract = contract_of(subject, definition, values)
        parts.append(call_backend(definition, values, contract, gradients=True).results)
    combined = {n: 0.5 * parts[0][n] - 1.25 * parts[1][n] for n in parts[0] if n in ("log_a", "b")}
    question = Question(CASE, 1, gradients=True, drawn=drawn)
    assert remote.verdict(question, Answer(combined)).status is Status.OK
    other = {name: value * 1.001 for name, value in combined.items()}
    assert remote.verdict(question, Answer(other)).status is Status.WRONG
    assert remote.verdict(question, Answer(dict(parts[1]))).status is Status.WRONG


def test_refusals_and_failures_cross(remote: RemoteJudge, process: JudgeProcess) -> None:
    own = dataclasses.replace(CASE, backend="surrogate_raw")
    begin(process, remote, "own", own, equivalent=False)
    with pytest.raises((Unsupported, JudgeFailed)):
        remote.verdict(Question(own, 1), answer_of(CASE, 1))
    broken = dataclasses.replace(CASE, recurrence="no_such_recurrence")
    begin(process, remote, "broken", broken)
    with pytest.raises(JudgeFailed, match="no_such_recurrence"):
        remote.verdict(Question(broken, 1), Answer())
    begin(process, remote, "first", CASE)


def test_a_worker_asks_about_its_own_case_alone(remote: RemoteJudge, process: JudgeProcess) -> None:
    begin(process, remote, "mine", CASE)
    with pytest.raises(JudgeFailed, match="another case"):
        remote.verdict(Question(dataclasses.replace(CASE, backend="blelloch"), 1), answer_of(CASE, 1))
    assert process.entered("mine") == ["its worker asked the judge about another case"]
    small = dataclasses.replace(CASE, shape=CASE.shape.with_(T=7))
    begin(process, remote, "sizes", CASE, sizes=("T",))
    assert remote.verdict(Question(small, 1, gradients=True), answer_of(small, 1)).status is Status.OK
    begin(process, remote, "first", CASE)


@pytest.mark.parametrize("words", [{"bound": 0.9}, {"equivalent": False}, {"counts": False}])
def test_what_a_worker_says_of_its_question_does_not_count(words: dict[str, Any]) -> None:
    question = Question(CASE, 1, **words)
    checked = CaseFacts(CASE).checked(question)
    assert (checked.bound, checked.equivalent, checked.counts) == (None, True, True)
    assert CaseFacts.from_json(CaseFacts(CASE, False, True, True).to_json()).checked(question).counts is (
        question.counts
    )


def test_results_of_another_shape_are_wrong(remote: RemoteJudge) -> None:
    verdict = remote.verdict(Question(CASE, 1), Answer({"output": torch.zeros(2, 4, 13)}))
    assert verdict.status is Status.WRONG
    assert verdict.reason == "output is (2, 4, 13), must be (2, 13, 4): time and channels look exchanged"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64])
def test_tensors_cross_an_arena_bit_for_bit(dtype: torch.dtype) -> None:
    arena, mappings = Arena("cpu"), Mappings("cpu")
    for size in (3, 3000, 700_000):  # the last is larger than the memory of the first
        given = {"x": torch.randn(size, 2).to(dtype).t(), "empty": torch.empty(0, 4, dtype=dtype)}
        layout = arena.write(given)
        mappings.add(arena.token, os.dup(arena.descriptor))
        found = dict(mappings.read(arena.token, layout))
        assert all(torch.equal(found[name], value) for name, value in given.items())
    layout[0]["start"] = 1 << 40
    with pytest.raises(ValueError, match="beyond the end"):
        list(mappings.read(arena.token, layout))
    arena.close()


def record(**numbers: Any) -> Record:
    return Record(CASE, Status.OK, None, "env", {"judgements": 4, **numbers})


@pytest.mark.parametrize(
    ("numbers", "entered", "timing_s", "expected"),
    [
        ({}, ["ok"] * 4, 0.0, None),
        ({}, ["ok"] * 3, 0.0, "speaks of 4 judgements, the judge has made 3"),
        ({"judgements": 3}, ["ok"] * 3, 0.0, "the judge has made 3"),
        ({"judgements": None}, [], 0.0, "the judge has made 0"),
        ({}, ["ok", "ok", "wrong", "ok"], 0.0, "the judge says wrong"),
        ({"window_s": 1.0, "samples_s": [0.1] * 9}, ["ok"] * 4, 1.1, None),
        ({"window_s": 0.1, "samples_s": [0.1]}, ["ok"] * 4, 10.0, "its clock is wrong"),
        ({"window_s": 10.0, "samples_s": [0.1]}, ["ok"] * 4, 0.1, "its clock is wrong"),
        ({"window_s": 1.0, "samples_s": [0.1] * 16 + [WINDOW_S]}, ["ok"] * 4, 1.0, "its samples take"),
    ],
)
def test_a_record_must_agree_with_judge_and_driver(
    numbers: dict[str, Any], entered: list[str], timing_s: float, expected: str | None
) -> None:
    found = contradiction(record(**numbers), entered, timing_s)
    assert found is None if expected is None else expected in str(found)


@pytest.mark.parametrize(
    ("entered", "right"),
    [
        (["wrong", "ok", "ok", "ok", "ok"], True),
        (["wrong", "wrong", "ok", "ok", "ok"], True),
        (["wrong", "wrong", "wrong", "ok", "ok"], False),
        (["wrong", "ok"], False),
    ],
)
def test_most_judgements_decide_about_an_example_near_its_tolerance(entered: list[str], right: bool) -> None:
    """`fuzz` judges it again on other values, and a process of its own then saw a wrong one."""
    fuzzed = dataclasses.replace(CASE, suite="fuzz")
    found = contradiction(
        dataclasses.replace(record(judgements=len(entered)), case=fuzzed), entered, timing_s=0.0
    )
    assert (found is None) is right


def test_a_foreign_backend_has_a_household_of_its_own(tmp_path: Path, own_registrations: None) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import ssmperf\n"
        '@ssmperf.backend("scan", name="mine")\n'
        "def mine(log_a, b, initial_state=None, *, phase=None):\n"
        "    return b, b[:, -1]\n"
    )
    registry.load_plugin(file)
    mine = household(dataclasses.replace(CASE, backend="mine"))
    assert mine.guest == "scan/mine"
    assert mine.plugins == (str(file),)
    assert household(CASE) == household(dataclasses.replace(CASE, backend="blelloch"))
    assert household(CASE).plugins == ()


def test_a_nonce_survives_its_text_and_a_resumed_run() -> None:
    number = nonce.fresh()
    text = nonce.as_text(number)
    assert nonce.parse(text) == number
    assert nonce.resumed(None, {nonce.META: text}, "here") == number
    assert nonce.resumed(number, {nonce.META: text}, "here") == number
    with pytest.raises(UsageError, match=text):
        nonce.resumed(number + nonce.SPACING, {nonce.META: text}, "here")


@pytest.mark.parametrize("text", ["", "xyz", "-1", "f" * 20])
def test_another_text_is_no_nonce(text: str) -> None:
    with pytest.raises(UsageError, match="hexadecimal"):
        nonce.parse(text)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_nonce(tmp_path: Path) -> None:
    some: dict[str, Any] = {"models": "hgrn", "axis": ["B=1", "T=8", "C=2"], "device": "cpu", "out": tmp_path}
    first = ssmperf.run("throughput", backends="sequential", pass_="forward", nonce="abc", **some)
    again = ssmperf.run("throughput", backends="blelloch", pass_="forward", resume=True, **some)
    assert first.meta[nonce.META] == again.meta[nonce.META] == nonce.as_text(nonce.parse("abc"))
    for record in again.records:
        assert record.status is Status.OK, record.reason
        assert record.numbers["command"].endswith(f"--nonce {nonce.as_text(nonce.parse('abc'))}")
    assert {record.case.id for record in first.records} < {record.case.id for record in again.records}
    with pytest.raises(UsageError, match="begun with --nonce"):
        ssmperf.run("throughput", backends="fft", pass_="forward", resume=True, nonce="abd", **some)


def test_a_right_kernel_may_round_the_keys_of_a_repeated_word_alike() -> None:
    """A text repeats its words, and what rounding their keys loses adds up: to 2 % of an output's channel."""
    shape = Shape(B=1, T=256, H=8, K=64, V=64)
    case = Case("test", "delta_rule", "sequential", shape, "rwkv7", "bfloat16", pass_="forward")
    judge, question = Judge("cpu"), Question(case, 0, with_state=False, gradients=False)
    operands = judge._values(question, 0).operands
    function = registry.backend("delta_rule", "sequential").function
    plain = judge._asked(question)
    found = []
    for by in (0.6, 0.7, 0.8, 0.9):  # as keys are multiplied by a decay
        rounded = {name: (by * operands[name].float()).bfloat16().float() / by for name in ("k", "p")}
        output, state = function(**operands | rounded)
        answer = Answer({"output": output.to(plain.contract.output_dtype), "final_state": state})
        found.append(judge_answer(answer, plain, dtype=torch.bfloat16).status)
        assert judge.verdict(question, answer).status is Status.OK, by
    assert Status.WRONG in found  # by an evaluation that moves each number by itself
    output, state = function(**operands)
    late = Answer({"output": output.roll(1, 1).to(plain.contract.output_dtype), "final_state": state})
    assert judge.verdict(question, late).status is Status.WRONG


def test_equal_numbers_are_moved_alike_inside_a_layer_too() -> None:
    case = Case(
        "test", "linear_attention", "sequential", Shape(B=1, T=256, H=2, K=16, V=16), "retnet", "bfloat16",
        pass_="forward", level="block",
    )  # fmt: skip
    judge, question = Judge("cpu"), Question(case, 0, with_state=False, gradients=False)
    plain, steady = judge._asked(question).inner, judge._asked(question, steady=True).inner
    assert plain is not None and steady is not None
    assert all(error >= plain.low_row_errors[name] for name, error in steady.low_row_errors.items())
    assert steady.low_row_errors["output"] > plain.low_row_errors["output"]


def test_under_autocast_what_is_judged_once_more_has_no_rows_either() -> None:
    case = Case(
        "test",
        "scan",
        "sequential",
        Shape(B=1, T=33, C=16),
        None,
        "float32",
        operand_source="sigmoid/data",
        call="autocast",
    )
    judge, question = Judge("cpu"), Question(case, 0, with_state=True, gradients=True)
    plain, steady = judge._asked(question), judge._asked(question, steady=True)
    assert not plain.row_axes and not steady.row_axes
    assert all(error >= plain.low_errors[name] for name, error in steady.low_errors.items())


def test_a_small_result_is_judged_once_more_by_several_low_precisions() -> None:
    """The gradient of one gate per head may be off by what the worst of eight evaluations is, and no more."""
    case = Case(
        "test", "linear_attention", "sequential", Shape(B=1, T=65, H=2, K=8, V=8), None, "float16",
        operand_source="sigmoid/const", pass_="forward_backward",
    )  # fmt: skip
    judge, question = Judge("cpu"), Question(case, 0, with_state=True, gradients=True)
    plain, steady = judge._asked(question), judge._asked(question, steady=True)
    assert small_results(plain) == ["log_a"]
    assert steady.low_errors["log_a"] > 1.2 * plain.low_errors["log_a"]
    assert all(error >= plain.low_errors[name] for name, error in steady.low_errors.items())
    limits = [tolerance(each.low_errors["log_a"], torch.float16, gradient=True) for each in (plain, steady)]
    exact = {"output": plain.exact.output, "final_state": plain.exact.final_state, **plain.exact.gradients}
    results = {name: value.to(plain.contract.output_dtype) if name == "output" else value.float()
               for name, value in exact.items() if value is not None}  # fmt: skip
    results |= {name: results[name].half() for name in ("q", "k", "v") if name in results}
    largest = float(exact["log_a"].abs().max())
    for share, status in ((0.5, Status.OK), (1.5, Status.WRONG)):
        off = limits[0] + share * (limits[1] - limits[0])
        moved = {**results, "log_a": results["log_a"] + off * largest}
        assert judge.verdict(question, Answer(moved)).status is status
