"""The lists of `ssmperf list`, as plain data and as text tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.machine.devices import cuda_count
from ssmperf.engine.registry.declarations import ModelEntry
from ssmperf.engine.registry.options import options_of
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.errors import UnknownName, UsageError
from ssmperf.shell.terminal.display import brief

MOST_NAMED = 3  # models whose descriptions have a word


def models() -> list[dict[str, Any]]:
    """Describe every model: recurrence, paper, gate kind, options, state and backends."""
    return [_described(entry) for entry in registry.models().values()]


def model(name: str) -> dict[str, Any]:
    """Describe one model, or a member of a family, with all its shapes.

    Raises:
        UsageError: there is no such model; the message names those whose paper or description has the word.
    """
    try:
        entry = registry.model(name)
    except UnknownName as unknown:
        found = _described_by(name)
        if not 0 < len(found) <= MOST_NAMED:
            raise
        raise UsageError(
            f"unknown model {name!r}, a word in the description of {' and '.join(found)}: "
            f"try `list {found[0]}`"
        ) from unknown
    shapes = {preset: [dict(shape) for shape in registry.shapes(entry, preset)] for preset in PRESETS}
    return {**_described(entry), "description": inspect.getdoc(entry.cls) or "", "shapes": shapes}


def _described_by(word: str) -> list[str]:
    """List the models whose paper or description has a word."""
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    texts = {
        each.name: f"{each.paper} {inspect.getdoc(each.cls) or ''}" for each in registry.models().values()
    }
    return [name for name, text in texts.items() if pattern.search(text)]


def with_costs(described: dict[str, Any]) -> dict[str, Any]:
    """Add the formulas of a model's costs. No table has them, and those of all models take a second."""
    from ssmperf.shell.terminal.lists import formulas

    return {**described, "costs": formulas.of_recurrence(described["recurrence"], described["gate"])}


def _described(entry: ModelEntry) -> dict[str, Any]:
    from ssmperf.shell.terminal.lists import formulas

    return {
        "name": entry.name,
        "recurrence": entry.recurrence,
        "family": registry.recurrence(entry.recurrence).family,
        "paper": entry.paper,
        "gate": entry.gate,
        "dtypes": list(entry.dtypes),
        "depends_on_length": getattr(entry.cls, "depends_on_length", False),
        "options": [
            {
                "name": each.name,
                "type": each.type.__name__,
                "default": _plain(each.default),
                "help": each.help,
            }
            for each in options_of(entry.cls).values()
        ],
        "state_numbers": formulas.state_numbers(entry.name),
        "state_shape_of": dict(registry.shapes(entry, "smoke")[0]),
        "backends": _backends(entry.name, entry.gate, registry.shapes(entry, "standard")[0]),
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)


def backends() -> list[dict[str, Any]]:
    """List every backend of every recurrence with its declarations."""
    return [
        {"recurrence": name, **entry}
        for name, recurrence in registry.recurrences().items()
        for entry in _backends(name, None, recurrence.presets["standard"][0])
    ]


def suites() -> list[dict[str, Any]]:
    """List every suite with its question."""
    return [{"name": name, "question": entry.section.question} for name, entry in registry.suites().items()]


def shapes() -> list[dict[str, Any]]:
    """List every model's shapes by preset."""
    return [
        {
            "model": entry.name,
            "preset": preset,
            "shapes": [dict(shape) for shape in registry.shapes(entry, preset)],
        }
        for entry in registry.models().values()
        for preset in PRESETS
    ]


def as_text(described: dict[str, Any]) -> str:
    """Show one model as text: description, options and backends."""
    lines = [f"{described['name']}: {described['paper']}", "", described["description"], ""]
    lines.append(f"recurrence: {described['recurrence']}, {described['gate']} gates")
    lines.append(f"dtypes: {', '.join(described['dtypes'])}")
    for option in described["options"]:
        lines.append(
            f"option {described['name']}:{option['name']}={option['default']} ({option['type']})"
            + (f": {option['help']}" if option["help"] else "")
        )
    if not described["options"]:
        lines.append("options: none")
    for preset, shapes in described["shapes"].items():
        lines.append(f"sizes, {preset}: {'; '.join(map(_sizes, shapes))}")
    for entry in sorted(described["backends"], key=lambda each: each["peer"]):
        kind = "peer" if entry["peer"] else "backend"
        lines.append(f"{kind} {entry['name']}: {brief(entry['reason']) or 'available'}")
    return "\n".join(lines)


