"""Write down the contract of a recurrence, for the docstring of a file that computes it.

All of it is read off the recurrence's declarations, and off operands and results that are made for this.
"""

from __future__ import annotations

import inspect
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.dtypes import DTYPES
from ssmperf.engine.cases.case import LAYOUTS, PASSES, Case
from ssmperf.engine.cases.pattern import parse
from ssmperf.engine.cases.shape import PRIMES, Shape
from ssmperf.engine.operands.build import build_operands, initial_state
from ssmperf.engine.operands.dtypes import differentiable
from ssmperf.engine.registry.declarations import DEVICES, Recurrence

DATA_DTYPE = "bfloat16"  # of the data in the table, which shows the operands that keep another dtype
REGIME = "sigmoid"
STATE, OUTPUT, FINAL = "initial_state", "output", "final state"
WIDTH = 88


def contract(recurrence: str) -> str:
    """Describe in text a backend's operands and required results.

    Raises:
        UnknownName: no such recurrence.
    """
    entry = registry.recurrence(recurrence)
    seen = _calls(entry)
    parts = (
        inspect.getdoc(entry.definition) or "",
        f"Operands and results, with their dtypes where the data are {DATA_DTYPE}:",
        _table(entry, seen),
        _wrapped(_dtypes(entry)),
        _wrapped(_gates(entry)),
        _wrapped(_passes(entry, seen)),
        _wrapped(_refusals(entry)),
    )
    return "\n\n".join(part for part in parts if part)


def _calls(entry: Recurrence) -> dict[str, list[Tensor]]:
    """Collect the tensors of one call per kind of gates, by name: operands, output and final state."""
    shape = Shape({letter: PRIMES[letter] for letter in _letters(entry)})
    seen: dict[str, list[Tensor]] = {}
    for kind in entry.gate_kinds:
        source = f"{REGIME}/{kind}"
        case = Case("new", entry.name, "", shape, dtype=DATA_DTYPE, operand_source=source)
        operands = build_operands(case)
        if entry.has_state:
            operands[STATE] = initial_state(case, operands)
        output, final = entry.definition(**operands)
        for name, value in {**operands, OUTPUT: output, FINAL: final}.items():
            if isinstance(value, Tensor):
                seen.setdefault(name, []).append(value)
    return seen


def _letters(entry: Recurrence) -> list[str]:
    """List the letters of a recurrence's sizes, with that of the steps of a state that grows."""
    return [*(["S"] if entry.grows else []), *entry.presets["smoke"][0]]


def _table(entry: Recurrence, seen: Mapping[str, list[Tensor]]) -> str:
    rows = [_row(entry, name, seen.get(name, [])) for name in entry.tensors]
    for name in (OUTPUT, FINAL):
        shapes = (
            _either(_in_letters(value, _letters(entry)) for value in seen.get(name, []))
            or "None: there is no state"
        )
        rows.append((f"-> {name}", shapes, _dtypes_of(seen.get(name, []))))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(
        f"    {name:{widths[0]}}  {shape:{widths[1]}}  {dtype}".rstrip() for name, shape, dtype in rows
    )


def _row(entry: Recurrence, name: str, values: list[Tensor]) -> tuple[str, str, str]:
    parameter = entry.signature.parameters[name]
    if name not in entry.operand_shapes:
        return name, f"an option, by default {parameter.default!r}", ""
    pattern = parse(entry.operand_shapes[name])
    shapes = [_tuple(axis.text for axis in axes) for axes in pattern.alternatives]
    shapes += ["None"] if "None" in str(parameter.annotation) else []
    return name, "broadcasts to " * pattern.broadcast + _either(shapes), _dtypes_of(values)


def _dtypes(entry: Recurrence) -> str:
    kept = _listed([name for name in entry.gates if entry.operand_shapes.get(name)])
    accumulate = f"The data come in {_listed(DTYPES)}. Accumulate in float32 or wider"
    if not kept:
        return f"{accumulate}."
    return f"{accumulate}. {kept}: in float32 whatever the dtype of the data, float64 with float64."


def _gates(entry: Recurrence) -> str:
    logs = [name for name in entry.gates if name.startswith("log_")]
    text = ""
    if logs:
        text = (
            f"{_listed(logs)}: logarithms of gates, ≤ 0. -inf is legal, a reset: the gate is exactly 0, and "
            "so is the gradient at its logarithm. Form the gates between two steps by sums of logarithms or "
            "products of gates, never by differences or quotients, which a reset makes NaN. "
        )
    if len(entry.gate_kinds) > 1:
        text += f"Kinds of gates, of which a backend may declare fewer: {_listed(entry.gate_kinds)}."
    return text


def _passes(entry: Recurrence, seen: Mapping[str, list[Tensor]]) -> str:
    given = [name for name in entry.tensors if any(map(differentiable, seen.get(name, [])))]
    passes = [each for each in PASSES if entry.has_state or each != "decode"]
    states = " and the final state" if entry.has_state else ""
    text = (
        f"Passes: {_listed(passes)}. Gradients are asked of {_listed(given)}, and of other tensor operands "
        f"where a call has them, for random gradients arriving at the output{states}. They come from "
        "autograd: compute with torch's operations, or with a torch.autograd.Function."
    )
    if entry.has_state:
        text += " decode is a call with T = 1 from a state, without gradients."
    return text


def _refusals(entry: Recurrence) -> str:
    gates = "gates=, " if len(entry.gate_kinds) > 1 else ""
    return (
        f"Operands must not be changed. The decorator declares limits of the backend ({gates}dtypes=, "
        f"devices= of {_listed(DEVICES)}, passes=, layouts= of {_listed(LAYOUTS)}, lengths=, sizes=, "
        'needs=), or the function raises ssmperf.Unsupported("the reason"). Both are recorded as '
        "`unsupported`. Anything else that is not the recurrence is `wrong`."
    )


def _in_letters(value: Tensor, letters: Iterable[str]) -> str:
    """Write a shape in a recurrence's letters, in sums of two of them, or in sums of two and one."""
    known = {PRIMES[letter]: letter for letter in letters}
    sums = {
        one + other + more: f"{known[one]} + {known[other]}" + more * " + 1"
        for more in (0, 1)
        for one, other in itertools.combinations(known, 2)
    }
    return _tuple((sums | known).get(size, str(size)) for size in value.shape)


def _tuple(axes: Iterable[str]) -> str:
    texts = list(axes)
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _dtypes_of(values: list[Tensor]) -> str:
    return _either(str(value.dtype).removeprefix("torch.") for value in values)


def _either(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _listed(names: Sequence[str]) -> str:
    *first, last = names or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
