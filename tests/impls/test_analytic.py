"""Cases with a known answer, and what one recurrence has that the others do not."""

from __future__ import annotations

import pytest
import torch
from support.kernels.table import (
    SHAPES,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    pairs,
    plainest,
    runnable,
    sample,
    span,
)
from torch import Tensor

from ssmperf import Backend, Unsupported, UsageError
from ssmperf.suitekit import registry

scans = pytest.mark.parametrize(
    "backend", [pytest.param(p.values[1], id=p.values[1].name) for p in pairs() if p.values[0] == "scan"]
)
attentions = pytest.mark.parametrize(
    "backend",
    [pytest.param(p.values[1], id=p.values[1].name) for p in pairs() if p.values[0] == "linear_attention"],
)


closed_forms = pytest.mark.parametrize(
    ("recurrence", "name"), [(r, name) for r in registry.recurrences() for name in registry.analytics(r)]
)
LOG_GATES = ("log_a", "log_b")
LOWEST_LOG = -746.0  # what a log-space scan counts a reset as: the exp of it is 0


@closed_forms
def test_the_definition_gives_the_closed_form(recurrence: str, name: str) -> None:
    entry = registry.analytics(recurrence)[name]
    operands, output, final = entry.function()
    tensors = [value for value in (*operands.values(), output, final) if isinstance(value, Tensor)]
    assert all(x.dtype in (torch.float64, torch.complex128) for x in tensors)
    assert entry.source
    again = entry.function()[0]
    for key, value in operands.items():
        assert torch.equal(again[key], value) if isinstance(value, Tensor) else again[key] == value
    got, last = registry.recurrence(recurrence).definition(**operands)
    assert error(got, output) < 1e-13
    assert final is None or error(last, final) < 1e-13


@closed_forms
def test_every_backend_gives_the_closed_form(recurrence: str, name: str) -> None:
    for backend in runnable(recurrence):
        operands, output, final = registry.analytics(recurrence)[name].function()
        kind = registry.recurrence(recurrence).gate_kind(operands)
        if backend.refusal(device="cpu", gate_kind=kind):
            continue
        gates = {key: operands[key] for key in LOG_GATES if operands.get(key) is not None}
        if backend.name == "surrogate_raw" and any(bool(torch.isinf(x).any()) for x in gates.values()):
            with pytest.raises(Unsupported):
                backend.function(**operands)
            continue
        got, last = backend.function(**operands)
        limit = 1e-12
        if backend.error_bound is not None:
            counted = {key: x.clamp(min=LOWEST_LOG) for key, x in gates.items()}
            limit = backend.error_bound(span(recurrence, {**operands, **counted}), "float64")
        assert error(got, output) < limit, backend.name
        assert final is None or error(last, final) < limit, backend.name


@pytest.mark.parametrize("size", [(5,), (1, 1, 5), (2, 33, 1), (1, 33, 5), (33, 1), (2, 1, 5), ()])
@scans
def test_scan_gates_broadcast(backend: Backend, size: tuple[int, ...]) -> None:
    operands = sample("scan", SHAPES["scan"], kind="data", dtype="float64")
    generator = torch.Generator().manual_seed(5)
    log_a = -torch.rand(size, generator=generator, dtype=torch.float64)
    operands["log_a"] = log_a.requires_grad_()
    if log_a.dim() > 1 and log_a.shape[-2] == 33 and backend.refusal(device="cpu", gate_kind="data"):
        with pytest.raises(Unsupported):
            backend.function(**operands)
        return
    got, reference = evaluate(backend.function, operands), oracle("scan", operands)
    assert_close(backend, got, reference, "float64")
    # log_a and phase each broadcast on their own
    operands["phase"] = torch.randn(1, 33, 1, generator=generator, dtype=torch.float64, requires_grad=True)
    if backend.refusal(device="cpu", gate_kind="data_complex") is None:
        assert_close(backend, evaluate(backend.function, operands), oracle("scan", operands), "float64")


@scans
def test_scan_of_complex_inputs_without_a_phase(backend: Backend) -> None:
    operands = sample("scan", SHAPES["scan"], kind=plainest("scan", backend), dtype="float64")
    operands["b"] = torch.complex(operands["b"], operands["b"].flip(1)).detach().requires_grad_()
    assert_close(backend, evaluate(backend.function, operands), oracle("scan", operands), "float64")


@scans
def test_a_unit_gate_keeps_the_energy(backend: Backend) -> None:
    if backend.refusal(device="cpu", gate_kind="data_complex"):
        pytest.skip("no complex gates")
    operands = detached(sample("scan", SHAPES["scan"], regime="phase", kind="data_complex", dtype="float32"))
    output, _ = backend.function(**{**operands, "b": torch.zeros_like(operands["b"])})
    assert error(output.abs(), operands["initial_state"].abs().unsqueeze(1).expand_as(output)) < 1e-5


