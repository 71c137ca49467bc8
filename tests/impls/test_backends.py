"""Properties that every backend of every recurrence has, on every gate kind it takes."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from support.kernels.table import (
    DTYPES,
    GATE_KINDS,
    PLAIN,
    REGIMES,
    SHAPES,
    Operands,
    assert_close,
    detached,
    error,
    evaluate,
    having,
    inputs,
    oracle,
    pairs,
    pairs_by_kind,
    pairs_by_kind_and_length,
    plainest,
    reset_at,
    richest,
    sample,
    set_log_gate,
    span,
    widened,
)
from torch import Tensor

from ssmperf import Backend, Unsupported
from ssmperf.suitekit import registry

LINEAR_IN = {
    "scan": ("b", "initial_state"),
    "linear_attention": ("v", "initial_state"),
    "selective_scan": ("x", "initial_state"),
    "delta_rule": ("v", "initial_state"),
}
EXACT_SCANS = ("sequential", "blelloch", "hillis_steele", "torch_scan")

by_backend = pytest.mark.parametrize(("recurrence", "backend"), pairs())
by_kind = pytest.mark.parametrize(("recurrence", "backend", "kind"), pairs_by_kind())


@pytest.mark.parametrize("recurrence", registry.recurrences())
def test_every_backend_has_the_signature_of_its_recurrence(recurrence: str) -> None:
    """Names, kinds and defaults of all operands; **options may stand for those that are keywords only."""
    operands = registry.recurrence(recurrence).signature.parameters.values()
    for backend in registry.backends(recurrence):
        found = inspect.signature(backend.function).parameters.values()
        own = [each for each in found if each.kind is not each.VAR_KEYWORD]
        left_open = len(own) < len(found)
        expected = [each for each in operands if not (left_open and each.kind is each.KEYWORD_ONLY)]
        described = [[(each.name, each.kind, each.default) for each in listed] for listed in (own, expected)]
        assert described[0] == described[1], backend.name


def in_time(operands: Operands, name: str) -> bool:
    """Whether an operand has a value for every step."""
    value = operands[name]
    if name == "initial_state" or not isinstance(value, Tensor) or value.dim() < 3:
        return False
    return value.shape[:2] == inputs(operands).shape[:2]


def slice_time(operands: Operands, steps: slice) -> Operands:
    return {name: value[:, steps] if in_time(operands, name) else value for name, value in operands.items()}


@pytest.mark.parametrize(("recurrence", "backend", "kind", "T"), pairs_by_kind_and_length())
def test_outputs_and_all_gradients_match_the_definition(
    recurrence: str, backend: Backend, kind: str, T: int
) -> None:
    shape = SHAPES[recurrence].with_(T=T)
    dtypes = ["float64", "float32"] + (["bfloat16", "float16"] if T == 33 else [])
    for dtype in dtypes:
        if dtype not in backend.dtypes:
            continue
        regime = "retnet" if dtype == "float16" else "rglru"
        operands = sample(recurrence, shape, regime=regime, kind=kind, dtype=dtype)
        reference = oracle(recurrence, operands)
        got = evaluate(backend.function, operands)
        assert_close(backend, got, reference, dtype, span(recurrence, operands))
        field = "complex64" if "complex" in kind else "float32"
        wide = {"float32": "float64", "complex64": "complex128"}[field] if dtype == "float64" else field
        assert got.final_state.dtype == getattr(torch, wide)
        if recurrence == "linear_attention" or "complex" not in kind:
            assert got.output.dtype == DTYPES[dtype]
        assert all(v._version == 0 for v in operands.values() if isinstance(v, Tensor)), (
            "an operand was changed"
        )


@pytest.mark.parametrize("regime", REGIMES)
@by_backend
def test_every_gate_regime(recurrence: str, backend: Backend, regime: str) -> None:
    for kind in {richest(recurrence, backend), plainest(recurrence, backend)}:
        for dtype in ("float64", "float32"):
            if dtype not in backend.dtypes:
                continue
            operands = sample(recurrence, SHAPES[recurrence], regime=regime, kind=kind, dtype=dtype)
            too_long = regime == "small" and dtype == "float32"
            if backend.name == "surrogate_raw" and (
                too_long
                or any(
                    bool(torch.isinf(operands[name]).any())
                    for name in ("log_a", "log_b")
                    if operands.get(name) is not None
                )
            ):
                with pytest.raises(Unsupported):
                    backend.function(**operands)
                continue
            got = evaluate(backend.function, operands)
            if backend.name == "surrogate_raw" and regime == "small":
                for gate in ("log_a", "log_b", "phase"):  # small differences of sums as large as h ⊙ dh
                    got.gradients.pop(gate, None)
            assert_close(backend, got, oracle(recurrence, operands), dtype, span(recurrence, operands))


@pytest.mark.parametrize("split", [1, 16, 20, 32])
@by_backend
def test_two_runs_that_pass_the_state_equal_one(recurrence: str, backend: Backend, split: int) -> None:
    operands = sample(recurrence, SHAPES[recurrence], kind=richest(recurrence, backend), dtype="float64")

    def in_two(**whole: Any) -> tuple[Tensor, Tensor]:
        first, state = backend.function(**slice_time(whole, slice(split)))
        second, state = backend.function(**{**slice_time(whole, slice(split, None)), "initial_state": state})
        return torch.cat([first, second], dim=1), state

    assert_close(backend, evaluate(in_two, operands), evaluate(backend.function, operands), "float64")


@by_backend
def test_state_passing_at_every_split_of_a_short_run(recurrence: str, backend: Backend) -> None:
    shape = SHAPES[recurrence].with_(T=9)
    kind = plainest(recurrence, backend)
    operands = detached(sample(recurrence, shape, kind=kind, dtype="float64"))
    whole, final = backend.function(**operands)
    for split in range(1, 9):
        first, state = backend.function(**slice_time(operands, slice(split)))
        rest = {**slice_time(operands, slice(split, None)), "initial_state": state}
        second, state = backend.function(**rest)
        assert error(torch.cat([first, second], dim=1), whole) < 1e-12
        assert error(state, final) < 1e-12


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@by_kind
def test_the_future_does_not_change_the_past(
    recurrence: str, backend: Backend, kind: str, dtype: str
) -> None:
    if backend.causal == "none" or dtype not in backend.dtypes:
        pytest.skip(f"declares causal={backend.causal}, dtypes={backend.dtypes}")
    shape = SHAPES[recurrence].with_(T=70)
    operands = detached(sample(recurrence, shape, regime="gla", kind=kind, dtype=dtype))
    output, _ = backend.function(**operands)
    other = detached(sample(recurrence, shape, regime="gla", kind=kind, dtype=dtype, seed=7))
    for step in (1, 31, 64, 69):
        changed = {
            name: torch.cat([value[:, :step], other[name][:, step:]], dim=1)
            if in_time(operands, name)
            else value
            for name, value in operands.items()
        }
        after, _ = backend.function(**changed)
        if backend.causal == "bitwise":
            assert torch.equal(after[:, :step], output[:, :step]), f"a change at step {step} reached back"
        else:
            assert error(after[:, :step], output[:, :step]) < 1e-5


@pytest.mark.parametrize("recurrence", SHAPES)
def test_not_a_number_does_not_reach_back_through_a_scan(recurrence: str) -> None:
    for backend in (b for r, b in (p.values for p in pairs()) if r == recurrence and b.name in EXACT_SCANS):
        operands = detached(sample(recurrence, SHAPES[recurrence], kind=PLAIN[recurrence], dtype="float32"))
        for name in operands:
            if in_time(operands, name):
                operands[name][:, 20:] = math.nan
        output, _ = backend.function(**operands)
        assert bool(torch.isfinite(output[:, :20]).all()), backend.name


@by_backend
def test_linear_in_inputs_and_initial_state(recurrence: str, backend: Backend) -> None:
    if recurrence not in LINEAR_IN:
        pytest.skip("a ratio is not linear")
    kind = richest(recurrence, backend)
    one = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float64"))
    two = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float64", seed=1))
    inputs = LINEAR_IN[recurrence]
    mixed = {**one, **{name: 2 * one[name] - 3 * two[name] for name in inputs}}
    parts = [backend.function(**{**one, **{name: part[name] for name in inputs}}) for part in (one, two)]
    for got, first, second in zip(backend.function(**mixed), *parts, strict=True):
        assert error(got, 2 * first - 3 * second) < 1e-11


@by_backend
def test_the_same_bits_twice(recurrence: str, backend: Backend) -> None:
    if not backend.deterministic:
        pytest.skip("declares deterministic=False")
    operands = sample(recurrence, SHAPES[recurrence], kind=richest(recurrence, backend), dtype="float32")
    first, second = (evaluate(backend.function, operands) for _ in range(2))
    for (name, a, _), (_, b, _) in zip(first.items(), second.items(), strict=True):
        assert torch.equal(a, b), name


@by_backend
def test_batch_items_are_independent(recurrence: str, backend: Backend) -> None:
    kind = richest(recurrence, backend)
    operands = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float32"))
    other = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float32", seed=3))
    changed = {
        name: torch.cat([value[:1], other[name][1:]])
        if name == "initial_state" or in_time(operands, name)
        else value
        for name, value in operands.items()
    }
    for before, after in zip(backend.function(**operands), backend.function(**changed), strict=True):
        assert torch.equal(before[0], after[0])
        assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("recurrence", having("chunkwise"))
def test_chunks_of_no_batch_items_at_all(recurrence: str) -> None:
    backend = registry.backend(recurrence, "chunkwise")
    operands = sample(recurrence, SHAPES[recurrence], kind=richest(recurrence, backend), dtype="float32")
    none = {
        name: value.detach()[:0].requires_grad_()
        if name == "initial_state" or in_time(operands, name)
        else value
        for name, value in operands.items()
    }
    definition = registry.recurrence(recurrence).definition
    got, want = (evaluate(function, none).items() for function in (backend.function, definition))
    assert [(name, value.shape) for name, value, _ in got] == [(name, value.shape) for name, value, _ in want]


@by_backend
def test_a_shorter_run_is_a_prefix(recurrence: str, backend: Backend) -> None:
    kind = richest(recurrence, backend)
    operands = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float64"))
    whole, _ = backend.function(**operands)
    part, _ = backend.function(**slice_time(operands, slice(19)))
    assert error(part, whole[:, :19]) < 1e-12


@by_backend
def test_no_initial_state_means_zeros(recurrence: str, backend: Backend) -> None:
    if recurrence not in LINEAR_IN:
        pytest.skip("its empty state has a scale of its own")
    operands = detached(
        sample(recurrence, SHAPES[recurrence], kind=richest(recurrence, backend), dtype="float64")
    )
    zeros = {**operands, "initial_state": torch.zeros_like(operands["initial_state"])}
    for a, b in zip(
        backend.function(**{**operands, "initial_state": None}), backend.function(**zeros), strict=True
    ):
        assert torch.equal(a, b)


@by_backend
def test_operands_need_not_be_contiguous(recurrence: str, backend: Backend) -> None:
    operands = sample(recurrence, SHAPES[recurrence], kind=richest(recurrence, backend), dtype="float64")
    strided = {
        name: v.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()
        if isinstance(v, Tensor)
        else v
        for name, v in operands.items()
    }
    assert_close(
        backend, evaluate(backend.function, strided), evaluate(backend.function, operands), "float64"
    )


@by_backend
def test_resets_separate_packed_sequences(recurrence: str, backend: Backend) -> None:
    if backend.name == "surrogate_raw":
        pytest.skip("a reset is beyond its span")
    kind = plainest(recurrence, backend)
    if kind == "const":
        pytest.skip("a gate for all steps resets at every one")
    operands = detached(sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float64"))
    starts = (0, 7, 8, 30)
    for start in starts:
        reset_at(operands, start)
    packed, final = backend.function(**operands)
    for start, stop in zip(starts, (*starts[1:], None), strict=True):
        alone = {**slice_time(operands, slice(start, stop)), "initial_state": None}
        output, state = backend.function(**alone)
        assert error(packed[:, start:stop], output) < 1e-12
    assert error(final, state) < 1e-12


@by_backend
def test_extreme_gates(recurrence: str, backend: Backend) -> None:
    kind = plainest(recurrence, backend)
    for log_gate in (-12.0, math.log1p(-(2.0**-24)), -math.inf):
        operands = sample(recurrence, SHAPES[recurrence], kind=kind, dtype="float32")
        set_log_gate(operands, log_gate)
        if backend.name == "surrogate_raw" and log_gate < -1:
            with pytest.raises(Unsupported):
                backend.function(**operands)
            continue
        decay_span = -33 * max(log_gate, -104.0)
        assert_close(
            backend, evaluate(backend.function, operands), oracle(recurrence, operands), "float32", decay_span
        )


@pytest.mark.parametrize("T", [6, 20])
def test_a_const_gate_without_state_commutes_with_a_time_shift(T: int) -> None:
    for recurrence, backend in (p.values for p in pairs()):
        if "const" not in GATE_KINDS[recurrence] or recurrence not in LINEAR_IN:
            continue
        shape = SHAPES[recurrence].with_(T=T)
        operands = detached(sample(recurrence, shape, kind="const", dtype="float64"))
        operands["initial_state"] = None
        late = {
            name: torch.cat([torch.zeros_like(value[:, :3]), value], dim=1)
            if in_time(operands, name)
            else value
            for name, value in operands.items()
        }
        output, final = backend.function(**operands)
        shifted, shifted_final = backend.function(**late)
        assert error(shifted[:, 3:], output) < 1e-12
        assert error(shifted_final, final) < 1e-12


@pytest.mark.parametrize("recurrence", having("logspace"))
def test_logspace_of_zeros(recurrence: str) -> None:
    backend = registry.backend(recurrence, "logspace")
    operands = sample(recurrence, SHAPES[recurrence], kind=PLAIN[recurrence], dtype="float64")
    for name in LINEAR_IN[recurrence]:
        operands[name] = torch.zeros_like(operands[name], requires_grad=True)
    got = evaluate(backend.function, operands)
    assert float(got.output.abs().max()) == 0
    assert_close(backend, got, oracle(recurrence, operands), "float64")


@pytest.mark.parametrize("name", ["sequential", "blelloch", "logspace", "torch_scan"])
def test_gradcheck_of_scans(name: str) -> None:
    operands = sample("scan", SHAPES["scan"].with_(B=1, T=5, C=2), kind="data_complex", dtype="float64")
    function = registry.backend("scan", name).function
    names = ("log_a", "b", "initial_state", "phase")
    assert torch.autograd.gradcheck(
        lambda *values: function(**dict(zip(names, values, strict=True))), [operands[n] for n in names]
    )


@pytest.mark.parametrize("name", ["sequential", "chunkwise"])
def test_gradcheck_of_attention(name: str) -> None:
    shape = SHAPES["linear_attention"].with_(B=1, T=6, H=1, K=2, V=2)
    operands = sample("linear_attention", shape, kind="both_complex", dtype="float64")
    function = registry.backend("linear_attention", name).function
    names = [n for n, value in operands.items() if isinstance(value, Tensor)]
    assert torch.autograd.gradcheck(
        lambda *values: function(**dict(zip(names, values, strict=True))), [operands[n] for n in names]
    )


def test_the_oracle_sees_the_same_numbers() -> None:
    operands = sample("scan", SHAPES["scan"], kind="data", dtype="bfloat16")
    wide = widened(operands)
    assert wide["b"].dtype == torch.float64
    assert torch.equal(wide["b"].bfloat16(), operands["b"])
