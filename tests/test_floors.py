"""The floors of the core and of the reports: imports point downwards, and no package has a circle of files.

The engine judges and times one case. Wings stand on it, side by side; only the shell knows them all. Rows
come from records, views from rows; pages and formats stand on both, side by side. A folder has no more files
than a reader takes in.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.imports import FACE, circles, graph_of, imports_torch, modules

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
FACADES = ("__init__", "authoring", "suitekit")  # export names of all floors; nothing of the core uses them
FLOORS = (("errors", "_lazy"), *ENGINE, WINGS, ("shell", *STUBS), FACADES)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
WITHOUT_TORCH = ("cases", "errors", "registry", "plan")
ROOMS = ("impls", "suites", "reports")
REPORTS = (("delivery",), ("rows",), ("views",), ("pages", "formats"))
MOST_FILES = 12  # of a folder, its __init__ included
MOST_WITH_REASON = 14
REASONS = {
    "impls/scan": "one file per backend, and the plain scan has the most",
    "suites": "one file per suite",
}
LISTS = ("impls/models", "suites/claims")  # one file per item
NOT_YET = {
    "impls/linear_attention/_triton": "until its kernels are grouped: walk, chunks, pairs, rotation, values",
    "impls/selective_scan/_triton": "until its kernels are grouped by phase",
}


def room(name: str) -> str:
    """Name the room of the engine, or else the wing, to which a module belongs."""
    parts = name.split(".")
    return parts[1] if parts[0] == "engine" and len(parts) > 1 else parts[0]


def violations(root: Path) -> list[str]:
    found = misplaced(root / "ssmperf") + upwards_in_reports(root / "reports")
    for package in (root / each for each in ("ssmperf", *ROOMS)):
        graph = graph_of(package, modules(package))
        found += [f"{package.name}: {' -> '.join(circle)}: a circle" for circle in circles(graph)]
    return [*found, *crowded(root)]


def misplaced(core: Path) -> list[str]:
    """List what lies on no floor of the core, imports upwards, or imports torch where none is wanted."""
    trees = modules(core)
    graph = graph_of(core, trees)
    found = [f"{name}: no floor has it" for name in graph if name != "engine" and room(name) not in FLOOR]
    for name, targets in graph.items():
        for target in targets:
            own, other = room(name), room(target)
            if own != other and (target == "engine" or FLOOR.get(other, 0) >= FLOOR.get(own, 0)):
                found.append(f"{name}: imports {target}, which is not on a lower floor")
    return found + [f"{name}: imports torch" for name, tree in trees.items()
                    if room(name) in WITHOUT_TORCH and imports_torch(tree)]  # fmt: skip


def upwards_in_reports(reports: Path) -> list[str]:
    """List what lies on no floor of the reports, or imports upwards or a neighbour."""
    found = []
    floor = {name: number for number, names in enumerate(REPORTS) for name in names}
    for name, targets in graph_of(reports, modules(reports)).items():
        own = name.split(".")[0]
        if own not in (*floor, FACE):
            found.append(f"reports/{name}: no floor has it")
        found += [
            f"reports/{name}: imports {target}, which is not on a lower floor"
            for target, other in ((each, each.split(".")[0]) for each in targets)
            if own != other and floor.get(other, len(floor)) >= floor.get(own, 0)
        ]
    return found


def crowded(root: Path) -> list[str]:
    """List folders with more files than a reader takes in, but for those that are lists."""
    found = []
    files = [file for package in ("ssmperf", *ROOMS) for file in (root / package).rglob("*.py")]
    for folder in sorted({file.parent for file in files}):
        count, path = len(list(folder.glob("*.py"))), str(folder.relative_to(root))
        if path not in (*LISTS, *NOT_YET) and count > (MOST_WITH_REASON if path in REASONS else MOST_FILES):
            found.append(f"{path}: {count} files")
    return found


def test_every_package_keeps_its_floors() -> None:
    assert violations(ROOT) == []


def test_no_exception_outlives_its_need() -> None:
    for path, most in ((each, MOST_FILES) for each in REASONS):
        assert len(list((ROOT / path).glob("*.py"))) > most, path
    for path in NOT_YET:
        assert len(list((ROOT / path).glob("*.py"))) > MOST_WITH_REASON, path


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
    "the authors' face": (
        "authors/nosy.py",
        "from ssmperf.authoring import Model\n",
        "not on a lower floor",
    ),
    "the suites' face, from the shell": (
        "shell/nosy.py",
        "def f():\n    from ssmperf import suitekit\n",
        "not on a lower floor",
    ),
    "a circle": ("engine/runs/nosy.py", "from ssmperf.engine.runs.odd import f\n", "a circle"),
    "a circle in a wing": ("comparison/nosy.py", "from ssmperf.comparison.odd import f\n", "a circle"),
    "torch": ("engine/plan/nosy.py", "def f():\n    import torch\n", "imports torch"),
    "a drawer": ("utils.py", "x = 1\n", "no floor has it"),
    "a drawer in the engine": ("engine/utils.py", "x = 1\n", "no floor has it"),
}


PLANTED_IN_ROOMS = {
    "a report, upwards": ("reports/rows/nosy.py", "from ..views import matrix\n", "not on a lower floor"),
    "a report, upwards in a function": (
        "reports/views/nosy.py",
        "def f():\n    from ..pages.html import render\n",
        "not on a lower floor",
    ),
    "a page, a format": ("reports/pages/nosy.py", "from ..formats import exports\n", "not on a lower floor"),
    "a format, a page": (
        "reports/formats/nosy.py",
        "from ..pages.html import render\n",
        "not on a lower floor",
    ),
    "what delivers, a row": ("reports/delivery.py", "from .rows import frames\n", "not on a lower floor"),
    "a drawer of reports": ("reports/utils.py", "x = 1\n", "no floor has it"),
    "a circle of reports": ("reports/rows/nosy.py", "from .odd import f\n", "a circle"),
    "a circle of suites": ("suites/nosy.py", "from . import odd\n", "a circle"),
    "a circle of backends' parts": ("impls/_triton/nosy.py", "from .odd import f\n", "a circle"),
}


def write_rooms(root: Path) -> None:
    for folder in ("rows", "views", "pages", "formats"):
        (root / "reports" / folder).mkdir(parents=True)
    for folder in ("impls/_triton", "suites"):
        (root / folder).mkdir(parents=True)
    for path in ("rows/frames", "views/matrix", "pages/html", "formats/exports", "delivery"):
        (root / "reports" / f"{path}.py").write_text("render = 1\n")
    for folder in ("reports/rows", "suites", "impls/_triton"):
        (root / folder / "odd.py").write_text("def f():\n    from .nosy import g\n")


def write_core(core: Path) -> None:
    rooms = ("plan", "measure", "judge", "runs", "execute", "registry")
    for folder in (
        "",
        "engine",
        *(f"engine/{each}" for each in rooms),
        "comparison",
        "authors",
        "papers",
        "shell",
    ):
        (core / folder).mkdir(parents=True, exist_ok=True)
        (core / folder / "__init__.py").write_text('"""."""\n')
    for path in ("engine/plan/sizes.py", "engine/measure/memory.py", "engine/judge/verdict.py",
                 "engine/execute/run.py", "comparison/sides.py", "shell/api.py"):  # fmt: skip
        (core / path).write_text("trace = spread = Verdict = 1\n")
    for folder, name in (("engine/runs", "engine.runs"), ("comparison", "comparison")):
        (core / folder / "odd.py").write_text(f"def f():\n    from ssmperf.{name}.nosy import g\n")
    for face in ("__init__", "authoring", "suitekit"):
        (core / f"{face}.py").write_text("from ssmperf.engine.execute.run import trace\n")


@pytest.mark.parametrize("name", [*PLANTED, *PLANTED_IN_ROOMS])
def test_a_planted_violation_is_found(name: str, tmp_path: Path) -> None:
    in_core = {each: (f"ssmperf/{file}", *rest) for each, (file, *rest) in PLANTED.items()}
    file, text, reason = (in_core | PLANTED_IN_ROOMS)[name]
    write_core(tmp_path / "ssmperf")
    write_rooms(tmp_path)
    assert violations(tmp_path) == []
    (tmp_path / file).write_text(text)
    found = violations(tmp_path)
    assert len(found) == 1 and reason in found[0], found


CROWDS = {
    "ssmperf/engine/runs": MOST_FILES,
    "ssmperf/comparison": MOST_FILES,
    "ssmperf/shell": MOST_FILES,
    "reports/views": MOST_FILES,
    "suites": MOST_WITH_REASON,
    "impls/_triton": MOST_FILES,
    "impls/scan": MOST_WITH_REASON,
}


@pytest.mark.parametrize("folder", CROWDS)
def test_a_folder_with_too_many_files_is_found(folder: str, tmp_path: Path) -> None:
    write_core(tmp_path / "ssmperf")
    write_rooms(tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    more = CROWDS[folder] - len(list((tmp_path / folder).glob("*.py")))
    for number in range(more):
        (tmp_path / folder / f"file_{number}.py").write_text("x = 1\n")
    assert violations(tmp_path) == []
    (tmp_path / folder / "one_more.py").write_text("x = 1\n")
    (found,) = violations(tmp_path)
    assert found == f"{folder}: {CROWDS[folder] + 1} files"


@pytest.mark.parametrize("folder", [*LISTS, *NOT_YET])
def test_lists_may_be_long(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    for number in range(MOST_WITH_REASON + 1):
        (tmp_path / folder / f"file_{number}.py").write_text("x = 1\n")
    assert violations(tmp_path) == []


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
