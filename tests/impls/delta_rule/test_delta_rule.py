"""Properties of delta_rule alone: its two forms, chunks of any size, hard gates, and shared keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ssmperf.impls.delta_rule.chunkwise import in_chunks
from ssmperf.impls.delta_rule.common import as_backend
from support.kernels.table import (
    REGIMES,
    Operands,
    Results,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    runnable,
    sample,
)
from torch import Tensor
from torch.nn import functional

from ssmperf import Backend, Shape, UsageError
from ssmperf.authoring import Spec
from ssmperf.suitekit import registry

NAME = "delta_rule"
RECURRENCE = registry.recurrence(NAME)
SHAPE = Shape(B=2, T=33, H=2, K=3, V=4)
BACKENDS = runnable(NAME)
KINDS = RECURRENCE.gate_kinds
GATED = tuple(kind for kind in KINDS if kind not in ("none", "dplr"))

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
each_kind = pytest.mark.parametrize("kind", KINDS)


def worst(got: Results, want: Results) -> float:
    """The largest relative error over outputs, final state and all gradients."""
    reference = {name: tensor for name, tensor, _ in want.items()}
    return max(error(tensor, reference[name]) for name, tensor, _ in got.items())


def chunked(C: int, sub_chunk: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """The chunkwise backend with other chunks."""

    def method(x: Any) -> tuple[Tensor, Tensor]:
        return in_chunks(x, C, sub_chunk)

    return as_backend(method)


def one_step(o: Operands, b: int, h: int, t: int, S: list[list[float]]) -> list[list[float]]:
    """S after a step, in Python numbers."""
    k, v = (o[name][b, t, h].tolist() for name in ("k", "v"))
    beta = o["beta"][b, t, h].item()
    gate = o["log_a"]
    if gate is None:
        alpha = [1.0] * len(k)
    else:
        gate = gate[h] if gate.dim() == 1 else gate[b, t, h]
        alpha = gate.expand(len(k)).exp().tolist()
    kept = [[alpha[c] * S[c][j] for j in range(len(v))] for c in range(len(k))]
    if o.get("p") is None:
        error = [v[j] - sum(kept[c][j] * k[c] for c in range(len(k))) for j in range(len(v))]
        return [[kept[c][j] + beta * k[c] * error[j] for j in range(len(v))] for c in range(len(k))]
    p, r = (o[name][b, t, h].tolist() for name in ("p", "r"))
    read = [sum(S[c][j] * r[c] for c in range(len(k))) for j in range(len(v))]
    return [[kept[c][j] + p[c] * read[j] + beta * k[c] * v[j] for j in range(len(v))] for c in range(len(k))]


@each_kind
def test_the_definition_is_the_equation(kind: str) -> None:
    o = detached(sample(NAME, SHAPE.with_(T=4), kind=kind, dtype="float64"))
    output, final = RECURRENCE.definition(**o)
    for b in range(2):
        for h in range(2):
            S = o["initial_state"][b, h].tolist()
            for t in range(4):
                S = one_step(o, b, h, t, S)
                read = torch.tensor(S, dtype=torch.float64).T @ o["q"][b, t, h]
                assert error(output[b, t, h], read) < 1e-13
            assert error(final[b, h], torch.tensor(S, dtype=torch.float64)) < 1e-13


@pytest.mark.parametrize(("C", "sub_chunk"), [(1, 1), (7, 7), (16, 4), (16, 16), (50, 10)])
@each_kind
def test_chunks_of_any_size_compute_the_definition(kind: str, C: int, sub_chunk: int) -> None:
    for T in (1, 6, 50, 51):
        operands = sample(NAME, SHAPE.with_(T=T), regime="reset", kind=kind, dtype="float64")
        assert worst(evaluate(chunked(C, sub_chunk), operands), oracle(NAME, operands)) < 1e-12


@pytest.mark.parametrize("kind", ["none", "key", "dplr_scalar", "dplr_key"])
@each_backend
def test_gradcheck(backend: Backend, kind: str) -> None:
    shape = Shape(B=1, T=5, H=1, K=2, V=2)
    operands = sample(NAME, shape, kind=kind, dtype="float64")
    names = [name for name, value in operands.items() if isinstance(value, Tensor)]
    values = [operands[name] for name in names]
    assert torch.autograd.gradcheck(
        lambda *inputs: backend.function(**dict(zip(names, inputs, strict=True))), values
    )


@pytest.mark.parametrize("kind", ["none", "scalar", "key", "dplr_key"])
@each_backend
def test_every_split_passes_the_state_and_its_gradient(backend: Backend, kind: str) -> None:
    T = 9
    operands = sample(NAME, SHAPE.with_(T=T), kind=kind, dtype="float64")
    whole = evaluate(backend.function, operands)
    for split in range(1, T):

        def in_two(split: int = split, **given: Any) -> tuple[Tensor, Tensor]:
            state, outputs = given.pop("initial_state"), []
            for steps in (slice(split), slice(split, None)):
                part = {name: x[:, steps] if isinstance(x, Tensor) else x for name, x in given.items()}
                output, state = backend.function(**part, initial_state=state)
                outputs.append(output)
            return torch.cat(outputs, dim=1), state

        assert worst(evaluate(in_two, operands), whole) < 1e-12


@pytest.mark.slow(but=("chunkwise-*",))
@pytest.mark.parametrize("keys", ["random", "parallel", "near"])
@pytest.mark.parametrize("rate", [0.0, 1.0, 2.0, None], ids=["b0", "b1", "b2", "b012"])
@each_backend
def test_rates_at_the_edge_of_stability(backend: Backend, rate: float | None, keys: str) -> None:
    for kind in ("none", "scalar", "key"):
        for dtype, tolerance in (("float64", 1e-12), ("float32", 5e-5)):
            operands = sample(NAME, SHAPE.with_(T=70), regime="gla", kind=kind, dtype=dtype)
            spread = {"random": 1.0, "parallel": 0.0, "near": 1e-2}[keys]
            k = operands["k"].detach()
            k = functional.normalize((keys != "random") * k[:, :1] + spread * k, dim=-1)
            choice = torch.arange(operands["beta"].numel()).view_as(operands["beta"]) * 7 % 5 % 3
            beta = choice.to(k.dtype) if rate is None else torch.full_like(operands["beta"], rate)
            operands |= {"k": k.expand(2, 70, 2, 3).clone().requires_grad_()}
            operands |= {"beta": beta.detach().requires_grad_()}
            assert worst(evaluate(backend.function, operands), oracle(NAME, operands)) < tolerance


@each_backend
def test_rounding_does_not_add_up_where_keys_repeat_and_nothing_is_forgotten(backend: Backend) -> None:
    generator = torch.Generator().manual_seed(0)
    T, K, letters = 2048, 24, 6
    keys = functional.normalize(torch.randn(letters, K, generator=generator), dim=-1)
    text = torch.randint(letters, (1, T, 1), generator=generator)
    operands = {
        "q": torch.randn(1, T, 1, K, generator=generator),
        "k": keys[text],
        "v": torch.randn(letters, 4, generator=generator)[text],
        "beta": torch.full((1, T, 1), 0.3),
        "initial_state": torch.randn(1, 1, K, 4, generator=generator),
    }
    got = backend.function(**operands)
    want = RECURRENCE.definition(**{name: x.double() for name, x in operands.items()})
    for result, reference in zip(got, want, strict=True):
        assert error(result, reference) < 5e-6


@pytest.mark.parametrize("name", ["blelloch", "hillis_steele", "torch_scan"])
@pytest.mark.parametrize(("K", "T"), [(1, 16), (2, 64)])
def test_dense_maps_that_forget_nearly_all_keep_their_digits(name: str, K: int, T: int) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = functional.normalize(torch.randn(1, T, 2, K, generator=generator), dim=-1)
    rates = 0.3 + 0.4 * torch.rand(1, T, 2, generator=generator)
    operands = {"q": keys, "k": keys, "v": keys, "beta": rates}

    def gradient(function: Callable[..., tuple[Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
        state = torch.ones(1, 2, K, K, dtype=dtype, requires_grad=True)
        _, final = function(**{key: x.to(dtype) for key, x in operands.items()}, initial_state=state)
        (found,) = torch.autograd.grad(final.sum(), state)
        return found

    want = gradient(RECURRENCE.definition, torch.float64)
    assert want.abs().max() < 1e-4
    assert error(gradient(registry.backend(NAME, name).function, torch.float32), want) < 2e-6


@pytest.mark.parametrize("span", [88.0, 1e4, math.inf])
@pytest.mark.parametrize("kind", GATED)
@each_backend
def test_hard_gates_stay_finite_and_right(backend: Backend, kind: str, span: float) -> None:
    T = 70
    for pattern in ("even", "one step", "by channel"):
        for dtype in ("float64", "float32") if math.isinf(span) else ("float32",):
            operands = sample(NAME, SHAPE.with_(T=T), regime="ones", kind=kind, dtype=dtype)
            log_a = torch.zeros_like(operands["log_a"])
            if pattern == "even" or log_a.dim() == 1:
                log_a += -span / T
            elif pattern == "one step":
                log_a[:, 20] = -span
            else:
                log_a[:, 3::9, ..., ::2] = -span
            operands["log_a"] = log_a.requires_grad_()
            got = evaluate(backend.function, operands)
            assert_close(backend, got, oracle(NAME, operands), dtype)
            reset = torch.isinf(log_a)
            assert not got.gradients["log_a"][reset].any()


@each_backend
def test_keys_rates_and_low_rank_terms_of_zero(backend: Backend) -> None:
    for kind in ("key", "dplr_key"):
        operands = sample(NAME, SHAPE, kind=kind, dtype="float64")
        for name in ("k", "beta", "p", "r"):
            if operands.get(name) is not None:
                operands[name] = torch.zeros_like(operands[name], requires_grad=True)
        got, want = evaluate(backend.function, operands), oracle(NAME, operands)
        assert worst(got, want) < 1e-12


@pytest.mark.parametrize("kind", ["none", "const", "scalar", "key"])
@each_backend
def test_the_delta_rule_is_diagonal_plus_low_rank(backend: Backend, kind: str) -> None:
    operands = detached(sample(NAME, SHAPE, kind=kind, dtype="float64"))
    k, beta, log_a = operands["k"], operands["beta"], operands["log_a"]
    alpha = torch.ones_like(k)
    if log_a is not None:
        alpha = torch.exp(log_a if log_a.dim() == 4 else log_a.unsqueeze(-1)) * alpha
    low_rank = {**operands, "p": -beta.unsqueeze(-1) * k, "r": alpha * k}
    for got, want in zip(backend.function(**low_rank), backend.function(**operands), strict=True):
        assert error(got, want) < 1e-12


@pytest.mark.parametrize("kind", ["dplr", "dplr_const", "dplr_scalar", "dplr_key"])
@each_backend
def test_without_its_low_rank_term_it_is_linear_attention(backend: Backend, kind: str) -> None:
    operands = detached(sample(NAME, SHAPE, kind=kind, dtype="float64"))
    operands["p"] = torch.zeros_like(operands["p"])
    attention = {name: operands[name] for name in ("q", "k", "log_a", "initial_state")}
    attention["v"] = operands["beta"].unsqueeze(-1) * operands["v"]
    want = registry.recurrence("linear_attention").definition(**attention)
    for got, expected in zip(backend.function(**operands), want, strict=True):
        assert error(got, expected) < 1e-12


@each_backend
def test_no_rate_beside_a_low_rank_term_is_one(backend: Backend) -> None:
    operands = detached(sample(NAME, SHAPE, kind="dplr_key", dtype="float64"))
    ones = {**operands, "beta": torch.ones_like(operands["beta"])}
    none = {**operands, "beta": None}
    for function in (backend.function, RECURRENCE.definition):
        for got, want in zip(function(**none), function(**ones), strict=True):
            assert error(got, want) < 1e-14


@pytest.mark.parametrize("kind", ["none", "key", "dplr_scalar"])
@each_backend
def test_heads_may_share_queries_and_keys(backend: Backend, kind: str) -> None:
    operands = sample(NAME, SHAPE, kind=kind, dtype="float64")
    for name in ("q", "k"):
        operands[name] = operands[name].detach()[:, :, :1].clone().requires_grad_()
    assert worst(evaluate(backend.function, operands), oracle(NAME, operands)) < 1e-12
    expanded = {
        name: value.expand(-1, -1, SHAPE["H"], -1) if name in "qk" else value
        for name, value in operands.items()
    }
    for got, want in zip(backend.function(**operands), backend.function(**expanded), strict=True):
        assert torch.equal(got, want)


@each_backend
def test_operands_that_do_not_belong_together_are_refused(backend: Backend) -> None:
    operands = detached(sample(NAME, SHAPE, kind="key", dtype="float64"))
    k, v = operands["k"], operands["v"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"p": k}, "come together"),
        ({"r": k}, "come together"),
        ({"beta": None}, "needs beta"),
        ({"log_a": operands["log_a"][0, 0]}, "log_a must be"),
        ({"v": torch.complex(v, v)}, "real"),
    ]
    for change, message in wrong:
        for function in (backend.function, RECURRENCE.definition):
            with pytest.raises(UsageError, match=message):
                function(**{**operands, **change})


@pytest.mark.parametrize("regime", REGIMES)
@each_kind
def test_samples_are_of_their_kind_and_stable(kind: str, regime: str) -> None:
    operands = detached(sample(NAME, SHAPE.with_(T=600), regime=regime, kind=kind, dtype="float32"))
    assert RECURRENCE.gate_kind(operands) == kind
    strength = operands["beta"] * operands["k"].square().sum(-1)
    assert strength.min() > 0 and strength.max() <= 2
    if operands.get("log_a") is not None:
        assert operands["log_a"].max() <= 0
    _, final = registry.backend(NAME, "chunkwise").function(**operands)
    assert final.abs().max() < 100


@each_backend
@pytest.mark.parametrize("case", registry.analytics(NAME).values(), ids=lambda case: case.name)
def test_closed_forms(backend: Backend, case: Any) -> None:
    operands, output, state = case.function()
    got, final = backend.function(**operands)
    assert (got - output).abs().max() < 1e-12
    assert (final - state).abs().max() < 1e-12


def test_the_least_cost() -> None:
    shape = Shape(B=1, T=10, H=2, K=4, V=8)
    specs = {name: Spec((1, 10, 2, 4), 2) for name in "qk"}
    specs |= {"v": Spec((1, 10, 2, 8), 2), "beta": Spec((1, 10, 2), 2), "log_a": Spec((1, 10, 2), 4)}
    forward, backward, both = (
        RECURRENCE.cost(shape, specs, pass_) for pass_ in ("forward", "backward", "forward_backward")
    )
    operands = 2 * 20 * (4 + 4 + 8 + 1) + 4 * 20
    assert forward.bytes == operands + 2 * 20 * 8
    assert backward.bytes == 2 * operands + 2 * 20 * 8
    assert forward.flops == 7 * 4 * 8 * 20
    assert both.flops == forward.flops + backward.flops and both.bytes == forward.bytes + backward.bytes
    assert (forward.depth, forward.special) == (10, 20)
