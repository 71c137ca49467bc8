"""The one table of cases that tests of implementations run over, and the float64 oracle they are held to."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Backend, Shape
from ssmperf.engine.operands import samplers as regimes
from ssmperf.suitekit import registry

SHAPES = {
    "scan": Shape(B=2, T=33, C=5),
    "linear_attention": Shape(B=2, T=33, H=2, K=3, V=4),
    "selective_scan": Shape(B=2, T=33, D=5, N=3),
    "delta_rule": Shape(B=2, T=33, H=2, K=3, V=4),
    "ratio_scan": Shape(B=2, T=33, C=5),
}
GATE_KINDS = {name: registry.recurrence(name).gate_kinds for name in SHAPES}
RICHEST = {
    "scan": "data_complex",
    "linear_attention": "both_complex",
    "selective_scan": "exp_zoh_complex",
    "delta_rule": "dplr_key",
    "ratio_scan": "data",
}
PLAIN = {name: kinds[0] for name, kinds in GATE_KINDS.items()}
LENGTHS = (1, 2, 3, 15, 33, 63, 64, 65, 100)
KIND_LENGTHS = (1, 33, 65)
REGIMES = tuple(regimes.REGIMES)
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# relative to the largest value of the oracle: (outputs and final state, gradients)
TOLERANCE = {
    "float64": (1e-12, 1e-12),
    "float32": (1e-5, 1e-4),
    "bfloat16": (4e-3, 8e-3),
    "float16": (1e-3, 2e-3),
}

Operands = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of one forward and backward call."""

    output: Tensor
    final_state: Tensor
    gradients: dict[str, Tensor]

    def items(self) -> list[tuple[str, Tensor, bool]]:
        """(name, tensor, is it a gradient)."""
        found = [("output", self.output, False), ("final_state", self.final_state, False)]
        return found + [(f"gradient of {name}", g, True) for name, g in self.gradients.items()]


def runnable(recurrence: str) -> list[Backend]:
    """The equivalent backends of a recurrence that the CPU can run in float64.

    Those without float64, the GPU kernels, have tests of their own beside these.
    """
    found = registry.backends(recurrence)
    return [b for b in found if b.missing("cpu") is None and b.equivalent and "float64" in b.dtypes]


def pairs() -> list[Any]:
    """(recurrence, backend) for every runnable backend, with readable ids."""
    return [pytest.param(r, b, id=f"{r}-{b.name}") for r in SHAPES for b in runnable(r)]


def having(name: str) -> list[str]:
    """The recurrences that have a backend of this name."""
    return [r for r, b in (pair.values for pair in pairs()) if b.name == name]


def pairs_by_kind() -> list[Any]:
    """(recurrence, backend, gate kind) for every gate kind that a runnable backend takes."""
    return [
        pytest.param(r, b, kind, id=f"{r}-{b.name}-{kind}")
        for r in SHAPES
        for b in runnable(r)
        for kind in GATE_KINDS[r]
        if b.gates is None or kind in b.gates
    ]


def pairs_by_kind_and_length() -> list[Any]:
    """Every kind at the lengths of KIND_LENGTHS, a backend's plainest and richest kind at all LENGTHS."""
    return [
        pytest.param(*pair.values, T, id=f"{pair.id}-{T}")
        for pair in pairs_by_kind()
        for T in LENGTHS
        if T in KIND_LENGTHS or pair.values[2] in (f(*pair.values[:2]) for f in (plainest, richest))
    ]


def plainest(recurrence: str, backend: Backend) -> str:
    """The recurrence's plain gate kind, or the first that a backend takes which does not take that."""
    kinds = backend.gates or GATE_KINDS[recurrence]
    return PLAIN[recurrence] if PLAIN[recurrence] in kinds else kinds[0]


def richest(recurrence: str, backend: Backend) -> str:
    """The most general gate kind that the backend takes."""
    kinds = backend.gates or GATE_KINDS[recurrence]
    if RICHEST[recurrence] in kinds:
        return RICHEST[recurrence]
    return PLAIN[recurrence] if PLAIN[recurrence] in kinds else kinds[-1]


@functools.cache
def _sampled(recurrence: str, shape: Shape, regime: str, kind: str, seed: int) -> Operands:
    entry = registry.recurrence(recurrence)
    generator = torch.Generator().manual_seed(seed)
    operands = dict(entry.sample(shape, regime=regime, generator=generator, gate_kind=kind))
    if entry.sample_state is not None:
        operands["initial_state"] = entry.sample_state(operands, generator)
    elif entry.state_shape is not None:
        size = entry.state_shape(shape)
        state = torch.randn(*size, generator=generator)
        if operands.get("phase") is not None:
            state = torch.complex(state, torch.randn(*size, generator=generator))
        operands["initial_state"] = state
    return operands


def sample(
    recurrence: str, shape: Shape, *, regime: str = "sigmoid", kind: str, dtype: str, seed: int = 0
) -> Operands:
    """Operands of a case with a random initial state, all leaves that require gradients.

    Data come in `dtype` and gates in float32, both in float64 for float64; complex data accordingly.
    """
    gates = registry.recurrence(recurrence).gates
    wide = torch.float64 if dtype == "float64" else torch.float32
    operands: Operands = {}
    for name, value in _sampled(recurrence, shape, regime, kind, seed).items():
        if isinstance(value, Tensor):
            target = wide if name in gates or name == "initial_state" else DTYPES[dtype]
            value = value.to(target.to_complex() if value.is_complex() else target)
            value = value.clone().requires_grad_()
        operands[name] = value
    return operands


