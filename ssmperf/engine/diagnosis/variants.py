"""Variants: results of the recurrence with a typical fault in it, to be compared with a wrong result.

A variant is the definition with one thing changed, evaluated in float64 on the same operands: state lost
between chunks, gradients of the carry lost, initial state ignored, a gate read with the wrong sign, an
operand of the first batch item used for all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.judge.calls.causes import faults
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import differentiable, widen
from ssmperf.engine.operands.time_axis import has_time, length_of, steps, with_time
from ssmperf.engine.operands.values import Values, contract

Compute = Callable[..., tuple[Any, Any]]

# Steps that a variant computes for a record, with gradients and without; `ssmperf diagnose` computes all.
MOST_STEPS, MOST_STEPS_FORWARD = 256, 512
MOST_ELEMENTS = 1 << 23  # of the states of all steps; beyond it, two batch items stand for all
STATE = "initial_state"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Inputs from which the variants of a case are made.

    length: number of time steps. sizes: the case's sizes by letter.
    deep: whether to compute as many steps as there are.
    """

    definition: Compute
    values: Values
    length: int
    sizes: Mapping[str, int]
    deep: bool = False

    @property
    def has_state(self) -> bool:
        return STATE in inspect.signature(self.definition).parameters


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed definition.

    kind: name of the fault. text: its wording, as in "as if the initial state were 0".
    backward: whether it changes gradients alone.
    state_gradient: whether the loss's gradient at the final state counts.
    """

    kind: str
    text: str
    compute: Compute
    backward: bool = False
    state_gradient: bool = True


@dataclass(frozen=True, slots=True)
class Region:
    """The part of the operands on which variants are computed: some batch items, the first steps."""

    items: tuple[int, ...] | None
    steps: int
    gradients: bool


def region_of(evidence: Evidence, *, gradients: bool, worst_item: int) -> Region | None:
    """Choose a part that is small enough; None if the steps are too many for gradients."""
    values, T = evidence.values, evidence.length
    _, state = contract(evidence.definition, values.operands, T)
    elements = (state.numel() if isinstance(state, Tensor) else values.grad_output[:, 0].numel()) * T
    batch = values.grad_output.shape[0]
    items = None
    if elements > MOST_ELEMENTS and batch > 2:
        items = (0, worst_item or 1)
        elements = elements * 2 // batch
    most = MOST_STEPS if gradients else MOST_STEPS_FORWARD
    if not evidence.deep:
        most = min(most, max(2, MOST_ELEMENTS * T // max(1, elements)))
        if gradients and most < T:
            return None
    else:
        most = T
    return Region(items, min(T, most), gradients)


def evaluate(variant: Variant, evidence: Evidence, region: Region) -> dict[str, Tensor]:
    """Compute a variant's results by name, on a region: output, final state and gradients.

    Objects that the region does not determine are left out: what a sum over all batch items or steps enters.
    """
    operands = _restricted(evidence, region)
    values, T = evidence.values, evidence.length
    leaves = {name: each for name, each in operands.items() if differentiable(each)}
    if not region.gradients:
        with torch.no_grad():
            output, state = variant.compute(**operands)
        found = {"output": output}
        if isinstance(state, Tensor) and region.steps == T:
            found["final_state"] = state
        return found
    for leaf in leaves.values():
        leaf.requires_grad_()
    with torch.enable_grad():
        output, state = variant.compute(**operands)
    ends = [(output, _items(values.grad_output, region))]
    if isinstance(state, Tensor) and values.grad_state is not None and variant.state_gradient:
        ends.append((state, _items(values.grad_state, region)))
    ends = [(end, gradient) for end, gradient in ends if end.requires_grad]
    found = {"output": output.detach()}
    if isinstance(state, Tensor):
        found["final_state"] = state.detach()
    gradients = torch.autograd.grad(
        [end for end, _ in ends],
        list(leaves.values()),
        [gradient.to(end.dtype) for end, gradient in ends],
        allow_unused=True,
    )
    for name, leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        if region.items is None or _has_items(name, evidence.values.operands[name], evidence):
            found[name] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def restricted(tensor: Tensor, name: str, evidence: Evidence, region: Region) -> Tensor:
    """Restrict a result, or its exact value, to the region of a variant's results."""
    if name in ("output", "final_state") or _has_items(name, evidence.values.operands.get(name), evidence):
        tensor = _items(tensor, region)
    return tensor[:, : region.steps] if name == "output" else tensor


def variants(evidence: Evidence, chunks: Sequence[int], *, gradients: bool) -> Iterator[Variant]:
    """List the variants of a definition on some operands.

    chunks: lengths of chunks between which state or gradients may be lost.
    gradients: whether gradients are wrong; else only variants that change results are listed.
    """
    operands, definition, T = evidence.values.operands, evidence.definition, evidence.length
    if evidence.has_state:
        if gradients:
            yield from _of_gradients(evidence, chunks)
        if operands.get(STATE) is not None:
            yield Variant("initial state", "as if the initial state were 0", _without_state(definition))
        for P in chunks:
            text = f"as if the state were lost every {P} steps"
            yield Variant("lost state", text, _in_chunks(definition, P, carry=lambda state: None))
        for stop in _shorter(T):
            text = f"as if it ended behind step {stop - 1}, before the last {T - stop} of {T} steps"
            yield Variant("short", text, _ending(definition, stop))
    yield from _of_gates(definition, operands, T)
    yield from _of_batch(definition, operands, evidence)
    for text, fault in faults(evidence.sizes, operands):
        yield Variant("form of the call", text, fault(definition))
    timed = with_time(operands, T)
    pairs = [(one, other) for other in timed for one in timed if one < other]
    for one, other in sorted(pairs):
        if operands[one].shape == operands[other].shape:
            yield Variant("exchanged", f"as if {one} and {other} were exchanged",
                          _changed(definition, _exchange(one, other)))  # fmt: skip


