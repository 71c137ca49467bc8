"""The rules of imports between the core, the rooms and backends, read off the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.imports import NO_RECURRENCES, ROOMS, SHARED, SOURCE, imports, python_files, registered

import ssmperf
from ssmperf import authoring, suitekit

ROOT = Path(__file__).parents[1]
FACADES = {facade.__name__: set(facade.__all__) for facade in (ssmperf, authoring, suitekit)}
# the façades from which each room, and each example, takes what it needs of the core
PUBLIC = {
    "impls": ("ssmperf", "ssmperf.authoring"),
    "suites": tuple(FACADES),
    "reports": tuple(FACADES),
    "examples": tuple(FACADES),
}


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
