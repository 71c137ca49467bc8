"""The rules of the house, read off the source: what no file may hold."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.imports import (
    NO_RECURRENCES,
    SOURCE,
    called,
    imports,
    parse,
    python_files,
    registered,
    statements,
)

ROOT = Path(__file__).parents[1]
BESIDE_BACKENDS = ("__init__", "common", "scans", "peers", "analytic")
LONGEST = 400

UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec"}
UNFINISHED = re.compile("TO" + "DO|FIX" + "ME|XX" + "X")


def test_files_stay_short() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines())
               for file in python_files(ROOT, *SOURCE, "tests", "ci")}  # fmt: skip
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_nothing_is_left_unfinished() -> None:
    files = python_files(ROOT, *SOURCE, "tests")
    files += [
        file for pattern in ("*.md", "ci/*", "docs/*.md") for file in ROOT.glob(pattern) if file.is_file()
    ]
    marked = [str(file.relative_to(ROOT)) for file in files if UNFINISHED.search(file.read_text())]
    assert marked == []


@pytest.mark.parametrize("folder", SOURCE)
def test_no_exception_is_swallowed(folder: str) -> None:
    """`except Exception: pass` hides what it did not expect."""
    swallowed = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in python_files(ROOT, folder)
        for node in statements(parse(file))
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and is_empty(node.body)
    ]
    assert swallowed == []


def is_broad(kind: ast.expr | None) -> bool:
    names = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(name is None or getattr(name, "id", "") in ("Exception", "BaseException") for name in names)


def is_empty(body: list[ast.stmt]) -> bool:
    return all(isinstance(statement, (ast.Pass, ast.Continue)) for statement in body)


@pytest.mark.parametrize("folder", ["ssmperf", "suites", "reports"])
def test_nothing_read_is_executed(folder: str) -> None:
    """Runs are read from files that others wrote: no pickle, eval or exec."""
    unsafe = []
    for file in python_files(ROOT, folder):
        unsafe += [f"{file.relative_to(ROOT)}:{line}: {name}" for line, name in imports(ROOT, file)
                   if name.split(".")[0] in UNSAFE_MODULES]  # fmt: skip
        if not any(f"{name}(" in file.read_text() for name in UNSAFE_CALLS):
            continue
        unsafe += [f"{file.relative_to(ROOT)}:{node.lineno}: {node.func.id}" for node in ast.walk(parse(file))
                   if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                   and node.func.id in UNSAFE_CALLS]  # fmt: skip
    assert unsafe == []


def backend_files() -> list[Path]:
    return [file for file in python_files(ROOT, "impls")
            if file.parent.parent.name == "impls" and file.parent.name not in NO_RECURRENCES
            and file.stem not in BESIDE_BACKENDS and not file.stem.startswith("_")]  # fmt: skip


@pytest.mark.parametrize("file", backend_files(), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_backend_file_is_named_after_its_backend(file: Path) -> None:
    assert registered(file) == [(file.parent.name, file.stem)]


def test_every_test_asserts_something() -> None:
    """A test asserts, expects an exception, or calls a helper of the tests that does."""
    functions = [(file, node) for file in python_files(ROOT, "tests") for node in statements(parse(file))
                 if isinstance(node, ast.FunctionDef)]  # fmt: skip
    asserting = {node.name for _, node in functions if asserts(node)}
    calls = [(node.name, {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)})
             for _, node in functions if node.name not in asserting]  # fmt: skip
    while more := {name for name, callees in calls if not callees.isdisjoint(asserting)} - asserting:
        asserting |= more
    idle = [f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}" for file, node in functions
            if node.name.startswith("test_") and node.name not in asserting]  # fmt: skip
    assert idle == []


def asserts(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "AssertionError"):
            return True
        if isinstance(node, ast.Call):
            name = called(node)
            if name in ("raises", "warns", "gradcheck") or name.startswith("assert_"):
                return True
    return False


def test_a_class_name_means_one_thing() -> None:
    """Kernels' groups of values and the classes of claims have names of their own folders."""
    homes: dict[str, list[str]] = {}
    for file in python_files(ROOT, "ssmperf", "suites", "reports"):
        if "claims" not in file.parts:
            for node in parse(file).body:
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
