"""Refuse a kernel's name that would be in the way: of Python, of pytest, or of another backend."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from ssmperf.engine import registry
from ssmperf.engine.registry import tables
from ssmperf.errors import UsageError

# Files of these names are run by others than ssmperf: by pytest, and by setuptools.
READ_BY_OTHERS = ("conftest", "setup")
TEST = re.compile(r"test_.*|.*_test")  # files that pytest collects


def check_name(name: str, file: Path) -> None:
    """Refuse a name that a kernel, its file and its backend cannot have.

    file: the kernel's file, which may be there, and may even be installed.

    Raises:
        UsageError: the name cannot be used; the message says why.
    """
    reason = _no_identifier(name) or _in_the_way(name, file.resolve())
    if reason:
        raise UsageError(f"the name {name!r:.200} cannot be used: {reason}")


def _no_identifier(name: str) -> str | None:
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "it is a keyword of Python"
    if not tables.IDENTIFIER.fullmatch(name):
        return f"it must be in lower snake case ({tables.IDENTIFIER.pattern})"
    return None


def _in_the_way(name: str, file: Path) -> str | None:
    if TEST.fullmatch(name) or name in READ_BY_OTHERS:
        return f"pytest or setuptools would take {name}.py for a file of theirs"
    if hasattr(builtins, name):
        return "it is a function of Python, which the file would replace"
    if name in registry.all_backend_names() and not _registered_by(name, file):
        return "a backend of that name is registered"
    if name in sys.stdlib_module_names or _imported_from_elsewhere(name, file):
        return f"{name}.py would hide a package that Python imports by that name"
    return None


def _registered_by(name: str, file: Path) -> bool:
    """Tell whether a file has registered all backends of a name."""
    files = {
        origin.file
        for (kind, label), origin in tables.origins.items()
        if kind == "backend" and label.rpartition("/")[2] == name
    }
    return files == {file}


def _imported_from_elsewhere(name: str, file: Path) -> bool:
    found = find_spec(name)
    return found is not None and (found.origin is None or Path(found.origin).resolve() != file)
