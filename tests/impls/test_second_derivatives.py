"""Second derivatives of every backend of the package: those of the definition, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kernels.second_derivatives import (
    SIZES,
    Loss,
    Operands,
    drawn,
    leaves_of,
    linear,
    quadratic,
    second,
    shared_keys,
    tensors,
)
from support.kernels.table import error, random_like
from support.registrations import built_in_backends
from torch import Tensor

from ssmperf import Backend, Unsupported
from ssmperf.suitekit import registry

REFUSING = {"rnn/torch_rnn", "softmax_attention/torch_sdpa"}
TOLERANCE = 1e-9  # relative to the largest value: a second pass adds up the errors of the first one
NO_RESETS = ("surrogate_raw",)
CHUNKED = ("chunkwise", "surrogate", "overlap_add", "sequential")


def own(recurrence: str) -> list[Backend]:
    """The package's own backends that the CPU can run in float64."""
    return [
        each
        for each in built_in_backends(recurrence)
        if each.missing("cpu") is None and "float64" in each.dtypes
    ]


def by_kind() -> list[Any]:
    return [
        pytest.param(recurrence, backend, kind, id=f"{recurrence}-{backend.name}-{kind}")
        for recurrence in SIZES
        for backend in own(recurrence)
        for kind in backend.gates or registry.recurrence(recurrence).gate_kinds
    ]


def by_backend(*names: str) -> list[Any]:
    """All backends, or those of some names."""
    return [
        pytest.param(recurrence, backend, id=f"{recurrence}-{backend.name}")
        for recurrence in SIZES
        for backend in own(recurrence)
        if not names or backend.name in names
    ]


def richest(backend: Backend) -> str:
    """The gate kind with the most operands, of those that a backend takes."""
    kinds = backend.gates or registry.recurrence(backend.of).gate_kinds
    return next((kind for kind in reversed(kinds) if "complex" in kind or "dplr" in kind), kinds[-1])


def check(backend: Backend, operands: Operands, loss: Loss, names: list[str]) -> None:
    label = f"{backend.of}/{backend.name}"
    entry = registry.recurrence(registry.recurrence_of(backend.of))
    definition = entry.definition if backend.equivalent else backend.own_definition()
    expected = second(definition, {k: v for k, v in operands.items() if v is not None}, loss, names)
    try:
        found = second(backend.function, operands, loss, names)
    except Unsupported as refusal:
        assert label in REFUSING and str(refusal).startswith(f"{label}: "), str(refusal)
        return
    assert label not in REFUSING or not any(bool(each.any()) for each in expected)
    for name, got, want in zip(names, found, expected, strict=True):
        # a second derivative of 0 may come out as a rounding error of others
        assert bool(torch.isfinite(got).all()), name
        scale = max(float(each.abs().max()) for each in expected)
        assert float((got - want).abs().max()) <= TOLERANCE * max(scale, 1.0), name


by_loss = pytest.mark.parametrize("loss", [linear, quadratic])


@by_loss
@pytest.mark.parametrize("T", [1, 7])
@pytest.mark.parametrize(("recurrence", "backend", "kind"), by_kind())
def test_equal_the_definitions(recurrence: str, backend: Backend, kind: str, T: int, loss: Loss) -> None:
    for reset in (False, True):
        if reset and backend.name in NO_RESETS:
            continue
        operands = drawn(recurrence, kind, T, reset=reset, state=backend.equivalent)
        check(backend, operands, loss, tensors(operands))


@by_loss
@pytest.mark.parametrize(("recurrence", "backend"), by_backend())
def test_where_one_operand_alone_asks_for_gradients(recurrence: str, backend: Backend, loss: Loss) -> None:
    operands = drawn(recurrence, richest(backend), 5, reset=False, state=backend.equivalent)
    for name in tensors(operands):
        check(backend, operands, loss, [name])


@by_loss
@pytest.mark.parametrize(("recurrence", "backend"), by_backend(*CHUNKED))
def test_beyond_a_chunk(recurrence: str, backend: Backend, loss: Loss) -> None:
    operands = drawn(recurrence, richest(backend), 70, reset=backend.name not in NO_RESETS, state=True)
    check(backend, operands, loss, tensors(operands))


@by_loss
def test_of_a_models_own_backend(loss: Loss) -> None:
    operands = shared_keys(20)
    check(registry.backend("longhorn_exact", "state_first"), operands, loss, tensors(operands))


@pytest.mark.parametrize(("recurrence", "name"), [("scan", "logspace"), ("ratio_scan", "blelloch")])
def test_third_derivatives(recurrence: str, name: str) -> None:
    """A backward pass that is made of the forward one can be differentiated any number of times."""
    backend, entry = registry.backend(recurrence, name), registry.recurrence(recurrence)
    operands = drawn(recurrence, entry.gate_kinds[0], 5, reset=False, state=True)

    def third(function: Callable[..., Any]) -> list[Tensor]:
        leaves = leaves_of(operands, tensors(operands))
        found = [quadratic(*function(**leaves))]
        for seed in (7, 8, 9):
            value = torch.stack([(each * random_like(each, seed)).sum() for each in found]).sum()
            found = list(torch.autograd.grad(value, list(leaves.values()), create_graph=True))
        return found

    for got, want in zip(third(backend.function), third(entry.definition), strict=True):
        assert error(got, want) < TOLERANCE


@by_loss
@pytest.mark.parametrize("name", sorted(REFUSING))
def test_a_refusal_names_backends_that_can(name: str, loss: Loss) -> None:
    recurrence, _, backend = name.partition("/")
    function = registry.backend(recurrence, backend).function
    entry = registry.recurrence(recurrence)
    operands = drawn(recurrence, entry.gate_kinds[0], 5, reset=False, state=True)
    with pytest.raises(Unsupported, match=r"use one of .*\(second derivatives\)") as refusal:
        second(function, operands, loss, tensors(operands))
    listed = str(refusal.value).partition("use one of ")[2].removesuffix(" (second derivatives)").split(", ")
    equivalent = {each.name for each in own(recurrence) if each.equivalent}
    assert set(listed) == equivalent - {refusing.partition("/")[2] for refusing in REFUSING}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True will create a reference cycle")
@pytest.mark.parametrize("name", sorted(REFUSING))
def test_first_derivatives_with_a_graph_are_not_refused(name: str) -> None:
    recurrence, _, backend = name.partition("/")
    function = registry.backend(recurrence, backend).function
    operands = drawn(recurrence, registry.recurrence(recurrence).gate_kinds[0], 5, reset=False, state=True)
    found = []
    for create_graph in (False, True):
        leaves = leaves_of(operands, tensors(operands))
        value = quadratic(*function(**{**operands, **leaves}))
        value.backward(create_graph=create_graph)
        found.append([each.grad.detach() for each in leaves.values() if each.grad is not None])
        for each in leaves.values():
            each.grad = None  # the cycle
    assert len(found[0]) == len(tensors(operands))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_product_with_the_hessian() -> None:
    def loss(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        return lambda b: quadratic(*function(operands["log_a"], b, operands["initial_state"]))

    operands = drawn("scan", "data", 7, reset=True, state=True)
    v = random_like(operands["b"], 4)
    definition, logspace = (
        registry.recurrence("scan").definition,
        registry.backend("scan", "logspace").function,
    )
    _, want = torch.autograd.functional.hvp(loss(definition), operands["b"], v)
    _, got = torch.autograd.functional.hvp(loss(logspace), operands["b"], v)
    assert error(got, want) < TOLERANCE
