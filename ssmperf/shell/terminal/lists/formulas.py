"""Cost models as formulas in the letters of a shape.

The functions that compute the numbers are called with symbols, so that formulas and numbers cannot differ.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import TRAINING_PASSES
from ssmperf.engine.cases.shape import PRIMES, Shape
from ssmperf.engine.layers.model import Model
from ssmperf.engine.operands.build import build_model, embed_text, sample_state
from ssmperf.engine.plan.sizes import one_token
from ssmperf.engine.registry.cost import Spec
from ssmperf.engine.registry.declarations import Recurrence

_LARGEST_MULTIPLE = 4  # an LSTM's weights have four blocks; must be less than every size
BYTES = 4  # per real number: formulas are for float32
_REGIME = "sigmoid"


@functools.lru_cache(maxsize=256)
def of_recurrence(name: str, gate_kind: str) -> dict[str, Any]:
    """Give the least bytes, FLOPs, special functions and depth of each pass, and the state's size, as text.

    The formulas hold for float32 operands of a gate kind. `state` counts the real numbers of all batch items
    together.
    """
    entry = registry.recurrence(name)
    specs, letters = _symbols(entry, gate_kind)
    found: dict[str, Any] = {pass_: _costs(entry, letters, specs, pass_) for pass_ in TRAINING_PASSES}
    if not entry.has_state:
        return {**found, "state": "0"}
    specs, letters = _symbols(entry, gate_kind, decode=True)
    found["decode"] = _costs(entry, letters, specs, "decode")
    state = specs["initial_state"]
    return {**found, "state": _text(state.numel * (2 if state.complex else 1))}


def state_numbers(model: str) -> int:
    """Count the real numbers that a model passes on after a sequence of its first smoke shape.

    A state that grows is counted at the end of the sequence.
    """
    entry = registry.model(model)
    shape = registry.shapes(entry, "smoke")[0].with_(B=1)
    recurrence = registry.recurrence(entry.recurrence)
    if not recurrence.has_state:
        return 0
    layer: Model = build_model(model, shape.with_(T=1), 0)
    _, state = layer.float()(embed_text(1, 1, layer.width, seed=0), backend=recurrence.definition)
    rows = registry.shapes(entry, "smoke")[0]["T"] if recurrence.grows else 1
    return rows * int(state.numel()) * (2 if state.is_complex() else 1)


def _costs(
    entry: Recurrence, letters: Mapping[str, Any], specs: Mapping[str, Any], pass_: str
) -> dict[str, str]:
    """Evaluate the cost model with symbols, or with numbers where it takes no symbols.

    A cost model that computes a logarithm of T, for example, takes none. The text then names the shape for
    which the numbers hold.
    """
    try:
        cost, suffix = entry.cost(letters, specs, pass_), ""  # type: ignore[arg-type]
    except TypeError:
        shape = entry.presets["standard"][0]
        if pass_ == "decode":
            (shape,) = one_token([shape], grows=entry.grows)
        sizes = {symbol: shape[letter] for letter, symbol in letters.items()}
        numbers = {
            name: Spec(tuple(sizes.get(axis, axis) for axis in spec.shape), spec.itemsize, spec.complex)
            for name, spec in specs.items()
        }
        cost, suffix = entry.cost(shape, numbers, pass_), f" at {shape}"
    parts = {"bytes": cost.bytes, "flops": cost.flops, "special": cost.special, "depth": cost.depth}
    return {part: f"{value:.4g}{suffix}" if suffix else _text(value) for part, value in parts.items()}


def _symbols(
    entry: Recurrence, gate_kind: str, *, decode: bool = False
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Make a shape and operand specs with a symbol for each letter.

    decode: make those of a decode step: one token, from an initial state.
    """
    import sympy  # type: ignore[import-untyped]
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = Shape({letter: PRIMES[letter] for letter in entry.presets["smoke"][0]})
    if decode:
        past = {"S": PRIMES["S"]} if entry.grows else {}
        (shape,) = one_token([Shape({**shape, **past})], grows=entry.grows)
    operands = entry.sample(shape, regime=_REGIME, generator=generator, gate_kind=gate_kind)
    if decode:
        passed = {n: value for n, value in operands.items() if value is not None or n in entry.required}
        operands = {
            **operands,
            "initial_state": sample_state(entry, passed, generator, T=1, past=shape.get("S")),
        }
    letters = {letter: sympy.Symbol(letter, positive=True, integer=True) for letter in shape}
    letters |= {"T": 1} if decode else {}

    def axis(size: int) -> Any:
        """Express the size of an axis as a multiple of a letter, or as a sum of two, perhaps plus one.

        A size that is none of these stays a number.
        """
        for letter, symbol in letters.items():
            if size % PRIMES[letter] == 0 and size // PRIMES[letter] <= _LARGEST_MULTIPLE:
                return size // PRIMES[letter] * symbol
        for first, second in itertools.combinations(letters, 2):
            more = size - PRIMES[first] - PRIMES[second]
            if more in (0, 1):
                return letters[first] + letters[second] + more
        return size

    specs: dict[str, Any] = {}
    for name, value in operands.items():
        if isinstance(value, torch.Tensor):
            axes = tuple(map(axis, value.shape))
            width = 2 * BYTES if value.is_complex() else BYTES
            specs[name] = Spec(axes, width, value.is_complex())
    return specs, letters


def _text(value: Any) -> str:
    import sympy

    return str(sympy.factor(sympy.nsimplify(value)))
