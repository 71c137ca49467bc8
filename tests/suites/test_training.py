"""The training suite: steps of whole networks, which answer for all gradients whenever they are timed."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from ssmperf.suites.networks.answers import AMONG, StepAnswers
from ssmperf.suites.networks.cases import (
    BYTES,
    MODELS,
    ORDINARY,
    block_options,
    length_reason,
    parameters_of,
)
from ssmperf.suites.networks.subject import NetworkSubject
from ssmperf.suites.networks.text import draw
from ssmperf.suites.networks.trainee import Trainee
from ssmperf.suites.training import DRAWS, TrainingMeasurement
from support.processes.in_process import records_of

from ssmperf import Case, Record, Selection, Shape, Status
from ssmperf.authoring import Block, Network
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan import make_plan
from ssmperf.engine.plan.learning import Learning
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.suitekit import Verdict, registry

PLUGIN = Path(__file__).parents[1] / "support" / "plugins" / "untrained.py"
SMALL = ["T=16", "C=16", "B=2"]


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    names = ["sequential", "blelloch", "untrained_fraction", "untrained_stops"]
    found = records_of("training", PLUGIN, models="hgrn", backends=names, axis=SMALL)
    return {record.case.backend: record for record in found}


def test_numbers_agree_with_each_other(records: dict[str, Record]) -> None:
    for backend in ("sequential", "blelloch"):
        record = records[backend]
        numbers = record.numbers
        assert str(record.status) == "ok", record.reason
        assert numbers["tokens_per_s"] == pytest.approx(2 * 16 / numbers["latency_s"])
        assert numbers["latency_low_s"] <= numbers["latency_s"] <= numbers["latency_high_s"]
        assert numbers["peak_bytes"] > numbers["kept_bytes"] > 0 and numbers["loss_finite"]
        assert numbers["last_loss"] < numbers["first_loss"]
        # two moments per parameter, and a count per tensor
        assert numbers["optimizer_bytes"] > 2 * numbers["parameter_bytes"]
        options = block_options("hgrn", record.case.shape)
        torch.manual_seed(1)
        network = Network("hgrn", record.case.shape, layers=2, vocabulary=BYTES, block_options=options)
        assert numbers["layers"] == 2 and numbers["parameters"] == parameters_of(network)
    one, other = (records[backend].numbers for backend in ("sequential", "blelloch"))
    assert one["first_loss"] == pytest.approx(other["first_loss"], rel=1e-4)


def test_a_wrong_gradient_has_no_time(records: dict[str, Record]) -> None:
    record = records["untrained_fraction"]
    assert str(record.status) == "wrong" and "gradient of" in str(record.reason)
    assert "latency_s" not in record.numbers and record.numbers["error_output"] < 1e-5


def test_a_backward_pass_that_stops_is_found_in_the_timed_steps(records: dict[str, Record]) -> None:
    record = records["untrained_stops"]
    assert str(record.status) == "wrong" and "when it was timed" in str(record.reason)
    assert "latency_s" not in record.numbers


@pytest.mark.usefixtures("own_registrations")
def test_a_step_that_skips_work_only_while_it_is_timed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "support.plugins.untrained", raising=False)
    untrained = importlib.import_module("support.plugins.untrained")  # registers its backends
    case = Case("training", "scan", "untrained_switched", Shape(B=2, T=16, C=16), "hgrn", level="block")
    make = partial(draw, 2, 16, device="cpu")
    trainee = Trainee.of(case, case.backend, 2, make(seed=0))
    for skips in (False, True):
        answers = StepAnswers(trainee, make(seed=1))
        for _ in range(AMONG + 1):
            answers.before(timed=True)
            untrained.switches["skips"] = skips and answers._seed is not None
            answers.after(trainee.step())
        untrained.switches["skips"] = False
        assert answers.kept is not None and len(set(answers.losses)) == AMONG + 1
        problem = answers.problem()
        assert (problem is None) is not skips and (not skips or "norm of the gradient of" in str(problem))


def test_parameters_that_layers_share_stay_shared() -> None:
    case = Case("training", "scan", "sequential", Shape(B=1, T=8, C=8), "hgrn", level="block")
    trainee = Trainee.of(case, "sequential", 3, draw(1, 8, 0, "cpu"))
    shared = [place for place in trainee.places.values() if place.endswith("gamma")]
    assert len(shared) == 1
    trainee.step()
    assert all(gradient is not None and gradient.any() for gradient in trainee.gradients)
    assert not all(map(torch.equal, trainee.parameters, trainee.initial))
    trainee.restore()
    assert all(map(torch.equal, trainee.parameters, trainee.initial))


@pytest.mark.parametrize(("model", "steps"), [("gated_deltanet", 8), ("rwkv7", 8), ("deltaproduct", 16)])
def test_the_recurrence_of_a_network_is_judged_on_all_its_operands_and_steps(model: str, steps: int) -> None:
    case = Case("training", "delta_rule", "sequential", Shape(B=1, T=8, H=2, K=4, V=4), model, level="block")
    batch = draw(1, 8, 0, "cpu")
    subject = NetworkSubject(case, Trainee.of(case, "sequential", 2, batch), batch)
    inner = subject.inner(subject.values())
    assert inner is not None and inner.grad_output.shape[1] == steps
    output, _ = registry.recurrence("delta_rule").definition(**inner.operands)
    assert output.shape == inner.grad_output.shape


def planned(selection: Selection) -> list[Case]:
    return [item.case for item in make_plan(selection, ["training"]).cases]


@pytest.mark.slow
def test_ordinary_models_and_few_backends_are_the_default() -> None:
    cases = planned(select(device="cpu")[0])
    found = {(case.model, case.backend) for case in cases}
    wanted = {("attention", "torch_sdpa"), ("gru", "torch_rnn"), ("lstm", "torch_rnn")}
    assert wanted | {(model, "sequential") for model in (*ORDINARY, *MODELS)} <= found
    assert {case.model for case in cases} == {name for name in registry.models() if ":" not in name}
    assert len(cases) < 1.6 * len(registry.models())
    assert {(case.level, case.pass_, case.operand_source) for case in cases} == {
        ("block", "forward_backward", "model")
    }
    on_gpu = planned(Selection(Device("cuda", 2**37, (9, 0))))
    assert {case.model for case in on_gpu} == set(MODELS)
    assert {case.dtype for case in on_gpu} == {"bfloat16"}
    blocks = {str(case.model): block(case) for case in on_gpu}
    assert {each.width for each in blocks.values()} == {768}
    transformer = parameters_of(blocks["attention"])
    for model in ("hgrn", "hgrn2", "gla", "retnet", "deltanet", "gateloop"):
        assert parameters_of(blocks[model]) == pytest.approx(transformer, rel=0.02), model
    assert 5e7 < PRESETS["standard"].training.step_layers * transformer < 2e8


def test_a_transformer_is_beside_the_models_that_are_named() -> None:
    assert {case.model for case in planned(select(device="cpu", models="mingru")[0])} == {
        "mingru",
        "attention",
    }
    (named,) = planned(select(device="cpu", models="mingru", backends="sequential")[0])
    assert named.model == "mingru"


def test_the_loop_of_a_large_cell_is_short_and_says_so() -> None:
    selection, _ = select(device="cuda", planning=True, models="gru")
    training = selection.scale.training
    cases = {case.backend: case for case in planned(selection) if case.model == "gru"}
    loop, fused = cases["sequential"], cases["torch_rnn"]
    assert fused.shape["T"] == training.step_length > loop.shape["T"]
    assert fused.shape["B"] == loop.shape["B"]
    assert str(loop.shape["T"]) in str(length_reason(loop, training, specific=False))
    assert length_reason(fused, training, specific=False) is None
    asked, _ = select(device="cuda", planning=True, models="gru", axis=["T=2048"])
    assert {case.shape["T"] for case in planned(asked)} == {2048}
    same, _ = select(device="cuda", planning=True, models="gru", axis=[f"T={loop.shape['T']}"])
    (own,) = [case for case in planned(same) if case.model == "gru" and case.backend == "sequential"]
    assert own == loop and same.is_specific
    assert length_reason(own, training, specific=same.is_specific) is None


def block(case: Case) -> Block:
    """Build a layer of a case's network, without what it gets of its depth."""
    model = registry.model(str(case.model)).cls(case.shape.with_(B=1, T=1))
    built: Block = model.block(model, **block_options(str(case.model), case.shape))
    return built