@pytest.mark.slow(but=("sequential", "blelloch", "fft", "logspace", "torch_scan", "hillis_steele"))
@scans
def test_a_small_phase_turns_as_far_backwards_as_forwards(backend: Backend) -> None:
    """The errors of equal steps add up: an error of 2⁻²² per step, as -0.001 + 2π has it, shows at once."""
    T = 4096
    if backend.refusal(device="cpu", gate_kind="const_complex", length=T):
        pytest.skip("no complex gates")
    turned = []
    for phase in (1e-3, -1e-3):
        b = torch.zeros(1, T, 1)
        b[:, 0] = 1
        h, _ = backend.function(torch.zeros(1), b, phase=torch.full((1,), phase))
        angle = torch.as_tensor(phase, dtype=torch.float32).double() * torch.arange(T)
        turned.append(error(h[0, :, 0].cdouble(), torch.polar(torch.ones(T).double(), angle)))
    assert max(turned) < 2 * min(turned) + 1e-6


@attentions
def test_a_scalar_gate_is_a_key_gate_of_equal_entries(backend: Backend) -> None:
    operands = detached(
        sample("linear_attention", SHAPES["linear_attention"], kind="scalar", dtype="float64")
    )
    spread = {**operands, "log_a": operands["log_a"].unsqueeze(-1).expand(-1, -1, -1, 3)}
    for a, b in zip(backend.function(**operands), backend.function(**spread), strict=True):
        assert error(a, b) < 1e-12
    const = detached(sample("linear_attention", SHAPES["linear_attention"], kind="const", dtype="float64"))
    outputs = backend.function(**const)
    for size in ((2, 33, 2), (2, 33, 2, 3), (2, 3)):
        gate = const["log_a"].reshape(*(2, 1)[: 1 + (size[-1] == 3)]).expand(size)
        for a, b in zip(outputs, backend.function(**{**const, "log_a": gate}), strict=True):
            assert error(a, b) < 1e-12


@attentions
def test_heads_are_interchangeable(backend: Backend) -> None:
    operands = detached(sample("linear_attention", SHAPES["linear_attention"], kind="both", dtype="float64"))
    swapped = {
        name: value.flip(1 if name == "initial_state" else 2) if isinstance(value, Tensor) else value
        for name, value in operands.items()
    }
    (output, final), (output_2, final_2) = backend.function(**operands), backend.function(**swapped)
    assert error(output_2.flip(2), output) < 1e-12
    assert error(final_2.flip(1), final) < 1e-12


@pytest.mark.parametrize("T", [1, 2, 33, 65])
@pytest.mark.parametrize("with_bonus", [False, True], ids=["pre", "bonus"])
@pytest.mark.parametrize("kind", ["none", "scalar", "key", "key_complex"])
@attentions
def test_read_before_write(backend: Backend, kind: str, with_bonus: bool, T: int) -> None:
    shape = SHAPES["linear_attention"].with_(T=T)
    operands = sample("linear_attention", shape, regime="rglru", kind=kind, dtype="float64")
    operands["read"] = "pre"
    if with_bonus:
        bonus = torch.randn(2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        operands["bonus"] = bonus.requires_grad_()
    reference = oracle("linear_attention", operands)
    assert_close(backend, evaluate(backend.function, operands), reference, "float64")


@attentions
def test_attention_of_complex_operands(backend: Backend) -> None:
    for kind in ("none", "key", "both", "key_complex"):
        operands = sample("linear_attention", SHAPES["linear_attention"], kind=kind, dtype="float64")
        for name in "qkv":
            operands[name] = torch.complex(operands[name], operands[name].flip(1)).detach().requires_grad_()
        got = evaluate(backend.function, operands)
        assert got.output.is_complex()
        assert_close(backend, got, oracle("linear_attention", operands), "float64")


@pytest.mark.parametrize("size", [(2,), (2, 3), (2, 33, 2), (2, 33, 2, 3)])
@attentions
def test_a_phase_and_its_magnitude_have_shapes_of_their_own(backend: Backend, size: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(9)
    phase = torch.randn(size, generator=generator, dtype=torch.float64)
    for kind in ("none", "scalar", "key", "const"):
        operands = sample("linear_attention", SHAPES["linear_attention"], kind=kind, dtype="float64")
        operands["phase"] = phase.clone().requires_grad_()
        assert_close(
            backend, evaluate(backend.function, operands), oracle("linear_attention", operands), "float64"
        )


@attentions
def test_wrong_reads_are_refused(backend: Backend) -> None:
    operands = detached(sample("linear_attention", SHAPES["linear_attention"], kind="key", dtype="float32"))
    with pytest.raises(UsageError, match="unknown read"):
        backend.function(**operands, read="late")
    with pytest.raises(UsageError, match="bonus needs"):
        backend.function(**operands, bonus=torch.ones(2, 3))
