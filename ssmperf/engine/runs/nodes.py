"""The devices of a cluster that measured a run: how far each is off the others.

Every device measures the same ceilings before its first case: how fast it copies, and how fast it multiplies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ssmperf.engine.cases.record import one_line
from ssmperf.engine.runs.store import Run

META = "nodes"  # key in run.json
STANDS_OUT = 0.05  # share by which a device is slower or faster than the median of all
FEWEST = 3  # devices of which one can stand out: of two, the median is neither
MOST_NAMED = 3
COPY, MATMUL = "copies", "multiplies"


def offsets(run: Run) -> dict[str, dict[str, float]]:
    """Give each device's rates relative to the median of all, minus 1; empty for a run on one machine."""
    nodes = run.meta.get(META)
    rates: dict[str, dict[str, float]] = {}
    for label, node in nodes.items() if isinstance(nodes, Mapping) else ():
        ceilings = node.get("ceilings") if isinstance(node, Mapping) else None
        found = {} if not isinstance(ceilings, Mapping) else _rates(ceilings)
        rates |= {one_line(str(label)): found} if found else {}
    medians = {
        name: statistics.median(each[name] for each in rates.values() if name in each)
        for name in {name for each in rates.values() for name in each}
    }
    return {
        label: {name: rate / medians[name] - 1 for name, rate in each.items()}
        for label, each in rates.items()
    }


def node_lines(runs: Iterable[Run]) -> list[str]:
    """Say how far a cluster's devices are apart, and which of them stands out."""
    lines = []
    for run in runs:
        found = offsets(run)
        if len(found) < 2:
            continue
        names = sorted({name for each in found.values() for name in each})
        spans = [max(abs(each[name]) for each in found.values() if name in each) for name in names]
        within = ", ".join(
            f"{name} within {100 * span:.1f} %" for name, span in zip(names, spans, strict=True)
        )
        odd = [
            f"{label} {name} {100 * abs(off):.0f} % {'slower' if off < 0 else 'faster'}"
            for label, each in found.items()
            for name, off in sorted(each.items())
            if abs(off) > STANDS_OUT and len(found) >= FEWEST
        ]
        more = f"; and {len(odd) - MOST_NAMED} more" if len(odd) > MOST_NAMED else ""
        stands = f"; stands out: {'; '.join(odd[:MOST_NAMED])}{more}" if odd else ""
        lines.append(f"{len(found)} devices: {within} of the median{stands}")
    return lines


def _rates(ceilings: Mapping[str, Any]) -> dict[str, float]:
    """Read the rates of a device that all devices have, as far as they are numbers."""
    matmul = ceilings.get("matmul_flops_per_s")
    given = {COPY: ceilings.get("copy_bytes_per_s")}
    given[MATMUL] = matmul.get("bfloat16") if isinstance(matmul, Mapping) else None
    return {name: rate for name, each in given.items() if (rate := _rate(each)) is not None}


def _rate(value: Any) -> float | None:
    """Read a positive number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None
