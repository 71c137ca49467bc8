"""Faults planted in bfloat16 inside a layer are found; products of bfloat16 are no fault."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssmperf import Case, Shape, Status
from ssmperf.authoring import steps
from ssmperf.engine.judge.reference import Reference
from ssmperf.engine.operands.subject import Subject, subject_of
from ssmperf.engine.operands.values import Values
from ssmperf.suitekit import judge_call, make_reference, registry

T = 67
SIZES = {
    "gla": {"H": 2, "K": 16, "V": 16},
    "rwkv6": {"H": 2, "K": 16, "V": 16},
    "gated_deltanet": {"H": 4, "K": 16, "V": 16},  # two heads may both start with gates near 1
    "mamba": {"D": 32, "N": 8},
    "rwkv4": {"C": 64},
    "rg_lru": {"C": 64},
}
Compute = Callable[..., tuple[Any, Any]]


@functools.lru_cache(maxsize=1)  # tests of one model follow one another
def in_bfloat16(model: str) -> tuple[Subject, Values, Reference]:
    """The layer of a model at its smoke shape, values for it, and their reference with gradients."""
    sizes = SIZES.get(model, SIZES["gla"])
    recurrence = registry.recurrence_of(model)
    shape = Shape(B=1, T=T, **sizes)
    subject = subject_of(
        Case("test", recurrence, "sequential", shape, model, "bfloat16", level="block", pass_="backward"),
        "cpu",
    )
    values = subject.values(0, with_state=False)
    definition = registry.recurrence(recurrence).definition
    return subject, values, make_reference(subject, definition, values, gradients=True)


def in_int8(x: torch.Tensor) -> torch.Tensor:
    """Round to 255 levels; gradients pass as if nothing was rounded."""
    level = x.detach().abs().max() / 127
    return x + ((x / level).round() * level - x).detach()


def gate_in_int8(name: str, gate: torch.Tensor) -> torch.Tensor:
    """Round a gate, not its log, to multiples of 1/127; and step sizes to 255 levels."""
    if not name.startswith("log_"):
        return in_int8(gate)
    rounded = (torch.exp(gate.detach()) * 127).round() / 127
    return gate + (rounded.clamp(min=1 / 254).log() - gate.detach())


def with_fault(fault: str, model: str) -> Compute:
    """Plant a fault in the model's sequential backend."""
    recurrence = registry.recurrence(registry.recurrence_of(model))
    right = registry.backend(model, "sequential").function

    def changed(operands: dict[str, Any], change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
        gates = {name: operands[name] for name in recurrence.gates if operands.get(name) is not None}
        return right(**{**operands, **{name: change(name, gate) for name, gate in gates.items()}})

    def compute(**operands: Any) -> tuple[Any, Any]:
        if fault == "swapped gate":
            return changed(operands, lambda name, gate: gate.flip(-1))
        if fault == "gate in int8":
            return changed(operands, gate_in_int8)
        if fault == "data in int8":
            data = {
                name: in_int8(value)
                for name, value in operands.items()
                if isinstance(value, torch.Tensor) and name not in recurrence.gates
            }
            return right(**{**operands, **data})
        if fault == "carry dropped":
            first, _ = right(**steps(operands, 0, 32, T))
            second, state = right(**steps(operands, 32, T, T))
            return torch.cat([first, second], dim=1), state
        output, state = right(**operands)
        factor = torch.ones(1, T, *output.shape[2:], dtype=output.dtype)
        if fault == "scaled by 1.02":
            factor *= 1.02
        if fault == "one head off":
            factor[:, :, 0] = 1.05
        if fault == "chunk dropped":
            factor[:, 16:32] = 0
        return output * factor, state

    return compute


@pytest.mark.parametrize(
    "fault",
    [
        "none",
        "scaled by 1.02",
        "swapped gate",
        "gate in int8",
        "data in int8",
        "carry dropped",
        "one head off",
        "chunk dropped",
    ],
)
@pytest.mark.parametrize("model", SIZES)
def test_a_fault_inside_a_layer_is_found_in_bfloat16(model: str, fault: str) -> None:
    subject, values, reference = in_bfloat16(model)
    function = subject.function(with_fault(fault, model), torch.bfloat16)
    verdict = judge_call(function, values.clone(), reference, dtype=torch.bfloat16, gradients=True)
    assert verdict.status is (Status.OK if fault == "none" else Status.WRONG), verdict.reason


def test_a_norm_hides_a_scaled_recurrence_from_all_but_the_inner_judgement() -> None:
    subject, values, reference = in_bfloat16("gla")
    function = subject.function(with_fault("scaled by 1.02", "gla"), torch.bfloat16)
    verdict = judge_call(function, values.clone(), reference, dtype=torch.bfloat16, gradients=True)
    assert str(verdict.reason).startswith("recurrence: output")
    assert {"output", "recurrence: output"} <= set(verdict.row_errors)
    assert verdict.row_errors["output"] < verdict.row_tolerances["output"]


class Rounded(torch.autograd.Function):
    """The identity with its value and its gradient rounded to bfloat16, as matrix units take them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.bfloat16().to(gradient.dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Rounded.apply(x)  # type: ignore[no-untyped-call]
    return result


def products_in_bfloat16(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_a: torch.Tensor, initial_state: None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear attention in chunks of 16 steps whose products all have operands in bfloat16."""
    heads_first = [x.float().transpose(1, 2) for x in (q, k, v, log_a)]
    state, outputs = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]), []
    for start in range(0, T, 16):
        q_c, k_c, v_c, gate = (x[:, :, start : start + 16] for x in heads_first)
        since = gate.cumsum(2)
        whole = since[:, :, -1:]
        queries, keys, values = rounded(q_c * since.exp()), rounded(k_c * (-since).exp()), rounded(v_c)
        scores = rounded((queries @ keys.mT).tril())
        outputs.append(queries @ rounded(state) + scores @ values)
        state = whole.exp().mT * state + rounded(k_c * (whole - since).exp()).mT @ values
    return torch.cat(outputs, dim=2).transpose(1, 2).to(v.dtype), state


@pytest.mark.parametrize("model", ["gla", "hgrn2"])
def test_products_of_bfloat16_are_no_fault(model: str) -> None:
    subject, values, reference = in_bfloat16(model)
    function = subject.function(products_in_bfloat16, torch.bfloat16)
    verdict = judge_call(function, values.clone(), reference, dtype=torch.bfloat16, gradients=True)
    assert verdict.status is Status.OK, verdict.reason
