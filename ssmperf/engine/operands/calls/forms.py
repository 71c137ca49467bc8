"""What a case's call has beside the operands of its model or regime: fewer key heads, packing, options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.call import Call, parse
from ssmperf.engine.cases.calls.packing import lengths_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.pattern import parse as parse_pattern
from ssmperf.engine.operands.calls.memory import viewed
from ssmperf.engine.operands.dtypes import dtype_of, widen
from ssmperf.engine.registry.declarations import PACKED, Recurrence
from ssmperf.errors import Unsupported


def completed(case: Case, recurrence: Recurrence, operands: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Add a case's options, optional operands and bounds of sequences; leave as many key heads as it has."""
    call = parse(case.call)
    found = {name: _with_key_heads(name, value, case, recurrence) for name, value in operands.items()}
    device = next(value.device for value in operands.values() if isinstance(value, Tensor))
    generator = torch.Generator(device).manual_seed(seed + 2)
    for name in call.operands:
        if name in recurrence.optional and found.get(name) is None:
            found[name] = _optional(name, found, recurrence, generator)
    found |= recurrence.option_values(call)
    lengths = lengths_of(case.packing)
    if lengths is not None:
        ends = torch.tensor((0, *lengths), device=device).cumsum(0)
        found[PACKED] = ends.to(torch.int32 if int(ends[-1]) < 2**31 else torch.int64)
    return found


def in_memory(operands: Mapping[str, Any], call: Call) -> dict[str, Any]:
    """Give operands the dtypes and views of a call."""
    found = dict(operands)
    for name, dtype in call.dtypes.items():
        if isinstance(found.get(name), Tensor):
            found[name] = _cast(found[name], dtype_of(dtype))
    for name, view in call.views.items():
        if isinstance(found.get(name), Tensor):
            found[name] = viewed(found[name], view)
    return found


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to a dtype. A real tensor made complex keeps its digits; its imaginary part is a flipped copy."""
    if dtype.is_complex and not x.is_complex():
        real = torch.promote_types(dtype.to_real(), x.dtype)
        return torch.complex(x.to(real), x.flip(0, -1).to(real))
    cast: Tensor = widen(x, dtype)
    return cast


def wanted(operands: Mapping[str, Any], call: Call) -> tuple[str, ...] | None:
    """Name the operands whose gradients a call wants; None for all.

    Raises:
        Unsupported: the operands have none of these.
    """
    if call.wanted is None:
        return None
    found = tuple(name for name in call.wanted if operands.get(name) is not None)
    if not found:
        raise Unsupported(f"these operands have no {' or '.join(call.wanted)} to differentiate")
    return found


def _optional(
    name: str, operands: Mapping[str, Any], recurrence: Recurrence, generator: torch.Generator
) -> Tensor:
    """Draw an optional operand of the size that the others determine."""
    sizes: dict[str, int] = {}
    for other, text in recurrence.operand_shapes.items():
        value = operands.get(other)
        if isinstance(value, Tensor):
            sizes |= parse_pattern(text).match(tuple(value.shape), sizes) or {}
    axes = parse_pattern(recurrence.operand_shapes[name]).alternatives[0]
    size = tuple(axis.size(sizes) or 0 for axis in axes)
    if recurrence.sample_optional is not None:
        drawn: Tensor = recurrence.sample_optional(name, size, generator)
        return drawn
    return torch.randn(size, generator=generator, device=generator.device)


def _with_key_heads(name: str, value: Any, case: Case, recurrence: Recurrence) -> Any:
    """Leave the first of the heads that share a key head, if a case has G key heads and an operand more."""
    G, text = case.shape.get("G"), recurrence.operand_shapes.get(name)
    if G is None or text is None or not isinstance(value, Tensor):
        return value
    for axes in parse_pattern(text).alternatives:
        letters = [axis.letter for axis in axes]
        if len(letters) == value.dim() and "G" in letters:
            at = letters.index("G")
            if value.shape[at] == G:
                return value
            heads = torch.arange(G, device=value.device) * value.shape[at] // G
            return value.index_select(at, heads)
    return value
