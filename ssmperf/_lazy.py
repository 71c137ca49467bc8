"""Import the names of a façade when they are first used.

A façade declares its names once, by imports below `if TYPE_CHECKING:`, which type checkers follow.
At run time, the same lines are read from its source.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(facade: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a façade.

    Names of a façade from which it imports `*` can be imported, too, and are not listed.
    """
    imports = _imports_for_types(Path(file).read_text(encoding="utf-8"))
    homes = {name: module for module, name in imports if name != "*"}
    others = [module for module, name in imports if name == "*"]

    def find(name: str) -> Any:
        if name in homes:
            return getattr(__import__(homes[name], fromlist=[name]), name)
        for other in map(importlib.import_module, others):
            if name in other.__all__:
                return getattr(other, name)
        raise AttributeError(f"module {facade!r} has no attribute {name!r}")

    listed = sorted(homes)
    return find, listed.copy, listed


def _imports_for_types(source: str) -> list[tuple[str, str]]:
    """List module and name of each import in the block `if TYPE_CHECKING:` of a source."""
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    return [
        (node.module or "", alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