def _of_gradients(evidence: Evidence, chunks: Sequence[int]) -> Iterator[Variant]:
    definition = evidence.definition
    if evidence.values.grad_state is not None and bool(evidence.values.grad_state.any()):
        text = "as if the gradient at the final state were 0"
        yield Variant("final state's gradient", text, definition, backward=True, state_gradient=False)
    for P in chunks:
        text = f"as if the carry were detached every {P} steps"
        compute = _in_chunks(definition, P, carry=lambda state: state.detach())
        yield Variant("detached carry", text, compute, backward=True)


def _of_gates(definition: Compute, operands: Mapping[str, Any], T: int) -> Iterator[Variant]:
    gates = [
        name
        for name, value in operands.items()
        if isinstance(value, Tensor) and (name.startswith("log_") or name == "phase")
    ]
    for name in gates:
        log, symbol = name.startswith("log_"), f"exp({name})" if name.startswith("log_") else name
        instead = f"exp(-{name})" if log else f"-{name}"
        text = f"as if {instead} stood in place of {symbol}"
        yield Variant("sign of a gate", text, _changed(definition, _apply(name, lambda x: -x)))
        text = f"as if {symbol} were {1 if log else 0}"
        yield Variant("ignored gate", text, _changed(definition, _apply(name, _ignored)))
        if has_time(name, operands[name], T) and T > 2:
            for shift, which in ((1, "before"), (-1, "after")):
                text = f"as if each step had the {name} of the step {which} it"
                yield Variant("shifted gate", text, _changed(definition, _apply(name, _shifted(shift))))


def _of_batch(definition: Compute, operands: Mapping[str, Any], evidence: Evidence) -> Iterator[Variant]:
    if evidence.values.grad_output.shape[0] < 2:
        return
    for name, value in operands.items():
        if _has_items(name, value, evidence):
            text = f"as if {name} of the first batch item were that of all"
            first = _apply(name, lambda x: x[:1].expand_as(x))
            yield Variant("broadcast", text, _changed(definition, first))


def _shorter(T: int) -> list[int]:
    """List ends of a sequence that a kernel may take for its end."""
    found = [T // P * P for P in (64, 32, 16, 128, 256) if T % P and T > P]
    return [*dict.fromkeys(found), *([T - 1] if T > 1 else [])]


def _changed(definition: Compute, change: Callable[[dict[str, Any]], None]) -> Compute:
    def compute(**operands: Any) -> tuple[Any, Any]:
        change(operands)
        return definition(**operands)

    return compute


def _apply(name: str, function: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Any]], None]:
    def change(operands: dict[str, Any]) -> None:
        operands[name] = function(operands[name])

    return change


def _ignored(gate: Tensor) -> Tensor:
    return torch.nan_to_num(gate) * 0  # a reset is -inf


def _exchange(one: str, other: str) -> Callable[[dict[str, Any]], None]:
    def change(operands: dict[str, Any]) -> None:
        operands[one], operands[other] = operands[other], operands[one]

    return change


def _shifted(by: int) -> Callable[[Tensor], Tensor]:
    def shift(gate: Tensor) -> Tensor:
        """Move along time; the end that becomes free keeps its gate."""
        if by > 0:
            return torch.cat([gate[:, :1], gate[:, :-1]], TIME)
        return torch.cat([gate[:, 1:], gate[:, -1:]], TIME)

    return shift


def _without_state(definition: Compute) -> Compute:
    def compute(**operands: Any) -> tuple[Any, Any]:
        return definition(**{**operands, STATE: None})

    return compute


def _in_chunks(definition: Compute, P: int, *, carry: Callable[[Any], Any]) -> Compute:
    """Run a definition chunk by chunk, and change the state between chunks."""

    def compute(**operands: Any) -> tuple[Any, Any]:
        length = length_of(operands)
        state, outputs = operands.pop(STATE, None), []
        for start in range(0, length, P):
            output, state = definition(
                **steps(operands, start, min(start + P, length), length), **{STATE: state}
            )
            outputs.append(output)
            if start + P < length:
                state = carry(state)
        return torch.cat(outputs, TIME), state

    return compute


def _ending(definition: Compute, stop: int) -> Compute:
    """Run a definition on fewer steps; the output behind them is 0."""

    def compute(**operands: Any) -> tuple[Any, Any]:
        length = length_of(operands)
        if length <= stop:
            return definition(**operands)
        output, state = definition(**steps(operands, 0, stop, length))
        behind = output.new_zeros(output.shape[0], length - stop, *output.shape[2:])
        return torch.cat([output, behind], TIME), state

    return compute


def _restricted(evidence: Evidence, region: Region) -> dict[str, Any]:
    operands = steps(evidence.values.operands, 0, region.steps, evidence.length)
    found: dict[str, Any] = {}
    for name, value in operands.items():
        value = widen(value, torch.float64)
        if isinstance(value, Tensor):
            own = _has_items(name, evidence.values.operands[name], evidence)
            value = (_items(value, region) if own else value).detach().clone()
        found[name] = value
    return found


def _items(tensor: Tensor, region: Region) -> Tensor:
    return tensor if region.items is None else tensor[list(region.items)]


def _has_items(name: str, value: Any, evidence: Evidence) -> bool:
    """Tell whether an operand has one entry per batch item."""
    batch = evidence.values.grad_output.shape[0]
    if not isinstance(value, Tensor) or value.shape[:1] != (batch,) or batch < 2:
        return False
    return name == STATE or has_time(name, value, evidence.length)
