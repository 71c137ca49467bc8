"""All registered entries by kind and label, and the place where each was defined."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.errors import DuplicateName, UnknownName, UsageError

KINDS = (
    "recurrence",
    "backend",
    "model",
    "family",
    "analytic",
    "identity",
    "suite",
    "report",
    "task",
    "claim",
)
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
MODEL_NAME = re.compile(r"[a-z][a-z0-9_]*(:[0-9a-z:.-]+)?")  # such as lcsm:e-o-s-a:0.5
CLAIM_NAME = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")  # the paper and its claim, as longhorn:parameters
FORMS = {"model": MODEL_NAME, "claim": CLAIM_NAME}  # of other kinds, IDENTIFIER

entries: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}  # by label: a name, or "of/name"
origins: dict[tuple[str, str], Definition] = {}
additions = [0]  # the number of calls of `add`
loading: list[str] = []  # the modules and plug-ins being imported by the registry, innermost last


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of an entry, and the module or plug-in that the registry was loading then, or None.

    path: the file, where this process has not imported the module.
    """

    module: str
    name: str
    loaded_by: str | None
    path: Path | None = None

    @property
    def file(self) -> Path | None:
        if self.path is not None:
            return self.path
        path = getattr(sys.modules.get(self.module), "__file__", None)
        return Path(path).resolve() if path else None


def add(kind: str, name: str, entry: Any, code: Any, *, of: str | None = None) -> None:
    """Register an entry.

    of: its owner, if names of this kind need to be unique only per owner.
    code: the function or class that defines the entry.

    Raises:
        DuplicateName: the name is taken.
        UsageError: the name is not in lower snake case.
    """
    check_name(kind, name)
    label = f"{of}/{name}" if of else name
    if label in entries[kind]:
        known = origins[kind, label]
        raise DuplicateName(f"{kind} {label} is already registered by {known.module}.{known.name}")
    additions[0] += 1
    entries[kind][label] = entry
    module, defined = getattr(code, "__module__", None) or "?", getattr(code, "__qualname__", "?")
    origins[kind, label] = Definition(module, defined, loading[-1] if loading else None)


def check_name(kind: str, name: str) -> None:
    """Raise UsageError where a name is not in lower snake case, or not in its kind's own form."""
    form = FORMS.get(kind, IDENTIFIER)
    if not isinstance(name, str) or not form.fullmatch(name):
        raise UsageError(f"the {kind} name {name!r} must be in lower snake case ({form.pattern})")


def state() -> tuple[int, int, int]:
    """Give a value that differs after each change of the registry."""
    return id(entries), len(origins), additions[0]


def get(kind: str, table: dict[str, Any], name: str) -> Any:
    """Look up a name. Raises UnknownName, which lists the known ones."""
    if name not in table:
        raise UnknownName(kind, name, table)
    return table[name]


def is_loading() -> bool:
    """Tell whether a plug-in or a built-in file is being imported right now."""
    return bool(loading)
