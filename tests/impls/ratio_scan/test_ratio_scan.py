"""Properties of ratio_scan alone: its precision, its state's scale and the gradient convention, its bonus."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp, mpf
from support.kernels.table import (
    SHAPES,
    Operands,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    runnable,
    sample,
)
from torch import Tensor

from ssmperf import Backend, Shape
from ssmperf.authoring import Spec
from ssmperf.suitekit import registry

RECURRENCE = registry.recurrence("ratio_scan")
SHAPE = SHAPES["ratio_scan"]
EMPTY = -1e38

each_backend = pytest.mark.parametrize("backend", runnable("ratio_scan"), ids=lambda backend: backend.name)
each_kind = pytest.mark.parametrize("kind", RECURRENCE.gate_kinds)
with_and_without_bonus = pytest.mark.parametrize("bonus", [True, False], ids=["bonus", "no_bonus"])


def operands(bonus: bool = True, *, shape: Shape = SHAPE, dtype: str = "float64", **how: str) -> Operands:
    """As the table samples them, with or without the bonus."""
    drawn = sample("ratio_scan", shape, dtype=dtype, **{"kind": "data", **how})
    return drawn if bonus else {name: value for name, value in drawn.items() if name != "bonus"}


def with_keys(drawn: Operands, k: Tensor) -> Operands:
    return {**drawn, "k": k.to(drawn["k"].dtype).clone().requires_grad_()}


def exact_ratios(log_w: Tensor, k: Tensor, v: Tensor, bonus: Tensor | None) -> Tensor:
    """y by the two sums of docs/recurrences.md#rwkv in 120 digits, from no state; k and v (1, T, C)."""
    y = torch.empty_like(v)
    _, T, C = v.shape
    with mp.workdps(120):
        for c in range(C):
            w = -mpf(log_w[c].item())
            keys, values = ([mpf(z.item()) for z in x[0, :, c]] for x in (k, v))
            for t in range(T):
                if bonus is None:
                    weights = [mp.exp(-(t - s) * w + keys[s]) for s in range(t + 1)]
                else:
                    weights = [mp.exp(-(t - 1 - s) * w + keys[s]) for s in range(t)]
                    weights.append(mp.exp(mpf(bonus[c].item()) + keys[t]))
                total = sum(a * b for a, b in zip(weights, values[: t + 1], strict=True))
                y[0, t, c] = float(total / sum(weights))
    return y


@with_and_without_bonus
def test_the_definition_is_the_ratio_in_multiple_precision(bonus: bool) -> None:
    drawn = detached(operands(bonus, shape=Shape(B=1, T=24, C=4), kind="const", regime="rglru"))
    k = drawn["k"]
    for keys in (k, 90 * k.sign(), 300 * k):
        given = {**drawn, "k": keys, "initial_state": None}
        output, _ = RECURRENCE.definition(**given)
        assert error(output, exact_ratios(drawn["log_w"], keys, drawn["v"], drawn.get("bonus"))) < 1e-14
        for backend in runnable("ratio_scan"):
            assert error(backend.function(**given)[0], output) < 1e-13, backend.name


@with_and_without_bonus
@each_kind
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@each_backend
def test_keys_of_ninety(backend: Backend, dtype: str, kind: str, bonus: bool) -> None:
    drawn = operands(bonus, dtype=dtype, kind=kind, regime="mamba")
    drawn = with_keys(drawn, 90 * drawn["k"].detach().sign())
    assert_close(backend, evaluate(backend.function, drawn), oracle("ratio_scan", drawn), dtype)


@with_and_without_bonus
@each_kind
@each_backend
def test_every_regime_and_length_with_and_without_bonus(backend: Backend, kind: str, bonus: bool) -> None:
    for T, regime in ((1, "sigmoid"), (2, "reset"), (31, "ones"), (32, "reset"), (70, "s4d")):
        for dtype in ("float64", "float32"):
            drawn = operands(bonus, shape=SHAPE.with_(T=T), dtype=dtype, kind=kind, regime=regime)
            assert_close(backend, evaluate(backend.function, drawn), oracle("ratio_scan", drawn), dtype)


@each_backend
def test_a_shift_of_all_keys_and_of_the_state_changes_nothing_but_the_scale(backend: Backend) -> None:
    """P and Q take the same factor, so y stays, p and q stay, and m moves along."""
    drawn = detached(operands())
    shifted = {**drawn, "k": drawn["k"] + 512, "initial_state": drawn["initial_state"].clone()}
    shifted["initial_state"][:, 2] += 512
    (output, state), (other, moved) = backend.function(**drawn), backend.function(**shifted)
    assert error(other, output) < 1e-11
    moved[:, 2] -= 512
    assert error(moved, state) < 1e-11


