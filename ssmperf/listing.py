"""What `ssmperf list` lists, as plain data and as text tables."""

from __future__ import annotations

from typing import Any

from ssmperf import registry
from ssmperf.devices import cuda_count
from ssmperf.display import brief
from ssmperf.plan import PRESETS


def models() -> list[dict[str, Any]]:
    """Every model with its recurrence, paper, gate kind and backends."""
    return [
        {
            "name": entry.name,
            "recurrence": entry.recurrence,
            "paper": entry.paper,
            "gate": entry.gate,
            "backends": _backends(entry.name, entry.gate),
        }
        for entry in registry.models().values()
    ]


def backends() -> list[dict[str, Any]]:
    """Every backend of every recurrence with what it declares."""
    return [
        {"recurrence": name, **entry} for name in registry.recurrences() for entry in _backends(name, None)
    ]


def suites() -> list[dict[str, Any]]:
    """Every suite and its question."""
    return [{"name": name, "question": entry.section.question} for name, entry in registry.suites().items()]


def shapes() -> list[dict[str, Any]]:
    """Every model's shapes by preset."""
    return [
        {"model": entry.name, "preset": preset, "shapes": [dict(shape) for shape in entry.shapes(preset)]}
        for entry in registry.models().values()
        for preset in PRESETS
    ]


def as_table(what: str, entries: list[dict[str, Any]]) -> str:
    """The entries as a text table."""
    from tabulate import tabulate

    rows = [_row(what, entry) for entry in entries]
    return tabulate(rows, headers="keys", tablefmt="simple", maxcolwidths=[None, None, 48, 60])


def _backends(owner: str, gate: str | None) -> list[dict[str, Any]]:
    device = "cuda" if cuda_count() else "cpu"
    found = []
    for name in registry.backend_names(owner):
        problem = registry.import_problem(owner, name)
        if problem:
            found.append({"name": name, "available": False, "reason": problem})
            continue
        entry = registry.backend(owner, name)
        reason = entry.refusal(device=device, gate_kind=gate)
        found.append(
            {
                "name": name,
                "available": reason is None,
                "reason": reason,
                "devices": list(entry.devices),
                "dtypes": list(entry.dtypes),
                "passes": list(entry.passes),
                "gates": list(entry.gates) if entry.gates is not None else None,
                "deterministic": entry.deterministic,
                "causal": entry.causal,
                "approximate": entry.error_bound is not None,
                "equivalent": entry.equivalent,
                "description": entry.description,
            }
        )
    return found


def _row(what: str, entry: dict[str, Any]) -> dict[str, Any]:
    if what == "models":
        names = [item["name"] + ("" if item["available"] else " (not here)") for item in entry["backends"]]
        return {
            "model": entry["name"],
            "recurrence": entry["recurrence"],
            "paper": entry["paper"],
            "backends": ", ".join(names),
        }
    if what == "backends":
        return {
            "recurrence": entry["recurrence"],
            "backend": entry["name"],
            "description": brief(entry.get("description")),
            "here": brief(entry["reason"]) or "available",
        }
    if what == "shapes":
        texts = [" ".join(f"{letter}{size}" for letter, size in shape.items()) for shape in entry["shapes"]]
        return {"model": entry["model"], "preset": entry["preset"], "shapes": "; ".join(texts)}
    return entry
