"""The rules of the house, read off the source: which way imports point, and what no file may hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssmperf
from ssmperf import authoring, suitekit

ROOT = Path(__file__).parents[1]
ROOMS = ("impls", "suites", "reports")
SOURCE = ("ssmperf", *ROOMS, "examples")
FACADES = {facade.__name__: set(facade.__all__) for facade in (ssmperf, authoring, suitekit)}
# the façades from which each room, and each example, takes what it needs of the core
PUBLIC = {
    "impls": ("ssmperf", "ssmperf.authoring"),
    "suites": tuple(FACADES),
    "reports": tuple(FACADES),
    "examples": tuple(FACADES),
}
BESIDE_BACKENDS = ("__init__", "common", "scans", "peers", "analytic")
# what backends of every recurrence may use: host code for Triton, derivatives, autocast, peers' declarations
SHARED = ("_triton", "_autograd", "_autocast", "_peer")
NO_RECURRENCES = ("models", "identities", *SHARED)

LONGEST = 400

UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec"}
UNFINISHED = re.compile("TO" + "DO|FIX" + "ME|XX" + "X")


def python_files(root: Path, *folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (root / folder).rglob("*.py"))


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), filename=str(file))


def called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def imports(root: Path, file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import; a relative one is resolved to its path from the root."""
    package = file.relative_to(root).parent.parts
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package[: len(package) - node.level + 1]
                if node.level > len(package):
                    kept = ("..",)
                base = "/" + ".".join([*kept, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def import_violations(root: Path) -> list[str]:
    """Imports that point the wrong way, as `file:line: reason`."""
    found = []
    for file in python_files(root, *SOURCE):
        room = file.relative_to(root).parts[0]
        for line, name in imports(root, file):
            reason = wrong_room(room, name) or wrong_neighbour(root, file, name)
            if reason:
                found.append(f"{file.relative_to(root)}:{line}: {reason}")
    return found


def wrong_room(room: str, name: str) -> str | None:
    """A relative name starts with a slash: `/impls.scan.common`."""
    parts = name.lstrip("/").split(".")
    if name.startswith("/"):
        return None if parts[0] == room else f"a relative import that leaves {room}/"
    if parts[0] in (*ROOMS, "tests"):
        return f"{name} is no importable name"
    if parts[0] == "ssmperf" and len(parts) > 1 and parts[1] in ROOMS:
        return f"{name}: only the core is imported by its absolute name"
    if room in PUBLIC and parts[0] == "ssmperf" and not is_public(room, name):
        return f"{name} is no public name of the core for {room}"
    return None


def is_public(room: str, name: str) -> bool:
    """Tell whether a name is a façade that the room may use, or listed by one."""
    facade, _, last = name.rpartition(".")
    return name in PUBLIC[room] or (facade in PUBLIC[room] and last in FACADES[facade])


def wrong_neighbour(root: Path, file: Path, name: str) -> str | None:
    """Backends share their recurrence's __init__ and common.py, and parts whose names start with _.

    From another recurrence they take its common.py, or a backend of their own name on which they build.
    What recurrences share is open to all of them, and imports none.
    """
    room, *folders, _ = file.relative_to(root).parts
    _, *below = file.relative_to(root).with_suffix("").parts
    if room == "impls" and below[0] in SHARED:
        inside = not name.startswith("/impls") or name.split(".")[1] in SHARED
        return None if inside else f"imports a recurrence: {name.lstrip('/')}"
    if room != "impls" or not folders or folders[0] in NO_RECURRENCES or not name.startswith("/impls"):
        return None
    _, *target = name.lstrip("/").split(".")
    if target[0] in SHARED:
        return None
    if target[0] != folders[0]:
        allowed = target[1:2] and target[1] in ("common", file.stem, *(name for _, name in registered(file)))
        return None if allowed else f"imports {'.'.join(target)} of another recurrence"
    siblings = {sibling.stem for sibling in (root / "impls" / folders[0]).glob("[!_]*.py")}
    if len(target) < 2 or target[1] in siblings - {"common"}:
        return f"imports its neighbour {target[-1] if len(target) < 2 else target[1]}"
    if target[1] == folders[0] and file.stem != "__init__":
        return "computes with the definition"
    return None


def registered(file: Path) -> list[tuple[str, str]]:
    """List the backends that a file registers: recurrence and name."""
    return [
        (call.args[0].value, keyword.value.value)
        for node in ast.walk(parse(file))
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and called(call) == "backend"
        and isinstance(call.args[0], ast.Constant)
        for keyword in call.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    ]  # fmt: skip


def test_imports_point_at_the_core() -> None:
    assert import_violations(ROOT) == []


PLANTED = {
    "impls/scan/__init__.py": ("import ssmperf\nfrom ssmperf.authoring import log_gates", None),
    "impls/scan/common.py": ("from . import gate", None),
    "impls/scan/good.py": (
        "from . import gate\nfrom .common import tile\nfrom ssmperf.authoring import backend",
        None,
    ),
    "impls/scan/nosy.py": ("from .good import tile", "imports its neighbour good"),
    "impls/scan/nosy_too.py": ("def f():\n    from . import good", "imports its neighbour good"),
    "impls/scan/lazy.py": ("from . import scan", "computes with the definition"),
    "impls/scan/_triton/blocks.py": ("from . import tiles\nfrom ..common import tile", None),
    "impls/scan/uses_parts.py": ("from ._triton.blocks import kernel", None),
    "impls/rnn/good.py": ("from ..scan.common import tile\nfrom ..scan.good import sweep", None),
    "impls/rnn/across.py": ("from ..scan.good import sweep", "of another recurrence"),
    "impls/rnn/scans.py": ("from ..scan.good import sweep\n@backend('rnn', name='good')\ndef f(): ...", None),
    "impls/rnn/peers.py": (
        "from ..scan.good import f\n@backend('rnn', name='g')\ndef g(): ...",
        "of another",
    ),
    "impls/rnn/package.py": ("from .. import scan", "of another recurrence"),
    "impls/_triton/plan.py": ("from . import host", None),
    "impls/rnn/_triton/kernel.py": ("from ..._triton.plan import planned\nfrom ..._triton import host", None),
    "impls/rnn/_other/kernel.py": ("from ...scan._triton.blocks import kernel", "of another recurrence"),
    "impls/_autograd.py": ("import torch\nfrom ssmperf import UnknownName", None),
    "impls/rnn/derived.py": ("from .._autograd import once_differentiable", None),
    "impls/_autocast.py": ("from .scan.common import tile", "imports a recurrence"),
    "impls/_triton/nosy.py": ("from ..scan._triton import blocks", "imports a recurrence"),
    "impls/models/absolute.py": ("import ssmperf.impls.scan", "only the core"),
    "impls/models/from_core.py": ("from ssmperf import impls", "only the core"),
    "impls/models/suitelike.py": ("from ssmperf.suitekit import Section", "no public name"),
    "impls/models/old_name.py": ("from ssmperf import backend", "no public name"),
    "impls/models/deeper.py": ("from ssmperf.engine.layers.model import Model", "no public name"),
    "impls/models/family.py": ("from .absolute import Layer", None),
    "suites/leaves.py": ("from ..impls import scan", "leaves suites/"),
    "suites/tasks/deep.py": ("from ... import errors", "leaves suites/"),
    "suites/tasks/near.py": ("from ..leaves import f", None),
    "suites/public.py": (
        "import ssmperf\nfrom ssmperf import Case\nfrom ssmperf.suitekit import registry",
        None,
    ),
    "suites/tasks/author.py": ("import ssmperf.authoring\nfrom ssmperf.authoring import task", None),
    "suites/old_name.py": ("from ssmperf import Section", "no public name"),
    "suites/unlisted.py": ("from ssmperf.suitekit import backend", "no public name"),
    "suites/deeper.py": ("from ssmperf.engine.measure.memory import trace", "no public name"),
    "reports/deeper.py": ("def f():\n    import ssmperf.engine.runs.store", "no public name"),
    "reports/package.py": ("from ssmperf import runs", "no public name"),
    "reports/deeper_registry.py": ("from ssmperf.engine.registry import suites", "no public name"),
    "suites/claims/public.py": (
        "from ssmperf.suitekit import claim, registry\nfrom ._timing import timed",
        None,
    ),
    "suites/claims/deeper.py": ("from ssmperf.papers.reproduction import agreement", "no public name"),
    "examples/public.py": ("from ssmperf import Status\nfrom ssmperf.authoring import backend", None),
    "examples/deeper.py": ("from ssmperf.engine.layers.model import Model", "no public name"),
    "examples/from_room.py": ("from ssmperf.impls.scan import scan", "only the core"),
    "reports/bare.py": ("import suites.throughput", "no importable name"),
    "ssmperf/downward.py": ("from ssmperf.reports import tables", "only the core"),
    "ssmperf/engine/measure/aside.py": ("from ssmperf.case import Case\nfrom ..case import Shape", None),
}


@pytest.mark.parametrize("path", PLANTED)
def test_a_planted_import_is_judged(path: str, tmp_path: Path) -> None:
    for name, (text, _) in PLANTED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [line for line in import_violations(tmp_path) if line.startswith(f"{path}:")]
    expected = PLANTED[path][1]
    assert len(found) == (expected is not None)
    assert all(expected in line for line in found if expected)


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
        for node in ast.walk(parse(file))
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
    functions = [(file, node) for file in python_files(ROOT, "tests") for node in ast.walk(parse(file))
                 if isinstance(node, ast.FunctionDef)]  # fmt: skip
    asserting = {node.name for _, node in functions if asserts(node)}
    calls = [(node.name, {called(each) for each in ast.walk(node) if isinstance(each, ast.Call)})
             for _, node in functions]  # fmt: skip
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
