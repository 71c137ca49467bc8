"""A state with a row for every step, as a cache has: contract, oracle, samples, decode plans, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import ssmperf
from ssmperf import Shape
from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.request import select
from ssmperf.engine.judge.loops.parallel_segments import segment_length
from ssmperf.engine.judge.loops.segments import measure_step
from ssmperf.engine.judge.oracle import evaluate
from ssmperf.engine.judge.tolerance import relative_error
from ssmperf.engine.operands.build import sample_state
from ssmperf.engine.operands.time_axis import with_time
from ssmperf.engine.operands.values import contract, draw_cotangents
from ssmperf.engine.plan import make_plan
from ssmperf.engine.plan.refusal import refusal
from ssmperf.engine.plan.sizes import one_token, parse_sizes
from ssmperf.suitekit import registry

GROWING = registry.recurrence("softmax_attention")
SHAPE = Shape(B=2, T=29, H=2, K=3, V=4)


def draw(recurrence: str, kind: str, *, past: int | None = None, T: int = 29, H: int = 2) -> dict[str, Any]:
    entry, generator = registry.recurrence(recurrence), torch.Generator().manual_seed(0)
    letters = {letter: SHAPE.get(letter, 3) for letter in entry.presets["smoke"][0]} | {"T": T}
    shape = Shape({**letters, **({"H": H} if "H" in letters else {})})
    drawn = entry.sample(shape, regime="gla", generator=generator, gate_kind=kind)
    given = {name: value for name, value in drawn.items() if value is not None or name in entry.required}
    if past is not None:
        given["initial_state"] = sample_state(entry, given, generator, T=T, past=past)
    return given


@pytest.mark.parametrize("T", [1, 2, 29])
@pytest.mark.parametrize("past", [None, 5])
@pytest.mark.parametrize("kind", GROWING.gate_kinds)
def test_the_contract_has_the_rows_after_all_steps(kind: str, past: int | None, T: int) -> None:
    given = draw("softmax_attention", kind, past=past, T=T)
    output, state = contract(GROWING.definition, given, T)
    _, final = GROWING.definition(**given)
    assert (state.shape, state.dtype) == (final.shape, final.dtype)
    assert final.shape[1] == T + (past or 0)
    assert output.shape[1] == 1


@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize(
    "recurrence", [name for name, each in registry.recurrences().items() if each.has_state]
)
def test_growth_is_found_and_declared_alike(recurrence: str, H: int) -> None:
    """The number of heads, the second axis of other states, must not be taken for a number of rows."""
    entry = registry.recurrence(recurrence)
    given = draw(recurrence, entry.gate_kinds[0], H=H)
    _, state = contract(entry.definition, given, 29)
    _, final = entry.definition(**given)
    assert state.shape == final.shape
    step = measure_step(entry.definition, given, with_time(given, 29), None)
    assert step is not None and step.grows == entry.grows


@pytest.mark.parametrize("past", [None, 4])
def test_the_oracle_gives_the_same_in_segments(past: int | None) -> None:
    given = draw("softmax_attention", "scalar", past=past)
    output, state = GROWING.definition(**given)
    cotangents = dict(zip(("grad_output", "grad_state"), draw_cotangents(output, state, 3), strict=True))
    whole, chosen, cut = (
        evaluate(GROWING.definition, given, length=29, segment=segment, **cotangents)
        for segment in (29, None, 7)
    )
    assert set(whole.gradients) == set(given)
    for other in (chosen, cut):
        assert relative_error(other.output, whole.output) < 1e-14
        assert other.final_state is not None and whole.final_state is not None
        assert relative_error(other.final_state, whole.final_state) < 1e-14
        for name, gradient in whole.gradients.items():
            assert relative_error(other.gradients[name], gradient) < 1e-13, name


def test_segments_are_as_short_as_the_last_step_asks_for_and_never_parallel() -> None:
    costs = []
    for T in (50, 100, 200):
        given = draw("softmax_attention", "scalar", T=T)
        step = measure_step(GROWING.definition, given, with_time(given, T), None)
        assert step is not None and segment_length(step, T, torch.device("cpu")) is None
        costs.append(step.kept_bytes)
    assert 1.8 < costs[1] / costs[0] < 2.2 and 1.8 < costs[2] / costs[1] < 2.2


def test_a_decode_step_continues_from_as_many_steps_as_the_shape_has() -> None:
    shapes = (SHAPE, SHAPE.with_(T=64), SHAPE)
    assert [(s["T"], s["S"]) for s in one_token(shapes, grows=True)] == [(1, 29), (1, 64)]
    assert one_token(shapes, grows=False) == (SHAPE.with_(T=1),)
    axes = parse_sizes(["S=8,16", "K=5"])
    assert [shape["S"] for shape in one_token(shapes, grows=True, axes=axes)] == [8, 16]


def test_only_a_state_that_grows_has_the_dimension_of_earlier_steps() -> None:
    models = ["attention", "gla"]
    selection, _ = select(models=models, pass_=("decode",), axis=("S=32,64",), device="cpu")
    found = {(c.model, c.shape.get("S")) for c in make_plan(selection, ("throughput",)).to_run}
    assert found == {("attention", 32), ("attention", 64), ("gla", None)}
    selection, _ = select(models=models, pass_=("forward",), device="cpu")
    assert not any("S" in item.case.shape for item in make_plan(selection, ("throughput",)).cases)


def test_a_preset_ends_where_a_reference_takes_too_long() -> None:
    assert GROWING.longest is not None
    selection, _ = select(models=("attention",), device="cpu")
    chosen, _ = select(models=("attention",), axis=("T=8",), device="cpu")
    case = next(c for c in make_plan(selection, ("throughput",)).to_run if c.backend == "chunkwise")
    case = replace(case, shape=case.shape.with_(T=GROWING.longest + 1))
    assert "reference" in str(refusal(case, selection)) and refusal(case, chosen) is None


def new_rows_alone(
    q: Tensor, k: Tensor, v: Tensor, log_f: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    output, state = GROWING.definition(q, k, v, log_f, initial_state)
    return output, state[:, -q.shape[1] :]


def masked_as_without_a_cache(
    q: Tensor, k: Tensor, v: Tensor, log_f: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    _, cache = GROWING.definition(q, k, v, log_f, initial_state)
    K, attention = q.shape[-1], torch.nn.functional.scaled_dot_product_attention
    x = (each.transpose(1, 2) for each in (q, cache[..., :K], cache[..., K:]))
    return attention(*x, is_causal=True, scale=1.0).transpose(1, 2), cache


@pytest.mark.parametrize("function", [new_rows_alone, masked_as_without_a_cache])
def test_a_wrong_cache_and_a_wrong_mask_are_found(function: Any) -> None:
    sizes = {"T": 9, "device": "cpu", "gradients": False}
    statuses = [
        verdict.status for verdict in ssmperf.verify("attention", function, **sizes).verdicts.values()
    ]
    assert statuses == [Status.OK, Status.WRONG]  # from an empty cache, and from another
