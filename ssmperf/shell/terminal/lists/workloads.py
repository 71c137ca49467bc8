"""`ssmperf list workloads`, and one workload in full. Nothing here needs torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.plan.workloads.phases import DECODE, PHASES, PREFILL, TRAIN, Form, forms_of
from ssmperf.engine.plan.workloads.workload import Workload
from ssmperf.engine.registry.presets import ON_GPU

HEADINGS = ("name", "model", "sizes", "layers", "context")


def described(layer: Workload) -> dict[str, Any]:
    """Describe a workload as plain data."""
    return {
        "name": layer.name,
        "model": layer.model,
        "sizes": dict(layer.sizes),
        "layers": None if layer.layers is None else list(layer.layers),
        "context": layer.context,
        "gates": layer.gates,
        "phases": {
            phase: [sizes for form in forms for sizes in _each_size(form)]
            for phase, forms in _phases(layer).items()
        },
        "source": layer.source,
        "assumed": dict(layer.assumed),
    }


def as_table(layers: Iterable[Workload]) -> str:
    """Show a line for each workload, in 80 columns."""
    rows = [HEADINGS, *map(_cells, layers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def as_text(layer: Workload) -> str:
    """Show one workload: sizes, gates, phases and source."""
    phases = {phase: _in_words(forms) for phase, forms in _phases(layer).items()}
    facts = {
        "model": layer.model,
        "sizes": _sizes(layer),
        "layers": "" if layer.layers is None else f"{layer.layers[0]} of {layer.layers[1]}",
        "context": "" if layer.context is None else f"{layer.context:,} tokens",
        "gates": layer.gates,
        TRAIN: f"{phases[TRAIN]}: forward and backward",
        PREFILL: f"{phases[PREFILL]}: forward, with the final state",
        DECODE: f"{phases[DECODE]}: one token",
        "source": layer.source,
        **{f"assumed {key}": text for key, text in layer.assumed.items()},
    }
    width = max(map(len, facts)) + 1
    return "\n".join([layer.name, *(f"  {name:{width}} {text}" for name, text in facts.items() if text)])


def _phases(layer: Workload) -> dict[str, list[Form]]:
    """List the forms of each phase on a GPU."""
    usual = Selection.of(preset=ON_GPU)
    return {phase: list(forms_of(phase, layer, usual, named=True)) for phase in PHASES}


def _each_size(form: Form) -> list[dict[str, Any]]:
    """Describe a form as plain data, per B and T."""
    if form.packing is not None:
        return [{"packing": form.packing}]
    return [{"T": T, "B": B} for B, T in itertools.product(form.B, form.T)]


def _in_words(forms: Iterable[Form]) -> str:
    """Name sizes of forms, and then their packings."""
    plain, packed = [], []
    for form in forms:
        if form.packing is not None:
            packed.append(form.packing)
        else:
            T, B = (" and ".join(f"{size:,}" for size in sizes) for sizes in (form.T, form.B))
            plain.append(f"B {B}, T {T}")
    return "; ".join([*plain, *([f"packed {' and '.join(packed)}"] if packed else [])])


def _cells(layer: Workload) -> tuple[str, ...]:
    layers = "" if layer.layers is None else "/".join(map(str, layer.layers))
    context = "" if layer.context is None else f"{round(layer.context / 1024)}k"
    return layer.name, layer.model.partition(":")[0], _sizes(layer), layers, context


def _sizes(layer: Workload) -> str:
    return " ".join(f"{letter}{size}" for letter, size in layer.sizes.items())