@with_and_without_bonus
@each_backend
def test_keys_far_from_zero_keep_their_digits_in_float32(backend: Backend, bonus: bool) -> None:
    """At 512 a float32 exponent is off by 3e-5 per step; differences of exponents give that back."""
    drawn = operands(bonus, dtype="float32", regime="s4d")
    drawn = with_keys(drawn, (64 * drawn["k"].detach()).round() / 64 + 512)
    state = drawn["initial_state"].detach()
    state[:, 2] = (64 * state[:, 2]).round() / 64 + 512
    drawn["initial_state"] = state.requires_grad_()
    got, reference = evaluate(backend.function, drawn), oracle("ratio_scan", drawn)
    assert error(got.output, reference.output) < 2e-6
    for name in ("k", "v"):
        assert error(got.gradients[name], reference.gradients[name]) < 1e-4, name


@each_backend
def test_the_final_scale_is_the_largest_exponent(backend: Backend) -> None:
    drawn = detached(operands(regime="gla"))
    log_w, k, state = drawn["log_w"], drawn["k"], drawn["initial_state"]
    later = log_w.flip(1).cumsum(1).flip(1)  # Σ_{j≥t} λ_j
    from_steps = k + torch.cat([later[:, 1:], torch.zeros_like(later[:, :1])], dim=1)
    largest = torch.maximum(from_steps.amax(1), state[:, 2] + later[:, 0])
    _, final = backend.function(**drawn)
    assert error(final[:, 2], largest) < 1e-14
    _, final = backend.function(**{**drawn, "initial_state": None})
    assert error(final[:, 2], from_steps.amax(1)) < 1e-14


@with_and_without_bonus
@each_backend
def test_equal_states_of_other_scales_are_equal(backend: Backend, bonus: bool) -> None:
    """(p, q, m) and (c p, c q, m − log c) give equal results, and the gradients at p and q differ by c."""
    drawn = operands(bonus)
    p, q, m = drawn["initial_state"].detach().unbind(1)
    factor = 7.0
    rescaled = torch.stack([factor * p, factor * q, m - math.log(factor)], dim=1)
    one = evaluate(lambda **given: (backend.function(**given)[0],) * 2, drawn)
    other = {**drawn, "initial_state": rescaled.requires_grad_()}
    two = evaluate(lambda **given: (backend.function(**given)[0],) * 2, other)
    assert error(two.output, one.output) < 1e-13
    for name, gradient in one.gradients.items():
        scale = 1 / factor if name == "initial_state" else 1.0
        assert error(two.gradients[name], scale * gradient) < 1e-12, name


@each_backend
def test_no_state_is_the_empty_state(backend: Backend) -> None:
    drawn = operands()
    p = torch.zeros_like(drawn["initial_state"][:, 0])
    empty = torch.stack([p, p, torch.full_like(p, EMPTY)], dim=1).detach()
    for got, want in zip(
        backend.function(**{**drawn, "initial_state": None}),
        backend.function(**{**drawn, "initial_state": empty}),
        strict=True,
    ):
        assert torch.equal(got, want)
    output, _ = backend.function(**{**drawn, "initial_state": None})
    assert torch.equal(output[:, 0], drawn["v"][:, 0])
    zeros, _ = backend.function(**{**drawn, "initial_state": torch.zeros_like(empty)})
    assert error(zeros, output) < 1e-13


@with_and_without_bonus
@each_backend
def test_the_scale_takes_and_gives_no_gradient(backend: Backend, bonus: bool) -> None:
    drawn = operands(bonus)
    leaves = [value for value in drawn.values() if isinstance(value, Tensor)]

    def gradients(at_scale: float) -> tuple[Tensor, ...]:
        _, final = backend.function(**drawn)
        at_final = torch.ones_like(final)
        at_final[:, 2] = at_scale
        return torch.autograd.grad(final, leaves, at_final, allow_unused=True, materialize_grads=True)

    for one, other in zip(gradients(0.0), gradients(5.0), strict=True):
        assert torch.equal(one, other)
    at_state = evaluate(backend.function, drawn).gradients["initial_state"]
    assert bool((at_state[:, 2] == 0).all()) and bool(at_state[:, :2].all())


