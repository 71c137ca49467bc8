"""The floors of the core, read off the source: imports point downwards and never form a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A folder or file imports from floors below its own, or from its own folder.
FLOORS = (
    ("errors", "processes"),
    ("cases",),
    ("registry",),
    ("plan", "layers"),
    ("operands", "machine"),
    ("judge", "measure"),
    ("diagnosis",),
    ("trial",),
    ("runs",),
    ("tune", "trends"),
    ("execute",),
    ("versions", "reproduction", "learn"),
    ("api", "direct", "starter", "terminal", "verification"),
    ("cli", "pytest_plugin"),
)
FACE = "__init__"  # of the package, which exports names of all floors
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = ("cases", "errors", "registry", "plan")
MOST_FILES = 12  # of a folder, its __init__ included


def modules(root: Path) -> dict[str, ast.Module]:
    """Parse the core by dotted name below `ssmperf`; a package is named without its __init__."""
    core = root / "ssmperf"
    found = {}
    for file in sorted(core.rglob("*.py")):
        parts = file.relative_to(core).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        found[name] = ast.parse(file.read_text())
    return found


def imported(tree: ast.Module, *, known: set[str]) -> Iterator[str]:
    """The modules of the core that a module imports anywhere but for annotations, relative to `ssmperf`."""
    for node in at_run_time(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name[8:] for alias in node.names if alias.name.startswith("ssmperf."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ssmperf":
            base = (node.module or "")[8:]
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                yield inner if inner in known else base or FACE


def at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree but for what stands under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for other in node.orelse:
                yield from at_run_time(other)
            continue
        yield node
        yield from at_run_time(node)


def violations(root: Path) -> list[str]:
    trees = modules(root)
    known = set(trees)
    graph = {name: sorted(set(imported(tree, known=known)) - {name}) for name, tree in trees.items()}
    found = [f"{name}: no floor has it" for name in graph if name != FACE and name.split(".")[0] not in FLOOR]
    for name, targets in graph.items():
        own = name.split(".")[0]
        for target in targets if name != FACE else ():
            other = target.split(".")[0]
            if other == own:
                continue
            if other == FACE or FLOOR.get(other, 0) >= FLOOR.get(own, 0):
                found.append(f"{name}: imports {target}, which is not on a lower floor")
    found += [f"{' -> '.join(circle)}: a circle" for circle in circles(graph)]
    found += [f"{name}: imports torch" for name, tree in trees.items()
              if name.split(".")[0] in WITHOUT_TORCH and imports_torch(tree)]  # fmt: skip
    folders = {name.split(".")[0] for name in graph if "." in name}
    counts = {folder: len(list((root / "ssmperf" / folder).glob("*.py"))) for folder in folders}
    found += [f"{folder}: {count} files" for folder, count in counts.items() if count > MOST_FILES]
    return found


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Every circle of files that a walk from each file meets, once; packages are not walked through."""
    found: dict[frozenset[str], list[str]] = {}
    packages = {name.rpartition(".")[0] for name in graph}
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            circle = path[path.index(name) :]
            found.setdefault(frozenset(circle), [*circle, name])
        elif name not in done and name in graph and name not in packages and name != FACE:
            for target in graph[name]:
                walk(target, [*path, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    return list(found.values())


def imports_torch(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False


def test_the_core_keeps_its_floors() -> None:
    assert violations(ROOT) == []


def test_every_folder_says_what_question_it_answers() -> None:
    for folder in {name for floor in FLOORS for name in floor if (ROOT / "ssmperf" / name).is_dir()}:
        assert ast.get_docstring(ast.parse((ROOT / "ssmperf" / folder / "__init__.py").read_text())), folder


PLANTED = {
    "upwards": ("registry/nosy.py", "from ssmperf.plan.sizes import spread\n", "not on a lower floor"),
    "upwards, in a function": (
        "runs/nosy.py",
        "def f():\n    from ssmperf.execute import run\n",
        "not on a lower floor",
    ),
    "a neighbour": ("judge/nosy.py", "from ssmperf.measure.memory import trace\n", "not on a lower floor"),
    "the other neighbour": (
        "measure/nosy.py",
        "from ssmperf.judge.verdict import Verdict\n",
        "not on a lower floor",
    ),
    "the face": ("measure/nosy.py", "from ssmperf import Case\n", "not on a lower floor"),
    "a circle": ("runs/nosy.py", "from ssmperf.runs.odd import f\n", "a circle"),
    "torch": ("plan/nosy.py", "def f():\n    import torch\n", "imports torch"),
    "a drawer": ("utils.py", "x = 1\n", "no floor has it"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, tmp_path: Path) -> None:
    file, text, reason = PLANTED[name]
    core = tmp_path / "ssmperf"
    for folder in ("plan", "measure", "judge", "runs", "execute", "registry"):
        (core / folder).mkdir(parents=True)
        (core / folder / "__init__.py").write_text('"""."""\n')
    for path in ("plan/axes.py", "measure/memory.py", "judge/verdict.py", "execute/run.py"):
        (core / path).write_text("trace = spread = Verdict = 1\n")
    (core / "runs" / "odd.py").write_text("def f():\n    from ssmperf.runs.nosy import g\n")
    (core / "__init__.py").write_text("from ssmperf.execute.run import trace\n")
    assert violations(tmp_path) == []
    (core / file).write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1 and reason in found[0], found


def test_annotations_may_point_upwards(tmp_path: Path) -> None:
    (tmp_path / "ssmperf" / "registry").mkdir(parents=True)
    (tmp_path / "ssmperf" / "registry" / "sections.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ssmperf.execute.context import Context\n"
    )
    assert violations(tmp_path) == []


@pytest.mark.parametrize("folder", ["cases", "registry", "plan"])
def test_the_lower_floors_load_no_torch(folder: str) -> None:
    code = (
        f"import importlib, pkgutil, sys; package = importlib.import_module('ssmperf.{folder}')\n"
        "for info in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'{package.__name__}.{info.name}')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
