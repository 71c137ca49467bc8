"""Cost models as formulas in the letters of a shape, read off the functions that compute the numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from ssmperf import registry
from ssmperf.case import DIMENSIONS, PASSES, Shape
from ssmperf.layer import Model
from ssmperf.operands import build_model, embed_text
from ssmperf.recurrence import Recurrence, Spec

# a size for each letter by which an operand's axis can be told; 1 and 2 mean broadcasting and pairs
_SIZES = dict(zip(DIMENSIONS, (3, 5, 7, 11, 13, 17, 19, 23), strict=True))
BYTES = 4  # of a real number: formulas are for float32
_REGIME = "sigmoid"


@functools.lru_cache(maxsize=256)
def of_recurrence(name: str, gate_kind: str) -> dict[str, Any]:
    """Least bytes, FLOPs, special functions and depth of each pass, and the state's numbers, as text.

    For float32 operands of a gate kind; `state` counts real numbers, all batch items together.
    """
    entry = registry.recurrence(name)
    specs, letters = _symbols(entry, gate_kind)
    found: dict[str, Any] = {pass_: _costs(entry, letters, specs, pass_) for pass_ in PASSES}
    if entry.state_shape is None:
        found["state"] = "0"
    else:
        numbers = math.prod(entry.state_shape(letters))  # type: ignore[arg-type]
        found["state"] = _text(numbers * (2 if gate_kind.endswith("_complex") else 1))
    return found


def state_numbers(model: str) -> int:
    """Real numbers in a model's state, of one sequence at its first smoke shape."""
    entry = registry.model(model)
    shape = entry.shapes("smoke")[0].with_(B=1)
    recurrence = registry.recurrence(entry.recurrence)
    if not recurrence.has_state:
        return 0
    layer: Model = build_model(model, shape.with_(T=1), 0)
    operands = layer.float().operands(embed_text(1, 1, layer.width, seed=0))
    _, state = recurrence.definition(**operands)
    return int(state.numel()) * (2 if state.is_complex() else 1)


def _costs(
    entry: Recurrence, letters: Mapping[str, Any], specs: Mapping[str, Any], pass_: str
) -> dict[str, str]:
    """The cost model with symbols; with numbers, and where they hold, if it takes none (a logarithm of T)."""
    try:
        cost, where = entry.cost(letters, specs, pass_), ""  # type: ignore[arg-type]
    except TypeError:
        shape = entry.presets["standard"][0]
        sizes = {symbol: shape[letter] for letter, symbol in letters.items()}
        numbers = {
            name: Spec(tuple(sizes.get(axis, axis) for axis in spec.shape), spec.itemsize, spec.complex)
            for name, spec in specs.items()
        }
        cost, where = entry.cost(shape, numbers, pass_), f" at {shape}"
    parts = {"bytes": cost.bytes, "flops": cost.flops, "special": cost.special, "depth": cost.depth}
    return {part: f"{value:.4g}{where}" if where else _text(value) for part, value in parts.items()}


def _symbols(entry: Recurrence, gate_kind: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Operand specs and shape with a symbol for each letter."""
    import sympy  # type: ignore[import-untyped]
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = Shape({letter: _SIZES[letter] for letter in entry.presets["smoke"][0]})
    drawn = entry.sample(shape, regime=_REGIME, generator=generator, gate_kind=gate_kind)
    letters = {letter: sympy.Symbol(letter, positive=True, integer=True) for letter in shape}
    by_size = {_SIZES[letter]: symbol for letter, symbol in letters.items()}
    specs: dict[str, Any] = {}
    for name, value in drawn.items():
        if isinstance(value, torch.Tensor):
            axes = tuple(by_size.get(size, size) for size in value.shape)
            width = 2 * BYTES if value.is_complex() else BYTES
            specs[name] = Spec(axes, width, value.is_complex())
    return specs, letters


def _text(value: Any) -> str:
    import sympy

    return str(sympy.factor(sympy.nsimplify(value)))
