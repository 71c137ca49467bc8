"""Autocast changes nothing about this package's definitions and backends: neither dtypes nor values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kernels.second_derivatives import drawn, leaves_of, shared_keys, tensors
from support.kernels.table import random_like
from support.registrations import built_in_backends
from torch import Tensor

from ssmperf import Backend, Unsupported
from ssmperf.suitekit import registry

RECURRENCES = tuple(registry.recurrences())
T = 20  # more than a sub-chunk
HALF = torch.bfloat16


def by_kind(device: str) -> list[Any]:
    """(recurrence, backend, gate kind) of the backends for a device."""
    return [
        pytest.param(recurrence, backend, kind, id=f"{recurrence}-{backend.name}-{kind}")
        for recurrence in RECURRENCES
        for backend in built_in_backends(recurrence)
        for kind in backend.gates or registry.recurrence(recurrence).gate_kinds
        if device in backend.devices
    ]


def compute(
    function: Callable[..., Any], operands: dict[str, Any], *, autocast: bool, device: str
) -> list[Tensor]:
    """Outputs, final state and gradients of a call; only the call itself is under autocast."""
    leaves = leaves_of(operands, tensors(operands))
    with torch.autocast(device, dtype=HALF, enabled=autocast):
        results = [each for each in function(**{**operands, **leaves}) if each is not None]
        assert torch.is_autocast_enabled(device) == autocast
    gradients = torch.autograd.grad(
        results, list(leaves.values()), [random_like(each, 1) for each in results]
    )
    return [*results, *gradients]


def given(recurrence: str, kind: str, data: torch.dtype, device: str, *, state: bool) -> dict[str, Any]:
    """Operands with gates and state in float32, and real data in a dtype."""
    gates = (*registry.recurrence(recurrence).gates, "initial_state")
    operands = drawn(recurrence, kind, T, reset=False, state=state)
    for name, value in operands.items():
        if isinstance(value, Tensor):
            narrow = torch.complex64 if value.is_complex() else torch.float32 if name in gates else data
            operands[name] = value.to(device, narrow)
    return operands


def check(backend: Backend, operands: dict[str, Any], device: str) -> None:
    """Results with and without autocast are the same, bit by bit if the backend is deterministic."""
    without, under = (
        compute(backend.function, operands, autocast=autocast, device=device) for autocast in (False, True)
    )
    for one, other in zip(without, under, strict=True):
        assert one.dtype == other.dtype
        if backend.deterministic:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("data", [torch.float32, HALF])
@pytest.mark.parametrize(("recurrence", "backend", "kind"), by_kind("cpu"))
def test_a_backend_gives_the_same_bits(
    recurrence: str, backend: Backend, kind: str, data: torch.dtype
) -> None:
    if recurrence == "rnn":
        data = torch.float32  # its weights have the dtype of its input, or are wider
    check(backend, given(recurrence, kind, data, "cpu", state=backend.equivalent), "cpu")


def test_a_models_own_backend_gives_the_same_bits() -> None:
    operands = {name: value.float() for name, value in shared_keys(T).items() if value is not None}
    check(registry.backend("longhorn_exact", "state_first"), operands, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_a_backend_gives_the_same_bits_on_a_gpu(recurrence: str) -> None:
    for of, backend, kind in (each.values for each in by_kind("cuda")):
        if of == recurrence and backend.missing("cuda") is None and not backend.compiles_per_shape:
            operands = given(recurrence, kind, torch.float32, "cuda", state=backend.equivalent)
            check(backend, operands, "cuda")


@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_a_definition_gives_the_same_bits(recurrence: str) -> None:
    entry = registry.recurrence(recurrence)
    for kind in entry.gate_kinds:
        operands = given(recurrence, kind, torch.float32, "cpu", state=True)
        without, under = (
            compute(entry.definition, operands, autocast=autocast, device="cpu") for autocast in (False, True)
        )
        assert all(torch.equal(one, other) for one, other in zip(without, under, strict=True)), kind


def test_a_definition_of_another_function_gives_the_same_bits() -> None:
    definition = registry.backend("linear_attention", "surrogate_softmax").own_definition()
    operands = given("linear_attention", "key", torch.float32, "cpu", state=False)
    del operands["log_b"]
    without, under = (
        compute(definition, operands, autocast=autocast, device="cpu") for autocast in (False, True)
    )
    assert all(torch.equal(one, other) for one, other in zip(without, under, strict=True))


def test_autocast_is_on_again_after_an_error() -> None:
    operands = given("scan", "data", torch.float32, "cpu", state=True)
    with torch.autocast("cpu", dtype=HALF):
        with pytest.raises(Unsupported):
            registry.backend("scan", "fft").function(**operands)
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == HALF


def test_the_signature_stays() -> None:
    for recurrence in RECURRENCES:
        parameters = registry.recurrence(recurrence).signature.parameters
        assert not {"operands", "options"} & set(parameters)
