"""Cases with a known answer, and what one recurrence has that the others do not."""

from __future__ import annotations

import math

import pytest
import torch
from table import SHAPES, assert_close, detached, error, evaluate, oracle, pairs, sample
from torch import Tensor

from ssmperf import Backend, UsageError

scans = pytest.mark.parametrize(
    "backend", [pytest.param(p.values[1], id=p.values[1].name) for p in pairs() if p.values[0] == "scan"]
)
attentions = pytest.mark.parametrize(
    "backend",
    [pytest.param(p.values[1], id=p.values[1].name) for p in pairs() if p.values[0] == "linear_attention"],
)


@pytest.mark.parametrize("size", [(5,), (1, 1, 5), (2, 33, 1), (1, 33, 5), (33, 1), (2, 1, 5), ()])
@scans
def test_scan_gates_broadcast(backend: Backend, size: tuple[int, ...]) -> None:
    operands = sample("scan", SHAPES["scan"], kind="data", dtype="float64")
    generator = torch.Generator().manual_seed(5)
    log_a = -torch.rand(size, generator=generator, dtype=torch.float64)
    operands["log_a"] = log_a.requires_grad_()
    got, reference = evaluate(backend.function, operands), oracle("scan", operands)
    assert_close(backend, got, reference, "float64")
    # log_a and phase each broadcast on their own
    operands["phase"] = torch.randn(1, 33, 1, generator=generator, dtype=torch.float64, requires_grad=True)
    if backend.refusal(device="cpu", gate_kind="data_complex") is None:
        assert_close(backend, evaluate(backend.function, operands), oracle("scan", operands), "float64")


@scans
def test_scan_of_complex_inputs_without_a_phase(backend: Backend) -> None:
    operands = sample("scan", SHAPES["scan"], kind="data", dtype="float64")
    operands["b"] = torch.complex(operands["b"], operands["b"].flip(1)).detach().requires_grad_()
    assert_close(backend, evaluate(backend.function, operands), oracle("scan", operands), "float64")


@scans
def test_scan_with_gate_one_is_a_cumulative_sum_and_with_gate_zero_the_input(backend: Backend) -> None:
    operands = detached(sample("scan", SHAPES["scan"], regime="ones", kind="data", dtype="float64"))
    b, h_0 = operands["b"], operands["initial_state"]
    output, final = backend.function(**operands)
    assert error(output, b.cumsum(1) + h_0.unsqueeze(1)) < 1e-13
    assert error(final, b.sum(1) + h_0) < 1e-13
    if backend.name != "surrogate_raw":
        operands["log_a"].fill_(-math.inf)
        output, final = backend.function(**operands)
        limit = backend.error_bound(33 * 746, "float64") if backend.error_bound else 1e-13
        assert error(output, b) < limit
        assert error(final, b[:, -1]) < limit


@scans
def test_scan_of_constants_and_impulses_is_geometric(backend: Backend) -> None:
    c, T = 0.9, 50
    log_a, steps = torch.full((1,), math.log(c), dtype=torch.float64), torch.arange(1, T + 1).double()
    output, _ = backend.function(log_a, torch.ones(1, T, 1, dtype=torch.float64))
    assert error(output[0, :, 0], (1 - c**steps) / (1 - c)) < 1e-13
    impulse = torch.zeros(1, T, 1, dtype=torch.float64)
    impulse[:, 0] = 1
    output, _ = backend.function(log_a, impulse)
    assert error(output[0, :, 0], c ** (steps - 1)) < 1e-13


@scans
def test_a_convex_scan_stays_in_the_range_of_its_inputs(backend: Backend) -> None:
    log_a = sample("scan", SHAPES["scan"], kind="data", dtype="float64")["log_a"].detach()
    x = 3.0
    output, _ = backend.function(log_a, -torch.expm1(log_a) * x)
    assert error(output, x * -torch.expm1(log_a.cumsum(1))) < 1e-12
    assert float(output.max()) <= x


@scans
def test_scan_with_roots_of_unity_is_a_fourier_transform(backend: Backend) -> None:
    if backend.refusal(device="cpu", gate_kind="const_complex"):
        pytest.skip("no complex gates")
    T = 24
    b = torch.randn(T, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phase = 2 * math.pi * torch.arange(T, dtype=torch.float64) / T
    inputs = b[None, :, None].expand(1, T, T)
    _, final = backend.function(torch.zeros(T, dtype=torch.float64), inputs, phase=phase)
    assert error(torch.polar(torch.ones_like(phase), phase) * final[0], torch.fft.fft(b)) < 1e-13


@scans
def test_a_unit_gate_keeps_the_energy(backend: Backend) -> None:
    if backend.refusal(device="cpu", gate_kind="data_complex"):
        pytest.skip("no complex gates")
    operands = detached(sample("scan", SHAPES["scan"], regime="phase", kind="data_complex", dtype="float32"))
    output, _ = backend.function(**{**operands, "b": torch.zeros_like(operands["b"])})
    assert error(output.abs(), operands["initial_state"].abs().unsqueeze(1).expand_as(output)) < 1e-5


@attentions
def test_one_hot_keys_make_a_slot_memory(backend: Backend) -> None:
    slots = torch.tensor([0, 2, 0, 1, 2, 2, 0])
    k = torch.nn.functional.one_hot(slots, 3).double()[None, :, None]
    v = torch.randn(1, 7, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    output, final = backend.function(k, k, v)
    for slot in range(3):
        assert error(final[0, 0, slot], v[0, slots == slot, 0].sum(0)) < 1e-14
    assert error(output[0, 2, 0], v[0, 0, 0] + v[0, 2, 0]) < 1e-14
    gate = torch.full((1,), math.log(0.5), dtype=torch.float64)
    _, decayed = backend.function(k, k, v, gate)
    kept = 0.5 ** (6 - torch.arange(7.0).double())[:, None] * v[0, :, 0]
    assert error(decayed[0, 0, 0], kept[slots == 0].sum(0)) < 1e-14


@attentions
def test_a_zero_gate_leaves_only_the_present(backend: Backend) -> None:
    if backend.name == "surrogate_raw":
        pytest.skip("a reset is beyond its span")
    operands = detached(sample("linear_attention", SHAPES["linear_attention"], kind="key", dtype="float64"))
    operands["log_a"][:, 17] = -math.inf
    output, _ = backend.function(**operands)
    q, k, v = (operands[name][:, 17] for name in "qkv")
    assert error(output[:, 17], (q * k).sum(-1, keepdim=True) * v) < 1e-12


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