def detached(operands: Mapping[str, Any]) -> Operands:
    """Copies that carry no gradients."""
    return {name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in operands.items()}


def widened(operands: Mapping[str, Any]) -> Operands:
    """The same values in float64 or complex128, as new leaves."""
    wide = {}
    for name, value in operands.items():
        if isinstance(value, Tensor):
            target = torch.complex128 if value.is_complex() else torch.float64
            value = value.detach().to(target).clone().requires_grad_()
        wide[name] = value
    return wide


def evaluate(function: Callable[..., tuple[Tensor, Tensor]], operands: Mapping[str, Any]) -> Results:
    """Call forward and backward, with random gradients on the output and on the final state."""
    output, final_state = function(**operands)
    leaves = {name: value for name, value in operands.items() if isinstance(value, Tensor)}
    cotangents = [random_like(output, 1), random_like(final_state, 2)]
    gradients = torch.autograd.grad([output, final_state], list(leaves.values()), cotangents)
    return Results(output.detach(), final_state.detach(), dict(zip(leaves, gradients, strict=True)))


def random_like(x: Tensor, seed: int) -> Tensor:
    """The same normal numbers in any precision, up to rounding to bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.view_as_real(torch.randn(x.shape, generator=generator, dtype=torch.complex128))
    numbers = torch.view_as_complex(numbers.bfloat16().double())
    return (numbers if x.is_complex() else numbers.real).to(x.device, x.dtype)


_ORACLES: dict[Hashable, Results] = {}


def oracle(recurrence: str, operands: Mapping[str, Any]) -> Results:
    """The recurrence's definition in float64 on the very numbers of `operands`; equal numbers share one."""
    definition, wide = registry.recurrence(recurrence).definition, widened(operands)
    key = (definition, *((name, _content(value)) for name, value in wide.items()))
    if key not in _ORACLES:
        _ORACLES[key] = evaluate(definition, wide)
    return _ORACLES[key]


def _content(value: Any) -> Hashable:
    if not isinstance(value, Tensor):
        return repr(value)
    numbers = value.detach().cpu().resolve_conj().numpy()
    return value.dtype, value.shape, value.device, hashlib.sha256(numbers.tobytes()).digest()


def error(value: Tensor, reference: Tensor) -> float:
    """Largest absolute difference over the largest absolute value of the reference; inf where not finite."""
    assert value.shape == reference.shape, f"got shape {tuple(value.shape)}, not {tuple(reference.shape)}"
    wide = torch.complex128 if value.is_complex() or reference.is_complex() else torch.float64
    if not bool(torch.isfinite(torch.view_as_real(value) if value.is_complex() else value).all()):
        return math.inf
    difference = (value.to(wide) - reference.to(wide)).abs().max().item()
    return difference / max(reference.abs().max().item(), 1e-30)


def inputs(operands: Mapping[str, Any]) -> Tensor:
    """The operand (B, T, ...) that a recurrence sums."""
    return next(operands[name] for name in ("b", "v", "x") if name in operands)


def log_gate_name(operands: Mapping[str, Any]) -> str:
    """The operand that holds the log gates of a plain kind, or the rates of which delta makes them."""
    return next(name for name in ("log_a", "log_w", "A") if name in operands)


def set_log_gate(operands: Operands, log_gate: float) -> None:
    """Give every gate of a plain kind one value."""
    name = log_gate_name(operands)
    if name != "A":
        operands[name] = torch.full_like(operands[name], log_gate, requires_grad=True)
    else:
        operands["A"] = torch.full_like(operands["A"], log_gate, requires_grad=True)
        operands["delta"] = torch.ones_like(operands["delta"], requires_grad=True)


def scale_log_gates(operands: Operands, factor: float) -> None:
    """Multiply the log gates of a plain kind."""
    name = log_gate_name(operands)
    operands[name] = (operands[name] * factor).detach().requires_grad_()


def reset_at(operands: Operands, step: int) -> None:
    """Make the gates of a plain kind 0 at one step, and read after it: a bonus reads what is yet to go."""
    name = log_gate_name(operands)
    if "bonus" in operands:
        operands["bonus"] = None
    if name != "A":
        operands[name][:, step] = -math.inf
    else:
        operands["delta"][:, step] = 1e5
        operands["x"][:, step] /= 1e5


def span(recurrence: str, operands: Mapping[str, Any]) -> float:
    """The largest Σ -log gate over all steps that is finite, over the operand gates; resets do not count."""
    entry = registry.recurrence(recurrence)
    if entry.decay_span is not None:
        return entry.decay_span(operands)
    total, shape = 0.0, inputs(operands).shape
    for name in entry.gates:
        gate = operands.get(name)
        if gate is None or name == "phase":
            continue
        finite = torch.where(torch.isinf(gate), 0, gate.detach().double())
        over_time = finite.dim() >= 3 and finite.shape[1] == shape[1]
        total += -(finite.sum(1) if over_time else finite * shape[1]).min().item()
    return total


def assert_close(
    backend: Backend, got: Results, reference: Results, dtype: str, decay_span: float = 0.0
) -> None:
    """Every result within the tolerance of its dtype, or of the backend's declared error bound."""
    forward, gradient = TOLERANCE[dtype]
    if backend.error_bound is not None:
        bound = backend.error_bound(decay_span, dtype)
        forward, gradient = max(forward, bound), max(gradient, bound)
    names = {name: tensor for name, tensor, _ in reference.items()}
    for name, tensor, is_gradient in got.items():
        limit = gradient if is_gradient else forward
        found = error(tensor, names[name])
        assert found <= limit, f"{backend.of}/{backend.name} {dtype}: {name} off by {found:.2e} > {limit:.0e}"
