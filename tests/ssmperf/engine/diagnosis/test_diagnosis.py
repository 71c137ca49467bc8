"""Diagnoses: each planted fault is recognised at any shape, and rounding is taken for none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.results.diagnosed import Setting
from torch import Tensor

from ssmperf import Case, Record, Status
from ssmperf.engine.cases.case import split_source
from ssmperf.engine.diagnosis import explain, places, profile, variants
from ssmperf.engine.execute.request import select
from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.judge.reference import reference_of
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.trial.judge import Judge
from ssmperf.engine.trial.question import Question
from ssmperf.suitekit import Verdict

SEEDS = range(8)
OBJECTS = ("output", "final_state", "log_a", "b", "initial_state")


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_right_has_no_diagnosis(seed: int) -> None:
    setting = Setting(seed)
    verdict = setting.verdict(setting.right())
    assert (verdict.status, verdict.diagnosis) == (Status.OK, ())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_factor_is_found_and_measured(seed: int, dtype: str) -> None:
    setting = Setting(seed, dtype=dtype)
    name, factor = (
        setting.random.choice(OBJECTS),
        setting.random.choice([-3.0, -1.0, 0.1, 0.5, 1.5, 2.0, 40.0]),
    )
    results = setting.right()
    results[name] = results[name] * factor
    found = setting.found(results)
    assert found["kind"] == ("sign" if factor == -1 else "factor")
    assert found["factor"] == pytest.approx(factor, rel=0.01)
    assert found["error_explained"] < found["error"] / 10
    assert ("flipped" in found["text"]) == (factor < 0)
    if factor in (0.5, 2.0) and dtype == "float32":
        assert found["text"] == f"it is {factor:g} × the exact one"


@pytest.mark.parametrize(("factor", "text"), [(7**-0.5, "0.378 (1/√K)"), (1 - 3e-4, "(1 − 0.0003)")])
def test_a_factor_is_named_after_the_sizes_or_its_distance_from_one(factor: float, text: str) -> None:
    setting = Setting(0, "linear_attention", dtype="float32", B=2, H=2, K=7, V=5)
    results = setting.right()
    results["output"] = results["output"] * factor
    assert setting.found(results)["text"] == f"it is {text} × the exact one"


@pytest.mark.parametrize("name", ["scan", "linear_attention"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stretch_of_zeros_is_found_to_the_step(seed: int, name: str) -> None:
    setting = Setting(seed, name)
    begin = setting.random.randrange(setting.T - 2)
    end = setting.random.randrange(begin + 1, setting.T)
    results = setting.right()
    results["output"] = results["output"].clone()
    results["output"][:, begin:end] = 0
    found = setting.found(results)
    assert (found["kind"], found["steps"]["first"], found["steps"]["last"]) == ("zeros", begin, end - 1)
    assert found["steps"]["count"] == end - begin and found["steps"]["begins"] and found["steps"]["ends"]
    assert found["parts"] == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_wrong_heads_channels_and_items_are_listed(seed: int) -> None:
    setting = Setting(seed, "linear_attention")
    results, shape = setting.right(), setting.case.shape
    item, head = setting.random.randrange(shape["B"]), setting.random.randrange(shape["H"])
    results["v"] = results["v"].clone()
    results["v"][item, :, head] *= 2
    found = setting.found(results)
    assert found["parts"] == {
        "batch": {"wrong": [item], "count": 1, "of": shape["B"]},
        "heads": {"wrong": [head], "count": 1, "of": shape["H"]},
    }
    where = f"in batch item {item} of {shape['B']} and head {head} of {shape['H']}"
    assert found["text"] == f"it is 2 × the exact one {where}"


@pytest.mark.parametrize("seed", SEEDS)
def test_swapped_gradients_are_named_after_one_another(seed: int) -> None:
    setting = Setting(seed, "linear_attention")
    results = setting.right()
    results["q"], results["k"] = results["k"], results["q"]
    found = {each["object"]: each["text"] for each in setting.verdict(results).diagnosis}
    assert found == {
        "gradient of q": "it is the gradient of k",
        "gradient of k": "it is the gradient of q",
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_exchanged_axes_and_shifted_time_are_found(seed: int) -> None:
    setting = Setting(seed, "linear_attention")
    results = setting.right()
    found = setting.found({**results, "final_state": results["final_state"].mT.contiguous()})
    assert (found["kind"], found["text"]) == (
        "transposed",
        "its axes 2 and 3 (keys and values) are exchanged",
    )
    output = results["output"]
    moved = {"reversed": output.flip(TIME), "late": output.roll(1, TIME), "early": output.roll(-1, TIME)}
    for kind, value in moved.items():
        assert setting.found({**results, "output": value})["kind"] == kind


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_a_gate_is_not_that_of_its_logarithm(seed: int) -> None:
    setting = Setting(seed)
    results = setting.right()
    results["log_a"] = results["log_a"] / setting.values.operands["log_a"].exp()
    found = setting.found(results)
    assert (found["kind"], found["text"]) == ("gate", "it is that of exp(log_a), not of log_a")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_that_equals_its_first_item_is_found(seed: int) -> None:
    setting = Setting(seed)
    results = setting.right()
    results["output"] = results["output"][:1].expand_as(results["output"]).clone()
    found = setting.found(results)
    assert found["kind"] == "broadcast"
    assert found["text"] == "all batch items have the answer of the first"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_finite_is_counted_and_found(seed: int) -> None:
    setting = Setting(seed)
    results, count = setting.right(), setting.random.choice([1, 3])
    output = results["output"] = results["output"].clone()
    places_ = setting.random.sample(range(output.numel()), count)
    for place in places_:
        output.view(-1)[place] = setting.random.choice([math.nan, math.inf])
    verdict = setting.verdict(results)
    (found,) = verdict.diagnosis
    first = min(torch.nonzero(~output.isfinite()).tolist())
    assert verdict.status is Status.NAN
    assert (found["not_finite"], found["first_not_finite"]) == (count, first)
    if count == 1:
        assert found["text"] == f"it is the one at batch item {first[0]}, step {first[1]}, channel {first[2]}"


def chunked(P: int, carry: Callable[[Tensor], Tensor], detach_all: bool = False) -> Any:
    """Make a scan in chunks of P steps that changes the state between them."""

    def compute(log_a: Tensor, b: Tensor, initial_state: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        state, states = initial_state, []
        for t in range(b.shape[TIME]):
            if t and t % P == 0:
                state = carry(state)
            state = log_a[:, t].exp() * state + b[:, t]
            states.append(state)
        return torch.stack(states, TIME), state

    return compute


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_state_and_a_detached_carry_are_told_apart(seed: int) -> None:
    setting = Setting(seed)
    P = setting.random.choice([16, 32, 64, setting.T // 2])
    lost = setting.differentiated(chunked(P, torch.zeros_like))
    output = next(each for each in setting.verdict(lost).diagnosis if each["object"] == "output")
    assert output["text"] == f"as if the state were lost every {P} steps"
    assert output["steps"]["first"] == P and output["steps"]["begins"]
    verdict = setting.verdict(setting.differentiated(chunked(P, torch.Tensor.detach)))
    found = {each["object"]: each["text"] for each in verdict.diagnosis}
    assert (
        found["gradient of b"]
        == found["gradient of log_a"]
        == f"as if the carry were detached every {P} steps"
    )
    assert "output" not in found and "final_state" not in found


WRONG_OPERANDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no state": (lambda o: {"initial_state": 0 * o["initial_state"]}, "as if the initial state were 0"),
    "sign": (lambda o: {"log_a": -o["log_a"]}, "as if exp(-log_a) stood in place of exp(log_a)"),
    "no gate": (lambda o: {"log_a": 0 * o["log_a"]}, "as if exp(log_a) were 1"),
    "late gate": (
        lambda o: {"log_a": torch.cat([o["log_a"][:, :1], o["log_a"][:, :-1]], 1)},
        "as if each step had the log_a of the step before it",
    ),
    "one b": (
        lambda o: {"b": o["b"][:1].expand_as(o["b"])},
        "as if b of the first batch item were that of all",
    ),
}


@pytest.mark.parametrize("fault", WRONG_OPERANDS)
@pytest.mark.parametrize("seed", range(3))
def test_operands_that_a_backend_misreads_are_named(seed: int, fault: str) -> None:
    setting = Setting(seed)
    change, text = WRONG_OPERANDS[fault]
    operands = {name: value.double() for name, value in setting.values.tensors.items()}
    output, _ = setting.definition(**{**operands, **change(operands)})
    found = setting.found({**setting.right(), "output": output.float()})
    assert text in found["text"]


def test_a_gradient_at_the_final_state_that_is_ignored_is_named() -> None:
    setting = Setting(1)
    values = replace(setting.values, grad_state=torch.zeros_like(setting.values.grad_state))
    ignoring = reference_of(
        setting.definition, values, length=setting.T, dtype=setting.dtype, gradients=True
    ).exact.gradients
    results = {**setting.right(), **{name: value.float() for name, value in ignoring.items()}}
    texts = {each["text"] for each in setting.verdict(results).diagnosis}
    assert texts == {"as if the gradient at the final state were 0"}


@pytest.mark.slow(but=("0-1.5-*", "4-30.0-*"))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("times", [1.5, 30.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_taken_for_no_fault(seed: int, times: float, dtype: str) -> None:
    """Errors a little above the tolerance, as honest rounding may have, and far above it."""
    setting = Setting(seed, setting_name(seed), dtype)
    name = setting.random.choice(["output", "final_state", "initial_state"])
    results, generator = setting.right(), torch.Generator().manual_seed(seed)
    exact = setting.reference.expected(name)
    limit = setting.verdict(results).tolerances[explain_label(name)] * float(exact.abs().max())
    noise = (torch.rand(exact.shape, generator=generator, dtype=torch.float64) * 2 - 1) * times * limit
    if times < 3:  # of one element, since the norm of a row is small beside its largest element
        noise *= 0
    noise.view(-1)[setting.random.randrange(noise.numel())] = times * limit
    results[name] = (exact + noise).to(results[name].dtype)
    found = setting.found(results)
    assert found["kind"] is None
    of_rows = found["row_error"] / found["row_tolerance"] if found["row_tolerance"] else 0
    near = max(found["error"] / found["tolerance"], of_rows) < 3
    assert ("its tolerance at most" in found["text"]) == near


def setting_name(seed: int) -> str:
    return "scan" if seed % 2 else "linear_attention"


def explain_label(name: str) -> str:
    return name if name in ("output", "final_state") else f"gradient of {name}"


def test_a_growing_error_does_not_begin_at_a_step() -> None:
    setting = Setting(0, T=128)
    results = setting.right()
    growth = torch.logspace(-8, 0, setting.T, dtype=torch.float64)[None, :, None]
    noise = torch.randn(setting.reference.exact.output.shape, generator=torch.Generator().manual_seed(0))
    results["output"] = (setting.reference.exact.output + growth * noise).float()
    found = setting.found(results)
    assert not found["steps"]["begins"]
    assert "growing error" in found["text"]


def test_the_worst_object_comes_first_and_the_output_before_its_equals() -> None:
    setting = Setting(2)
    results = setting.right()
    results["log_a"] = results["log_a"] * 1.01
    results["b"] = results["b"] * 3
    labels = [each["object"] for each in setting.verdict(results).diagnosis]
    assert labels == ["gradient of b", "gradient of log_a"]
    results["output"], results["final_state"] = results["output"] * 2.0, results["final_state"] * 2.1
    assert [each["object"] for each in setting.verdict(results).diagnosis][:2] == ["output", "final_state"]


def test_an_error_of_rows_alone_is_explained_too() -> None:
    setting = Setting(3)
    b = setting.values.operands["b"]
    for each in (b, setting.values.operands["initial_state"]):
        each[..., 1] *= 1e-3  # a channel whose errors are nothing beside the others'
    reference = reference_of(
        setting.definition, setting.values, length=setting.T, dtype=setting.dtype, gradients=True
    )
    setting.reference = reference
    results = setting.right()
    results["output"] = results["output"].clone()
    results["output"][..., 1] *= 1.005
    verdict = setting.verdict(results)
    assert verdict.errors["output"] < verdict.tolerances["output"] and "of its size" in str(verdict.reason)
    (found,) = verdict.diagnosis
    assert found["parts"]["channels"]["wrong"] == [1]
    assert found["factor"] == pytest.approx(1.005, rel=1e-3)


def test_a_large_object_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MOST_ON_CPU", 1000)
    monkeypatch.setattr(profile, "PIECE", 100)
    exact = torch.randn(4, 100, 32, dtype=torch.float64)
    actual = exact.clone()
    actual[:, 40:] *= 2
    seen = profile.profile_of(
        actual, exact, limit=1e-6, scale=1.0, timed=True, axes=("batch", "time", "channels")
    )
    assert math.prod(map(len, seen.indices)) <= 1000
    steps = places.steps_of(seen)
    assert steps is not None and (steps.first, steps.last) == (40, 99)
    part = profile.trimmed(seen.box(), seen.worst)
    assert math.prod(map(len, part)) <= 100
    assert all(seen.worst[axis] in index for axis, index in enumerate(part))


def test_a_long_recurrence_is_computed_in_part() -> None:
    setting = Setting(0, T=600)
    evidence = variants.Evidence(setting.definition, setting.values, 600, {})
    assert variants.region_of(evidence, gradients=True, worst_item=0) is None
    region = variants.region_of(evidence, gradients=False, worst_item=0)
    assert region is not None and region.steps == variants.MOST_STEPS_FORWARD
    deep = variants.region_of(replace(evidence, deep=True), gradients=True, worst_item=0)
    assert deep is not None and deep.steps == 600
    results = setting.right()
    lost, _ = chunked(64, torch.zeros_like)(**setting.values.operands)
    assert setting.found({**results, "output": lost})["text"] == "as if the state were lost every 64 steps"


@pytest.mark.parametrize("seed", range(3))
def test_a_diagnosis_travels_as_data(seed: int) -> None:
    setting = Setting(seed)
    results = setting.right()
    results["output"] = results["output"].clone()
    results["output"][0, 5] = math.nan
    verdict = setting.verdict(results)
    again = Verdict.from_json(json.loads(json.dumps(verdict.to_json())))
    assert again.reason == verdict.reason
    record = Record(setting.case, verdict.status, verdict.reason, None, {"diagnosis": list(again.diagnosis)})
    (found,) = Record.from_json(json.loads(record.to_line())).numbers["diagnosis"]
    assert found["steps"]["first"] == 5 and len(found["envelope"]) <= 48


def test_a_diagnosis_that_fails_loses_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError("none left")

    setting = Setting(0)
    results = setting.right()
    results["output"] = results["output"] * 2
    monkeypatch.setattr(explain, "diagnose", fails)
    verdict = setting.verdict(results)
    assert verdict.status is Status.WRONG and str(verdict.reason).startswith("output: relative error")
    assert verdict.diagnosis[0]["text"].startswith("not diagnosed: MemoryError: none left")


def test_the_judge_diagnoses_what_is_wrong_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(0, C=4, B=2, T=70)
    question = Question(setting.case, 0, with_state=True, gradients=True)
    judge = Judge("cpu")
    reference = judge.reference(question)
    setting.reference = reference
    results = setting.right()
    doubled = judge.verdict(question, Answer({**results, "b": 2 * results["b"]}))
    assert doubled.diagnosis[0]["text"] == "it is 2 × the exact one"
    monkeypatch.setattr(explain, "diagnose", None)
    assert judge.verdict(question, Answer(results)).status is Status.OK


@pytest.mark.slow(but=("scan", "ratio_scan"))
@pytest.mark.parametrize(
    "name", ["scan", "linear_attention", "selective_scan", "delta_rule", "ratio_scan", "rnn"]
)
def test_every_fault_can_be_computed_for_every_recurrence(name: str) -> None:
    selection, _ = select(device="cpu", models=name, backends="sequential", dtype="float32", axis="T=35")
    cases = make_plan(selection, ["correctness"]).to_run
    kinds: dict[str | None, Case] = {}
    for case in cases:
        regime, kind = split_source(case.operand_source)
        if regime == "reset" or (regime == "sigmoid" and kind not in kinds):
            kinds[kind] = case
    assert kinds
    computed = set()
    for case in kinds.values():
        judge, question = Judge("cpu"), Question(case, 0, with_state=True, gradients=True)
        evidence = judge._evidence(question)
        assert evidence is not None
        region = variants.region_of(evidence, gradients=True, worst_item=0)
        assert region is not None
        reference = judge.reference(question)
        for variant in variants.variants(evidence, [8, 32], gradients=True):
            results = variants.evaluate(variant, evidence, region)
            computed.add(variant.kind)
            for object_, value in results.items():
                exact = variants.restricted(reference.expected(object_), object_, evidence, region)
                assert value.shape == exact.shape, (variant.text, object_)
    assert {"lost state", "detached carry", "initial state", "short"} <= computed