def test_the_command_of_a_record_names_its_case(records: dict[str, Record]) -> None:
    record = records["sequential"]
    words = str(record.numbers["command"]).split()
    assert words[words.index("--level") + 1] == "block"
    axis = [words[place + 1] for place, word in enumerate(words) if word == "--axis"]
    (again,) = planned(
        select(device="cpu", models="hgrn", backends="sequential", axis=axis, level="block")[0]
    )
    assert again.id == record.case.id


def test_what_no_network_can_be_trained_with_has_no_cases() -> None:
    for choices in ({"models": "scan"}, {"regime": "sigmoid"}, {"pass_": "forward"}, {"layout": "time_last"}):
        suite = registry.suite("training")
        assert not list(suite.cases(select(device="cpu", **choices)[0])), choices


def test_layers_of_the_user_are_those_of_the_timed_network() -> None:
    assert Learning(layers=5).applied(PRESETS["smoke"].training).step_layers == 5


@pytest.mark.parametrize("right_by", [1, DRAWS, DRAWS + 1])
def test_what_is_wrong_is_judged_once_more_by_several_evaluations(
    right_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, asked = object.__new__(TrainingMeasurement), list[int]()

    def reference(self: TrainingMeasurement, which: int, draws: int = 1) -> int:
        asked.append(draws)
        return draws

    monkeypatch.setattr(TrainingMeasurement, "reference", reference)
    verdict = measured.judged_by(
        lambda draws: Verdict(Status.OK) if draws >= right_by else Verdict(Status.WRONG, "planted"), 0
    )
    assert asked == ([1] if right_by == 1 else [1, DRAWS])
    assert verdict.status is (Status.WRONG if right_by > DRAWS else Status.OK)
