"""What foreign code finds around it, and what children start with, whatever such code has changed."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_changed: dict[str, tuple[str | None, str | None]] = {}  # variables: as they were, and as they were left


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Note which variables a block changes; put back folder, cores and limits as far as the system allows.

    The variables stay: what the block imports may read them later, in this process.
    """
    variables, folder, cores = dict(os.environ), Path.cwd(), os.sched_getaffinity(0)
    limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
    try:
        yield
    finally:
        for name in variables.keys() | os.environ.keys():
            before, after = variables.get(name), os.environ.get(name)
            if before != after:
                _changed[name] = _changed.get(name, (before, None))[0], after
        os.chdir(folder)
        os.sched_setaffinity(0, cores)
        for limit, values in limits.items():
            if resource.getrlimit(limit) != values:
                with contextlib.suppress(OSError, ValueError):  # a hard limit stays lowered
                    resource.setrlimit(limit, values)


def variables() -> dict[str, str]:
    """Give the environment for a child: this process's own, without what watched blocks have changed."""
    found = dict(os.environ)
    for name, (before, after) in _changed.items():
        if found.get(name) != after:
            continue  # somebody else has set it since
        if before is None:
            found.pop(name, None)
        else:
            found[name] = before
    return found


def interpreter() -> list[str]:
    """Give the words that start Python for a module of this package.

    The current folder is searched only if the package lies there: else a folder of its name, such as a clone,
    would be taken for it where the package is installed as editable.
    """
    return [sys.executable] if Path.cwd() == PACKAGE.parent else [sys.executable, "-P"]


def open_folder(file: Path) -> None:
    """Let a file import modules that lie beside it, if it names one that is found nowhere else.

    Its folder is searched last, so that nothing there takes the place of an installed package.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # whoever runs it says so
    named = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    named |= {
        node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level
    }
    tops = {name.partition(".")[0] for name in named}
    beside = {each.stem for each in file.parent.glob("*.py")}
    beside |= {each.parent.name for each in file.parent.glob("*/__init__.py")}
    if str(file.parent) not in sys.path and any(_is_missing(name) for name in tops & beside):
        sys.path.append(str(file.parent))


def _is_missing(name: str) -> bool:
    try:
        return name not in sys.modules and importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return False
