"""`ssmperf list workloads`, and one workload in full. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ssmperf.engine.plan.workloads.phases import DECODE, DECODED, PACKED, PREFILL, PREFILLED, TRAIN
from ssmperf.engine.plan.workloads.workload import Workload

HEADINGS = ("name", "model", "sizes", "layers", "context")


def described(layer: Workload) -> dict[str, Any]:
    """Describe a workload as plain data."""
    T, B = layer.trained_at
    return {
        "name": layer.name,
        "model": layer.model,
        "sizes": dict(layer.sizes),
        "layers": None if layer.layers is None else list(layer.layers),
        "context": layer.context,
        "gates": layer.gates,
        "phases": {
            TRAIN: [{"T": T, "B": B}],
            PREFILL: [{"T": PREFILLED, "B": 1}, *({"packing": each} for each in PACKED)],
            DECODE: [{"T": 1, "B": B} for B in DECODED],
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
    T, B = layer.trained_at
    facts = {
        "model": layer.model,
        "sizes": _sizes(layer),
        "layers": "" if layer.layers is None else f"{layer.layers[0]} of {layer.layers[1]}",
        "context": "" if layer.context is None else f"{layer.context:,} tokens",
        "gates": layer.gates,
        TRAIN: f"B {B}, T {T:,}: forward and backward",
        PREFILL: f"B 1, T {PREFILLED:,}; packed {' and '.join(PACKED)}: forward, with the final state",
        DECODE: f"one token, B {' and '.join(map(str, DECODED))}",
        "source": layer.source,
        **{f"assumed {key}": text for key, text in layer.assumed.items()},
    }
    width = max(map(len, facts)) + 1
    return "\n".join([layer.name, *(f"  {name:{width}} {text}" for name, text in facts.items() if text)])


def _cells(layer: Workload) -> tuple[str, ...]:
    layers = "" if layer.layers is None else "/".join(map(str, layer.layers))
    context = "" if layer.context is None else f"{round(layer.context / 1024)}k"
    return layer.name, layer.model.partition(":")[0], _sizes(layer), layers, context


def _sizes(layer: Workload) -> str:
    return " ".join(f"{letter}{size}" for letter, size in layer.sizes.items())
