"""Value gates in the Triton kernels of linear_attention: see `support.kernels.attention`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.kernels.attention import DEVICE, C, assert_matches, attention, case, cut_into, gpu, tiny
from support.kernels.table import REGIMES, Operands, detached, evaluate

from ssmperf.engine.tune import tables

KINDS = ("value", "both", "both_complex")


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several strips of the state at widths that the interpreter can afford."""
    from ssmperf.impls._triton import plan
    from ssmperf.impls.linear_attention._triton import steps

    monkeypatch.setattr(steps, "CELLS", 128)
    plan.forget()


@pytest.mark.slow(but=("value-*", "both-options2"))
@tiny
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("value", {"T": 1, "K": 20, "V": 3}),
        ("both", {"T": C + 1, "H": 2}),
        ("both", {"T": C, "regime": "small"}),
        ("both_complex", {"T": C + 1, "K": 12, "V": 20}),
        ("both_complex", {"T": C, "dtype": "float16", "regime": "retnet"}),
        ("both", {"T": C + 1, "dtype": "float16", "K": 9, "V": 5}),
    ],
)
@pytest.mark.usefixtures("strips")
def test_outputs_and_all_gradients_match_the_definition(kind: str, options: dict[str, Any]) -> None:
    assert_matches(case(kind=kind, **options), options.get("dtype", "float32"))


@tiny
@pytest.mark.parametrize(("V", "width"), [(5, 8), (6, 6), (16, 16)])
def test_half_precision_values_come_in_rows_of_whole_words(
    V: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other rows `la_grads` is compiled wrongly for Hopper: it read outside of memory (found by fuzz)."""
    from ssmperf.impls._triton import plan
    from ssmperf.impls.linear_attention._triton.valued import Valued

    seen, of = [], Valued.of
    monkeypatch.setattr(Valued, "of", lambda plan, q, v, *rest, **more: seen.append(v.shape[-1]) or of(
        plan, q, v, *rest, **more))  # fmt: skip
    plan.forget()
    operands = case(T=3, kind="value", dtype="float16", K=2, V=V)
    o, state = attention(**operands)
    (o.sum() + state.sum()).backward()
    assert o.shape[-1] == state.shape[-1] == V
    assert set(seen) == {width}


def test_few_values_step_in_strips_that_every_compiler_takes() -> None:
    """Triton 3.6 dies where a strip without a first state has 16 × 64 cells or more (found by fuzz)."""
    from ssmperf.impls.linear_attention._triton.steps import strip_of

    assert [strip_of(BX, 128, begun=False) for BX in (8, 16, 32)] == [128, 32, 64]
    assert strip_of(16, 128, begun=True) == 128


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["value", "both"])
def test_few_values_match_the_definition(kind: str) -> None:
    operands = case(T=24, kind=kind, dtype="bfloat16", H=2, K=80, V=12)
    operands["initial_state"] = None
    assert_matches(operands, "bfloat16")


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["value", "both"])
@pytest.mark.parametrize(("K", "V"), [(9, 129), (16, 129), (64, 65), (9, 17)])
def test_odd_numbers_of_values_match_the_definition(K: int, V: int, kind: str) -> None:
    assert_matches(case(T=24, kind=kind, dtype="bfloat16", H=2, K=K, V=V), "bfloat16")


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("kind", KINDS)
def test_walks_and_steps_where_decay_is_mild_in_one_head_and_wild_in_the_other(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And, under gates on both sides, chunks whose key gates alone are wide."""
    cut_into(monkeypatch, walk=16)
    operands = case(T=2 * C + 3, kind=kind, H=3)
    with torch.no_grad():
        operands["log_b"][:, :, 0] *= 0.1
        operands["log_b"][:, :, 1] *= 0.1
        operands["log_b"][0, C + 7, 1, 5] = -math.inf
        if operands["log_a"] is not None:
            operands["log_a"][:, :C, 0] *= 0.05
    assert_matches(operands)


@tiny
def test_keys_and_values_share_the_range_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side would move its operands by 48 nats in half a chunk, both by more than float32 has."""
    from ssmperf.impls.linear_attention._triton import walking

    cut_into(monkeypatch, walk=16)
    monkeypatch.setitem(walking.LIMITS, torch.float32, 60.0)
    operands = case(T=2 * C, kind="both")
    with torch.no_grad():
        operands["log_a"].fill_(-3.0)
        operands["log_b"].fill_(-3.0)
    assert_matches(operands)


@pytest.mark.slow(but=("gate0-None",))
@tiny
@pytest.mark.parametrize(("gate", "phase"), [((1,), None), ((1, C, 1), (1, 16)), ((1, 16), (1, C, 1))])
@pytest.mark.usefixtures("strips")
def test_value_gates_beside_gates_of_other_shapes(
    gate: tuple[int, ...], phase: tuple[int, ...] | None
) -> None:
    operands = case(T=C, kind="value")
    generator = torch.Generator().manual_seed(12)
    operands["log_a"] = (-0.3 * torch.rand(gate, generator=generator)).to(DEVICE).requires_grad_()
    if phase is not None:
        operands["phase"] = (3 * torch.rand(phase, generator=generator)).to(DEVICE).requires_grad_()
    assert_matches(operands)


@tiny
@pytest.mark.usefixtures("strips")
def test_resets_on_either_side_and_complex_values() -> None:
    operands = case(T=C, kind="both", K=4, V=6)
    with torch.no_grad():
        operands["log_a"][0, 7, 0, 3] = operands["log_b"][0, 9, 0, 5] = -math.inf
        operands["log_b"][0, 20] = -math.inf
    v = operands["v"].detach()
    operands["v"] = torch.complex(v, v.flip(1)).requires_grad_()
    operands["initial_state"] = operands["initial_state"].detach().to(torch.complex64).requires_grad_()
    assert_matches(operands)
    gradients = evaluate(attention, operands).gradients
    for name in ("log_a", "log_b"):
        assert bool((gradients[name][torch.isneginf(operands[name])] == 0).all()), name


@tiny
@pytest.mark.usefixtures("strips")
def test_a_value_gate_of_one_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch)
    operands: Operands = detached(case(T=C + 3, kind="key_complex"))
    expected = attention(**operands)
    operands["log_b"] = torch.zeros_like(operands["v"])
    for found, value in zip(attention(**operands), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_value_gates_on_a_gpu(kind: str, dtype: str) -> None:
    regime = "gla" if dtype == "float16" else "sigmoid"
    assert_matches(case(T=500, H=3, K=80, V=36, kind=kind, regime=regime, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("walk", [0, 64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regime", REGIMES)
def test_regimes_of_value_gates_on_a_gpu(regime: str, kind: str, walk: int) -> None:
    table = tables.table("linear_attention/triton")
    rows = {(table.name, key): replace(table.row(key), walk=min(walk, table.row(key).walk)) for key in table}
    with tables.using(rows):
        operands = case(T=300, H=2, K=128, V=128, kind=kind, regime=regime, dtype="bfloat16")
        assert_matches(operands, "bfloat16")
