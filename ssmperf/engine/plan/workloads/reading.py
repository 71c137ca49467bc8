"""Read workloads from TOML files: those of suites/workloads, and a user's own."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.shape import DIMENSIONS, Shape
from ssmperf.engine.plan.workloads.user_file import LARGEST_SIZE, LONGEST, parsed, shown, whole
from ssmperf.engine.plan.workloads.workload import TRAINED_AT, Workload
from ssmperf.engine.registry import discovery
from ssmperf.errors import UnknownName, UsageError

KEYS = ("model", "layers", "context", "gates", "source", "sizes", "train")
NEEDED = ("model", "sizes")
LENGTHS = ("T", "B")
LETTERS = tuple(letter for letter in DIMENSIONS if letter not in (*LENGTHS, "S"))


def names() -> list[str]:
    """List the names of the workloads in suites/workloads, sorted."""
    return sorted(file.stem for file in folder().glob("*.toml"))


def of_name(name: str) -> Workload:
    """Read a workload of suites/workloads.

    Raises:
        UnknownName: there is none of that name.
    """
    known = names()
    if name not in known:
        raise UnknownName("workload", name, known)
    return read(folder() / f"{name}.toml")


def read(path: Path) -> Workload:
    """Read a workload's file; its name is the file's.

    Raises:
        UsageError: the file cannot be read, or a key of it is unknown, missing or wrong.
    """
    table = parsed(path, tomllib.loads, "TOML")
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{path}: unknown key {key!r:.60} (valid: {', '.join(KEYS)})")
    for key in NEEDED:
        if key not in table:
            raise UsageError(f"{path}: the key {key} is missing (needed: {', '.join(NEEDED)})")
    return Workload(
        name=path.stem,
        model=_text(path, table, "model"),
        sizes=_sizes(path, table["sizes"]),
        trained_at=_trained_at(path, table["train"]) if "train" in table else TRAINED_AT,
        layers=_layers(path, table["layers"]) if "layers" in table else None,
        context=whole(table["context"], f"{path}: context", LONGEST) if "context" in table else None,
        gates=_text(path, table, "gates"),
        source=_text(path, table, "source"),
    )


def folder() -> Path:
    """Find the folder of the workloads, without importing the package that has it.

    Importing `discovery` lets a checkout find its own suites and not those of an installed version.
    """
    spec = importlib.util.find_spec(discovery.SUITES)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"{discovery.SUITES}, which has the workloads, is not installed")
    return Path(spec.submodule_search_locations[0]) / "workloads"


def _text(path: Path, table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or (key in NEEDED and not value):
        raise UsageError(f"{path}: {key} must be a text in quotes, got {shown(value)}")
    return value


def _sizes(path: Path, table: Any) -> dict[str, int]:
    sizes = _numbers(path, "sizes", table, LETTERS, LARGEST_SIZE)
    if not sizes:
        raise UsageError(f"{path}: [sizes] has no dimension (valid: {', '.join(LETTERS)})")
    try:
        return dict(Shape(sizes))
    except UsageError as error:
        raise UsageError(f"{path}: [sizes]: {error}") from None


def _trained_at(path: Path, table: Any) -> tuple[int, int]:
    lengths = _numbers(path, "train", table, LENGTHS, LONGEST)
    if len(lengths) < len(LENGTHS):
        raise UsageError(f"{path}: [train] needs both T and B, or leave it out for {TRAINED_AT}")
    return lengths["T"], lengths["B"]


def _numbers(path: Path, section: str, table: Any, valid: tuple[str, ...], most: int) -> dict[str, int]:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {section} must be a section [{section}], got {shown(table)}")
    for key in table:
        if key not in valid:
            raise UsageError(f"{path}: unknown key {key!r:.60} in [{section}] (valid: {', '.join(valid)})")
    return {key: whole(value, f"{path}: {key} in [{section}]", most) for key, value in table.items()}


def _layers(path: Path, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise UsageError(f"{path}: layers must be [layers of this kind, all layers], got {shown(value)}")
    linear, total = (whole(each, f"{path}: layers") for each in value)
    if linear > total:
        raise UsageError(f"{path}: layers: {linear} of this kind are more than all {total} layers")
    return linear, total