@with_and_without_bonus
@pytest.mark.parametrize("split", [1, 16, 32])
@each_backend
def test_gradients_through_a_passed_on_state_are_exact(backend: Backend, split: int, bonus: bool) -> None:
    drawn = operands(bonus)
    drawn = with_keys(drawn, 20 * drawn["k"].detach())

    def pieces(given: Operands, steps: slice) -> Operands:
        return {**given, **{name: given[name][:, steps] for name in ("log_w", "k", "v")}}

    def in_two(**given: Tensor) -> tuple[Tensor, Tensor]:
        first, state = backend.function(**pieces(given, slice(split)))
        rest = {**pieces(given, slice(split, None)), "initial_state": state}
        second, final = backend.function(**rest)
        return torch.cat([first, second], dim=1), final

    assert_close(backend, evaluate(in_two, drawn), evaluate(backend.function, drawn), "float64")


@with_and_without_bonus
@each_kind
@each_backend
def test_gradcheck(backend: Backend, kind: str, bonus: bool) -> None:
    """On y, and on the P and Q that the final state stands for: the scale moves, they do not."""
    drawn = operands(bonus, shape=Shape(B=1, T=6, C=2), kind=kind, regime="gla")
    p, q, m = (part.detach() for part in drawn.pop("initial_state").unbind(1))
    names = list(drawn)

    def results(*values: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.stack([values[-2], values[-1], m], dim=1)
        output, final = backend.function(**dict(zip(names, values, strict=False)), initial_state=state)
        return output, torch.exp(final[:, 2:].detach()) * final[:, :2]

    leaves = [*drawn.values(), p.requires_grad_(), q.requires_grad_()]
    assert torch.autograd.gradcheck(results, leaves)


@each_backend
def test_a_bonus_of_zero_is_another_function_than_none(backend: Backend) -> None:
    """With it the past enters undecayed, so that the two agree only where nothing decays."""
    drawn = detached(operands())
    del drawn["bonus"]
    zero = torch.zeros(SHAPE["C"], dtype=torch.float64)
    post, state = backend.function(**drawn)
    pre, same = backend.function(**drawn, bonus=zero)
    assert torch.equal(state, same)
    assert error(pre, post) > 1e-2
    drawn["log_w"].zero_()
    post, pre = backend.function(**drawn)[0], backend.function(**drawn, bonus=zero)[0]
    assert error(pre, post) < 1e-13


@each_backend
def test_decays_broadcast(backend: Backend) -> None:
    drawn = operands()
    for size in ((5,), (1, 1, 5), (1, 33, 5), (2, 1, 5), (1,), ()):
        drawn["log_w"] = -torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        drawn["log_w"].requires_grad_()
        got, reference = evaluate(backend.function, drawn), oracle("ratio_scan", drawn)
        assert_close(backend, got, reference, "float64")


@each_backend
def test_long_runs_keep_their_digits(backend: Backend) -> None:
    drawn = operands(shape=Shape(B=1, T=3000, C=2), dtype="float32", kind="const", regime="retnet")
    drawn = with_keys(drawn, 3 * drawn["k"].detach())
    assert_close(backend, evaluate(backend.function, drawn), oracle("ratio_scan", drawn), "float32")


def test_cost_counts_each_operand_once() -> None:
    shape = RECURRENCE.presets["standard"][0]
    elements = shape["B"] * shape["T"] * shape["C"]
    data = Spec((shape["B"], shape["T"], shape["C"]), 2)
    channel = Spec((shape["C"],), 4)
    specs = {"log_w": channel, "k": data, "v": data, "bonus": channel}
    forward, backward, both = (
        RECURRENCE.cost(shape, specs, name) for name in ("forward", "backward", "forward_backward")
    )
    assert forward.bytes == 3 * 2 * elements + 8 * shape["C"]
    assert backward.bytes == 5 * 2 * elements + 16 * shape["C"]
    assert both.bytes == forward.bytes + backward.bytes and both.flops == forward.flops + backward.flops
    without = RECURRENCE.cost(shape, {n: s for n, s in specs.items() if n != "bonus"}, "forward")
    assert without.flops < forward.flops and without.special < forward.special


def test_rwkv4_starts_as_published() -> None:
    model = registry.model("rwkv4").cls({"C": 9})
    given = model.operands(torch.zeros(1, 1, 9))
    decays = -given["log_w"]
    assert torch.allclose(decays[[0, -1]], torch.tensor([math.exp(-5.0), math.exp(3.0)]))
    assert bool((decays.diff() > 0).all())
    assert torch.allclose(given["bonus"][:3], math.log(0.3) + torch.tensor([0.0, 0.5, -0.5]))
    deep = registry.model("rwkv4").cls({"C": 9}, depth=1.0)
    assert bool((deep.omega[1:-1] < model.omega[1:-1]).all())
