"""The forecast of a run's time: it exists for every suite and device, and grows with what there is to do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ssmperf import Shape
from ssmperf.engine.cases.case import MODEL, Case
from ssmperf.engine.execute.request import select
from ssmperf.engine.operands.build import operand_specs
from ssmperf.engine.plan.estimate import COMPILE_S, COMPILED_BESIDE, SHAPE_S, expected_s
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.refusal import declared_bytes, predicted_call_s
from ssmperf.suitekit import registry


@pytest.mark.slow(but=("cpu",))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_of_every_suite_has_a_forecast(device: str) -> None:
    """Known answers have shapes of other recurrences, and trainings no call."""
    selection, _ = select(device=device, planning=True, models="hgrn,gru,scan,delta_rule")
    named, _ = select(
        device=device, planning=True, models="scan,delta_rule", backends="sequential", axis=["T=64"]
    )
    for suite in registry.suites():
        cases = make_plan(named if suite == "fuzz" else selection, [suite]).to_run
        assert 0 < expected_s(cases) < math.inf
        assert expected_s(cases[:1]) < expected_s(cases)


def test_it_grows_with_rounds_and_falls_with_devices() -> None:
    selection, _ = select(device="cuda", planning=True, models="gla", backends="triton,sequential")
    cases = make_plan(selection, ["throughput"]).to_run
    once, thrice, shared = expected_s(cases), expected_s(cases, rounds=3), expected_s(cases, devices=2)
    assert shared < once < thrice < 3 * once


def test_a_kernel_is_compiled_once() -> None:
    selection, _ = select(device="cuda", planning=True, models="gla", backends="triton", pass_="forward")
    first = make_plan(selection, ["throughput"]).to_run[0]
    again, other = replace(first, seed=first.seed + 1), replace(first, dtype="float32")
    compiled_s = expected_s([first, other]) - expected_s([first, again])
    assert compiled_s == pytest.approx(COMPILE_S / COMPILED_BESIDE)
    elsewhere = [replace(case, suite="correctness") for case in (first, again, other)]
    found = expected_s([elsewhere[0], elsewhere[2]]) - expected_s(elsewhere[:2])
    assert found == pytest.approx(COMPILE_S)  # one after the other


def test_a_backend_that_is_compiled_for_each_shape_is_compiled_once_for_each() -> None:
    selection, _ = select(device="cuda", planning=True, models="gla", backends="torch_scan", regime="model")
    cases = [c for c in make_plan(selection, ["stability"]).to_run if c.dtype == "float32"]
    once = expected_s(cases[:1])
    assert expected_s([cases[0], cases[0]]) - once < SHAPE_S < expected_s(cases[:2]) - once


def test_constant_gates_of_each_channel_are_forecast_like_key_gates() -> None:
    shape = Shape(B=1, T=64, H=1, K=16, V=8)
    case = Case("correctness", "linear_attention", "surrogate", shape, device="cuda", operand_source=MODEL)

    def forecast(model: str) -> tuple[float | None, float]:
        named = replace(case, model=model)
        return declared_bytes(named), predicted_call_s(named)

    entries = registry.models().items()
    constant = [name for name, e in entries if (e.recurrence, e.gate) == ("linear_attention", "const")]
    gates = {name: dict(operand_specs(name, shape))["log_a"] for name in constant}
    by_channel = [name for name, spec in gates.items() if spec == ((1, 16), False)]
    assert "rwkv5" in by_channel
    assert len(by_channel) < len(constant)
    for name in constant:
        assert forecast(name) == forecast("rwkv6" if name in by_channel else "retnet")
    assert forecast("rwkv6") > forecast("retnet")


def test_packed_sequences_are_launched_in_turn() -> None:
    case = Case(
        "throughput",
        "linear_attention",
        "sequential",
        Shape(B=1, T=96, H=2, K=16, V=16),
        operand_source="sigmoid/key",
        device="cuda",
    )
    alone = predicted_call_s(replace(case, shape=case.shape.with_(T=32)))
    packed = predicted_call_s(replace(case, packing="32x3,0"))
    assert packed == pytest.approx(3 * alone, rel=0.05)