def as_table(what: str, entries: list[dict[str, Any]]) -> str:
    """Format the entries as a text table; models are shown as a matrix of models and backends."""
    from tabulate import tabulate

    if what == "models":
        return _matrix(entries)
    rows = [_row(what, entry) for entry in entries]
    return tabulate(rows, headers="keys", tablefmt="simple", maxcolwidths=[None, None, 48, 60])


def _backends(owner: str, gate: str | None, shape: Shape) -> list[dict[str, Any]]:
    """List the backends of a model or recurrence.

    Launches and workspace are those of a float32 forward call of the given shape.
    """
    device = "cuda" if cuda_count() else "cpu"
    found = []
    for name in registry.backend_names(owner):
        problem = registry.import_problem(owner, name)
        if problem:
            peer = registry.is_peer(owner, name)
            found.append({"name": name, "peer": peer, "available": False, "reason": problem})
            continue
        entry = registry.backend(owner, name)
        reason = entry.refusal(device=device, gate_kind=gate)
        found.append(
            {
                "name": name,
                "peer": registry.is_peer(owner, name),
                "available": reason is None,
                "reason": reason,
                "devices": list(entry.devices),
                "dtypes": list(entry.dtypes),
                "passes": list(entry.passes),
                "layouts": list(entry.layouts),
                "gates": list(entry.gates) if entry.gates is not None else None,
                "deterministic": entry.deterministic,
                "causal": entry.causal,
                "batches": entry.batches,
                "approximate": entry.error_bound is not None,
                "equivalent": entry.equivalent,
                "description": entry.description,
                "shape": dict(shape),
                "launches": entry.launches(shape) if entry.launches else None,
                "workspace_bytes": entry.workspace(shape, 4, gate or "") if entry.workspace else None,
            }
        )
    return found


def _matrix(entries: list[dict[str, Any]]) -> str:
    """Draw a table with one row per model and one column per backend, followed by the papers."""
    from tabulate import tabulate

    names = sorted({item["name"] for entry in entries for item in entry["backends"]})
    names.sort(key=lambda name: name != "sequential")
    rows = []
    for entry in entries:
        marks = {item["name"]: _mark(item) for item in entry["backends"]}
        rows.append([
            entry["name"],
            f"{entry['recurrence']} {entry['gate']}",
            entry["state_numbers"],
            *(marks.get(name, "") for name in names),
        ])  # fmt: skip
    headers = ["model", "recurrence, gate", "state", *(name.replace("_", "_\n") for name in names)]
    table = tabulate(rows, headers=headers, tablefmt="simple", stralign="center", colalign=("left", "left"))
    papers = "\n".join(f"{entry['name']}: {entry['paper']}" for entry in entries)
    return "\n".join([
        table,
        "",
        "✓ runs here   ≈ approximate, with a declared error bound   ~ another function, a baseline",
        "· not deterministic   – cannot run here, or not with this gate (--json has the reason)",
        "state: real numbers per sequence, at the first smoke shape",
        "",
        papers,
    ])  # fmt: skip


def _mark(item: dict[str, Any]) -> str:
    if not item["available"]:
        return "–"
    mark = "~" if not item["equivalent"] else "≈" if item["approximate"] else "✓"
    return mark if item["deterministic"] else f"{mark}·"


def _row(what: str, entry: dict[str, Any]) -> dict[str, Any]:
    if what == "backends":
        return {
            "recurrence": entry["recurrence"],
            "backend": entry["name"],
            "description": brief(entry.get("description")),
            "here": brief(entry["reason"]) or "available",
        }
    if what == "shapes":
        texts = map(_sizes, entry["shapes"])
        return {"model": entry["model"], "preset": entry["preset"], "shapes": "; ".join(texts)}
    return entry


def _sizes(shape: Mapping[str, int]) -> str:
    return " ".join(f"{letter}{size}" for letter, size in shape.items())
