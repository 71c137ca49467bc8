"""Words for a call that is wrong in one form and right in the plain one, and the tests behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.call import AUTOCAST, DY, INCOMING, STATE, parse
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.dtypes import widen
from ssmperf.engine.operands.values import Values
from ssmperf.engine.registry.declarations import PACKED

ARTICLES = {"expanded": "an expanded", "sliced": "a sliced", "transposed": "a transposed"}
CLOSE = 0.03  # of the error that an explanation may leave

Compute = Callable[..., Any]
Fault = Callable[[Compute], Compute]  # a definition -> the same with a fault in it


def words_of(case: Case) -> str:
    """Name the form of a case's call, as the options that choose it."""
    words = [] if case.call == "none" else [case.call]
    words += [f"G={case.shape['G']}"] if "G" in case.shape else []
    words += [] if case.packing == "none" else [f"packing={case.packing}"]
    return " ".join(words) or "a plain call"


def cause(case: Case, operands: tuple[str, ...]) -> str:
    """Say what is wrong, of a case whose plain call is right. operands: those that can be differentiated."""
    call = parse(case.call)
    if AUTOCAST in call.circumstances:
        return "right by itself, wrong under autocast"
    if "G" in case.shape:
        H, G = case.shape["H"], case.shape["G"]
        return f"right with {H} key heads, wrong where {H} heads share {G}"
    if case.packing != "none":
        return f"right for a sequence by itself, wrong for packed ones of {case.packing} steps"
    if call.wanted is not None:
        constant = [name for name in operands if name not in call.wanted]
        if len(call.wanted) == 1:
            return f"right where all gradients are wanted, wrong where that of {call.wanted[0]} alone is"
        are = "is a constant" if len(constant) == 1 else "are constants"
        return f"right where all gradients are wanted, wrong where {', '.join(constant)} {are}"
    for name, view in call.views.items():
        where = INCOMING.get(name)
        if view == "missing":
            other = INCOMING["ds" if name == DY else DY]
            return f"right with gradients at both results, wrong where only the {other} has one"
        if where is not None and view in ARTICLES:
            return (
                f"right for a dense gradient at the {where}, wrong for {ARTICLES[view]} one: "
                "it reads the gradient's memory as contiguous"
            )
    return f"right without, wrong with {case.call}"


def alone(case: Case) -> Iterator[str]:
    """List the words of calls that have one of a call's views, if it has several."""
    views = parse(case.call).views
    for name, view in views.items() if len(views) > 1 else ():
        yield f"{name}:{view}"


def explained(case: Case, definition: Compute, values: Values, output: Tensor, exact: Tensor) -> str | None:
    """Explain a wrong output by a fault that gives it; None if none of those tried does."""
    before = _distance(output, exact)
    operands = {name: widen(value, torch.float64) for name, value in values.operands.items()}
    for text, fault in faults(case.shape, operands):
        with torch.no_grad():
            try:
                found = fault(definition)(**operands)[0]
            except Exception:  # the definition refuses the changed operands, so that this is no explanation
                found = exact
        if found.shape == output.shape and _distance(output, found) <= CLOSE * before:
            return text
    return None


def faults(sizes: Mapping[str, int], operands: Mapping[str, Any]) -> Iterator[tuple[str, Fault]]:
    """List typical faults of shared key heads and of packing, as changes of the definition."""
    H, G = sizes.get("H"), sizes.get("G")
    if H and G:
        heads = torch.arange(H, device=operands["k"].device)
        yield "as if head h read key head h mod G", _changing(lambda given: _key_heads(given, heads % G))
        yield "as if all heads read the first key head", _changing(lambda given: _key_heads(given, heads * 0))
    if operands.get(PACKED) is None:
        return
    yield "as if the state of each sequence went on into the next", _changing(_unpacked)
    if operands.get(STATE) is not None:
        yield "as if each sequence began without a state", _changing(lambda given: {STATE: None})
        yield (
            "as if each sequence began from the first one's state",
            _changing(lambda given: {STATE: given[STATE][:1].expand_as(given[STATE])}),
        )


def _changing(change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Fault:
    def fault(definition: Compute) -> Compute:
        return lambda **operands: definition(**{**operands, **change(operands)})

    return fault


def _key_heads(operands: Mapping[str, Any], heads: Tensor) -> dict[str, Any]:
    return {name: operands[name][:, :, heads] for name in ("q", "k")}


def _unpacked(operands: Mapping[str, Any]) -> dict[str, Any]:
    state = operands.get(STATE)
    return {PACKED: None, STATE: None if state is None else state[:1]}


def _distance(one: Tensor, other: Tensor) -> float:
    return float((widen(one, torch.float64) - widen(other, torch.float64)).abs().nan_to_num(torch.inf).max())
