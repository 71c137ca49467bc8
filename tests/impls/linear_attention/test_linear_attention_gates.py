"""Value gates, gates on both sides, complex gates and reads before the write, by every backend.

Gaps of the table's generic tests: the read before the write under every gate kind, in both precisions,
with its state, and the softmax baseline, which is another function.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from support.kernels.table import (
    GATE_KINDS,
    SHAPES,
    TOLERANCE,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    random_like,
    runnable,
    sample,
    span,
    widened,
)
from torch import Tensor

from ssmperf import Backend, Unsupported
from ssmperf.suitekit import registry

SHAPE = SHAPES["linear_attention"]
KINDS = GATE_KINDS["linear_attention"]
OVER_TIME = ("q", "k", "v", "log_a", "log_b", "phase")

backends = pytest.mark.parametrize("backend", runnable("linear_attention"), ids=lambda b: b.name)
each_kind = pytest.mark.parametrize("kind", KINDS)
with_bonus = pytest.mark.parametrize("bonus", [False, True], ids=["pre", "bonus"])


def before_the_write(
    kind: str, dtype: str, bonus: bool, *, T: int = 33, regime: str = "gla"
) -> dict[str, Any]:
    """Operands of a read before the write, with a bonus or without."""
    operands = sample("linear_attention", SHAPE.with_(T=T), regime=regime, kind=kind, dtype=dtype)
    operands["read"] = "pre"
    if bonus:
        u = torch.randn(SHAPE["H"], SHAPE["K"], generator=torch.Generator().manual_seed(4))
        operands["bonus"] = u.to(operands["v"].dtype).requires_grad_()
    return operands


def part(operands: dict[str, Any], steps: slice) -> dict[str, Any]:
    """Some steps of the operands."""
    return {
        name: value[:, steps] if name in OVER_TIME and value is not None and value.dim() > 2 else value
        for name, value in operands.items()
    }


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@with_bonus
@each_kind
@backends
def test_a_read_before_the_write_matches_the_definition(
    backend: Backend, kind: str, bonus: bool, dtype: str
) -> None:
    operands = before_the_write(kind, dtype, bonus)
    got = evaluate(backend.function, operands)
    assert got.output.dtype == operands["v"].dtype
    reach = span("linear_attention", operands)
    assert_close(backend, got, oracle("linear_attention", operands), dtype, reach)


@pytest.mark.parametrize("T", [1, 2, 64, 65])
@backends
def test_a_read_before_the_write_at_the_edges_of_tiles(backend: Backend, T: int) -> None:
    for dtype in ("float64", "float32"):
        operands = before_the_write("both_complex", dtype, True, T=T, regime="rglru")
        got, want = evaluate(backend.function, operands), oracle("linear_attention", operands)
        assert_close(backend, got, want, dtype, span("linear_attention", operands))


@each_kind
@backends
def test_the_first_read_before_the_write_sees_the_initial_state(backend: Backend, kind: str) -> None:
    operands = detached(before_the_write(kind, "float64", False))
    output, _ = backend.function(**operands)
    first = torch.einsum("bhk,bhkv->bhv", operands["q"][:, 0].to(operands["initial_state"].dtype),
                         operands["initial_state"])  # fmt: skip
    assert error(output[:, 0], first.real if first.is_complex() else first) < 1e-13
    nothing, _ = backend.function(**{**operands, "initial_state": None})
    assert not nothing[:, 0].any()


@pytest.mark.parametrize("split", [1, 16, 20, 32])
@each_kind
@backends
def test_two_reads_before_the_write_that_pass_the_state_equal_one(
    backend: Backend, kind: str, split: int
) -> None:
    operands = before_the_write(kind, "float64", True)

    def in_two(**whole: Any) -> tuple[Tensor, Tensor]:
        head, state = backend.function(**part(whole, slice(split)))
        tail, state = backend.function(**{**part(whole, slice(split, None)), "initial_state": state})
        return torch.cat([head, tail], dim=1), state

    assert_close(backend, evaluate(in_two, operands), evaluate(backend.function, operands), "float64")


@each_kind
@backends
def test_a_read_before_the_write_does_not_see_the_present(backend: Backend, kind: str) -> None:
    operands = detached(before_the_write(kind, "float32", False))
    output, _ = backend.function(**operands)
    changed = {**operands, "v": operands["v"].clone(), "k": operands["k"].clone()}
    for name in ("v", "k"):
        changed[name][:, 20] += 1
    after, _ = backend.function(**changed)
    assert torch.equal(after[:, :21], output[:, :21])
    assert not torch.equal(after[:, 21], output[:, 21])


@pytest.mark.parametrize("kind", ["key", "both", "key_complex", "both_complex"])
@backends
def test_resets_before_which_one_reads(backend: Backend, kind: str) -> None:
    if backend.name == "surrogate_raw":
        pytest.skip("a reset is beyond its span")
    for dtype in ("float64", "float32"):
        operands = before_the_write(kind, dtype, True, regime="reset")
        with torch.no_grad():
            operands["log_a"][:, 9] = -math.inf
            if operands.get("log_b") is not None:
                operands["log_b"][:, 17] = -math.inf
        got, want = evaluate(backend.function, operands), oracle("linear_attention", operands)
        assert_close(backend, got, want, dtype, span("linear_attention", operands))


@pytest.mark.parametrize("size", [(2,), (2, 3)], ids=str)
@pytest.mark.parametrize("gates", ["log_a", "phase", "log_a phase", "log_a log_b", "phase log_b"])
@backends
def test_gates_of_the_head_and_the_channel(backend: Backend, gates: str, size: tuple[int, ...]) -> None:
    """Constant gates (H,) and (H, K), alone, with a phase, and beside a value gate."""
    for dtype in ("float64", "float32"):
        operands = sample("linear_attention", SHAPE, kind="none", dtype=dtype)
        wide = operands["v"].dtype
        for name in gates.split():
            shape = (2, 33, 2, 4) if name == "log_b" else size
            number = torch.randn(
                shape, generator=torch.Generator().manual_seed(len(name)), dtype=torch.float64
            )
            number = number if name == "phase" else -number.abs() / 8
            operands[name] = number.to(wide).requires_grad_()
        got, want = evaluate(backend.function, operands), oracle("linear_attention", operands)
        assert_close(backend, got, want, dtype, span("linear_attention", operands))


@pytest.mark.parametrize("kind", ["value", "both_complex"])
@backends
def test_complex_operands_read_before_the_write_with_a_real_bonus(backend: Backend, kind: str) -> None:
    operands = before_the_write(kind, "float64", True)
    for name in "qkv":
        operands[name] = torch.complex(operands[name], operands[name].flip(1)).detach().requires_grad_()
    got = evaluate(backend.function, operands)
    assert got.output.is_complex() and not got.gradients["bonus"].is_complex()
    assert_close(backend, got, oracle("linear_attention", operands), "float64")


@each_kind
@backends
def test_the_final_states_gradient_reaches_every_operand_that_writes(backend: Backend, kind: str) -> None:
    operands = before_the_write(kind, "float64", True)
    reference = widened(operands)
    wrote = [name for name in ("k", "v", "log_a", "log_b", "phase", "initial_state")
             if operands.get(name) is not None]  # fmt: skip

    def gradients(function: Any, given: dict[str, Any]) -> dict[str, Tensor]:
        _, state = function(**given)
        found = torch.autograd.grad(state, [given[name] for name in wrote], random_like(state, 5))
        return dict(zip(wrote, found, strict=True))

    want = gradients(registry.recurrence("linear_attention").definition, reference)
    for name, gradient in gradients(backend.function, operands).items():
        assert error(gradient, want[name]) < 1e-12, name


SOFTMAX = registry.backend("linear_attention", "surrogate_softmax")
softmax_definition = importlib.import_module(SOFTMAX.function.__module__).definition
softmax_kinds = pytest.mark.parametrize("kind", SOFTMAX.gates)


def stateless(kind: str, dtype: str, **options: Any) -> dict[str, Any]:
    operands = sample("linear_attention", SHAPE, kind=kind, dtype=dtype, **options)
    return {name: x for name, x in operands.items() if x is not None and name != "initial_state"}


@pytest.mark.parametrize("regime", ["sigmoid", "gla", "ones", "reset"])
@softmax_kinds
def test_the_softmax_baseline_is_what_its_own_definition_says(kind: str, regime: str) -> None:
    for dtype, (forward, gradient) in TOLERANCE.items():
        operands = stateless(kind, dtype, regime=regime)
        wide = widened(operands)
        got, final = SOFTMAX.function(**operands)
        want, _ = softmax_definition(**wide)
        assert final is None and got.dtype == operands["v"].dtype
        assert error(got, want) <= forward
        found = torch.autograd.grad(got, list(operands.values()), random_like(got, 1))
        expected = torch.autograd.grad(want, list(wide.values()), random_like(want, 1))
        for name, x, y in zip(operands, found, expected, strict=True):
            assert error(x, y) <= gradient, name


@softmax_kinds
def test_the_softmax_baseline_averages_the_past(kind: str) -> None:
    operands = detached(stateless(kind, "float64"))
    constant, _ = SOFTMAX.function(**{**operands, "v": torch.full_like(operands["v"], 3.0)})
    assert error(constant, torch.full_like(constant, 3.0)) < 1e-14
    mean, _ = SOFTMAX.function(**{**operands, "q": torch.zeros_like(operands["q"])})
    steps = torch.arange(1, 34, dtype=torch.float64).view(1, -1, 1, 1)
    assert error(mean, operands["v"].cumsum(1) / steps) < 1e-14


@softmax_kinds
def test_the_softmax_baseline_is_another_function_and_says_so(kind: str) -> None:
    assert not SOFTMAX.equivalent and SOFTMAX not in runnable("linear_attention")
    operands = detached(stateless(kind, "float64"))
    output, _ = SOFTMAX.function(**operands)
    recurrent, _ = registry.recurrence("linear_attention").definition(**operands)
    assert error(output, recurrent) > 0.2
    operands["v"][:, 20:] = 7.0
    assert torch.equal(SOFTMAX.function(**operands)[0][:, :20], output[:, :20])


def test_the_softmax_baseline_refuses_what_it_cannot_mean() -> None:
    for kind in set(KINDS) - set(SOFTMAX.gates):
        operands = detached(sample("linear_attention", SHAPE, kind=kind, dtype="float32"))
        with pytest.raises(Unsupported, match=r"value gates|real scores"):
            SOFTMAX.function(**{**operands, "initial_state": None})
    operands = detached(sample("linear_attention", SHAPE, kind="key", dtype="float32"))
    with pytest.raises(Unsupported, match="no state"):
        SOFTMAX.function(**operands)
    operands["initial_state"] = None
    with pytest.raises(Unsupported, match="after the write"):
        SOFTMAX.function(**operands, read="pre")
    with pytest.raises(Unsupported, match="real scores"):
        SOFTMAX.function(**{**operands, "q": operands["q"] + 0j})


def test_the_decay_span_counts_the_gates_of_both_axes() -> None:
    T, H, K = SHAPE["T"], SHAPE["H"], SHAPE["K"]
    span = registry.recurrence("linear_attention").decay_span
    assert span is not None
    log_a, log_b = torch.full((H, K), -0.5), torch.zeros(SHAPE["B"], T, H, SHAPE["V"])
    log_a[1, 2], log_b[0, 3, 0, 1], log_b[0, 4, 1, 0] = -1.0, -7.0, -math.inf
    for heads in (H, 1):
        q, v = torch.zeros(SHAPE["B"], T, heads, K), torch.zeros(SHAPE["B"], T, H, SHAPE["V"])
        data = {"q": q, "v": v}
        assert span(data) == 0
        assert span({**data, "log_a": log_a}) == pytest.approx(T)
        assert span({**data, "log_b": log_b}) == pytest.approx(7)
        assert span({**data, "log_a": log_a, "log_b": log_b}) == pytest.approx(max(T, 0.5 * T + 7))
        assert span({**data, "log_a": log_a[:, 2]}) == pytest.approx(T)
