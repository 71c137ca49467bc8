"""The floors of the core, read off the source: imports point downwards and never form a circle.

The engine judges and times one case. Wings stand on it, side by side; only the shell knows them all.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A folder or file imports from floors below its own, or from its own folder. Rooms of the engine, then wings.
ENGINE = (
    ("processes",),
    ("cases",),
    ("registry",),
    ("plan", "layers"),
    ("operands", "machine"),
    ("judge", "measure"),
    ("diagnosis",),
    ("trial",),
    ("runs",),
    ("tune",),
    ("execute",),
)
WINGS = ("comparison", "authors", "papers")
STUBS = ("versions",)  # names that other versions know
FLOORS = (("errors",), *ENGINE, WINGS, ("shell", *STUBS))
FACE = "__init__"  # of the package, which exports names of all floors
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = ("cases", "errors", "registry", "plan")
MOST_FILES = 12  # of a folder, its __init__ included


def room(name: str) -> str:
    """Name the room of the engine, or else the wing, to which a module belongs."""
    parts = name.split(".")
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else parts[0]


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
    outside = (FACE, "engine")
    found = [f"{name}: no floor has it" for name in graph if name not in outside and room(name) not in FLOOR]
    for name, targets in graph.items():
        for target in targets if name != FACE else ():
            own, other = room(name), room(target)
            if own != other and (target in outside or FLOOR.get(other, 0) >= FLOOR.get(own, 0)):
                found.append(f"{name}: imports {target}, which is not on a lower floor")
    found += [f"{' -> '.join(circle)}: a circle" for circle in circles(graph)]
    found += [f"{name}: imports torch" for name, tree in trees.items()
              if room(name) in WITHOUT_TORCH and imports_torch(tree)]  # fmt: skip
    core = root / "ssmperf"
    folders = {file.parent for file in core.rglob("*.py")} - {core, core / "engine"}
    counts = {folder.relative_to(core): len(list(folder.glob("*.py"))) for folder in folders}
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
    core = ROOT / "ssmperf"
    for folder in (core / "engine", *(core / "engine" / each for floor in ENGINE for each in floor),
                   *(core / each for each in (*WINGS, *STUBS, "shell"))):  # fmt: skip
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


PLANTED = {
    "upwards": (
        "engine/registry/nosy.py",
        "from ssmperf.engine.plan.sizes import spread\n",
        "not on a lower floor",
    ),
    "upwards, in a function": (
        "engine/runs/nosy.py",
        "def f():\n    from ssmperf.engine.execute import run\n",
        "not on a lower floor",
    ),
    "a neighbour": (
        "engine/judge/nosy.py",
        "from ssmperf.engine.measure.memory import trace\n",
        "not on a lower floor",
    ),
    "the other neighbour": (
        "engine/measure/nosy.py",
        "from ssmperf.engine.judge.verdict import Verdict\n",
        "not on a lower floor",
    ),
    "the engine, a wing": (
        "engine/execute/nosy.py",
        "from ssmperf.comparison.sides import spread\n",
        "not on a lower floor",
    ),
    "a wing, another one": (
        "papers/nosy.py",
        "def f():\n    from ssmperf.comparison.sides import spread\n",
        "not on a lower floor",
    ),
    "a wing, the shell": ("comparison/nosy.py", "from ssmperf.shell import api\n", "not on a lower floor"),
    "the face": ("engine/measure/nosy.py", "from ssmperf import Case\n", "not on a lower floor"),
    "a circle": ("engine/runs/nosy.py", "from ssmperf.engine.runs.odd import f\n", "a circle"),
    "a circle in a wing": ("comparison/nosy.py", "from ssmperf.comparison.odd import f\n", "a circle"),
    "torch": ("engine/plan/nosy.py", "def f():\n    import torch\n", "imports torch"),
    "a drawer": ("utils.py", "x = 1\n", "no floor has it"),
    "a drawer in the engine": ("engine/utils.py", "x = 1\n", "no floor has it"),
}


def write_core(core: Path) -> None:
    rooms = ("plan", "measure", "judge", "runs", "execute", "registry")
    for folder in ("", "engine", *(f"engine/{each}" for each in rooms), "comparison", "papers", "shell"):
        (core / folder).mkdir(parents=True, exist_ok=True)
        (core / folder / "__init__.py").write_text('"""."""\n')
    for path in ("engine/plan/sizes.py", "engine/measure/memory.py", "engine/judge/verdict.py",
                 "engine/execute/run.py", "comparison/sides.py", "shell/api.py"):  # fmt: skip
        (core / path).write_text("trace = spread = Verdict = 1\n")
    for folder, name in (("engine/runs", "engine.runs"), ("comparison", "comparison")):
        (core / folder / "odd.py").write_text(f"def f():\n    from ssmperf.{name}.nosy import g\n")
    (core / "__init__.py").write_text("from ssmperf.engine.execute.run import trace\n")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str, tmp_path: Path) -> None:
    file, text, reason = PLANTED[name]
    write_core(tmp_path / "ssmperf")
    assert violations(tmp_path) == []
    (tmp_path / "ssmperf" / file).write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1 and reason in found[0], found


@pytest.mark.parametrize("folder", ["engine/runs", "comparison", "shell"])
def test_a_folder_with_too_many_files_is_found(folder: str, tmp_path: Path) -> None:
    write_core(tmp_path / "ssmperf")
    for number in range(MOST_FILES):
        (tmp_path / "ssmperf" / folder / f"file_{number}.py").write_text("x = 1\n")
    (found,) = violations(tmp_path)
    assert found.startswith(f"{folder}: ")


def test_annotations_may_point_upwards(tmp_path: Path) -> None:
    write_core(tmp_path / "ssmperf")
    (tmp_path / "ssmperf" / "engine" / "registry" / "sections.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ssmperf.engine.execute.context import Context\n"
    )
    assert violations(tmp_path) == []


@pytest.mark.parametrize("folder", ["cases", "registry", "plan"])
def test_the_lower_floors_load_no_torch(folder: str) -> None:
    code = (
        f"import importlib, pkgutil, sys; package = importlib.import_module('ssmperf.engine.{folder}')\n"
        "for info in pkgutil.iter_modules(package.__path__):\n"
        "    importlib.import_module(f'{package.__name__}.{info.name}')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
