"""The wheel holds every file of the five folders: setup.py's lists, checked against the folders.

Building and installing the wheel is a step of ci/test.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROOMS = {
    "ssmperf": "ssmperf",
    "ssmperf.impls": "impls",
    "ssmperf.suites": "suites",
    "ssmperf.reports": "reports",
}


def computed(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Collect what setup.py hands to setuptools when it runs in a folder."""
    given: dict[str, Any] = {}
    monkeypatch.chdir(root)
    monkeypatch.setattr(setuptools, "setup", given.update)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def package_of(file: Path) -> str:
    """The package that a file's folder must be."""
    room, *folders = file.relative_to(ROOT).parent.parts
    return ".".join(["ssmperf", *([] if room == "ssmperf" else [room]), *folders])


def files() -> list[Path]:
    return [file for room in ROOMS.values() for file in (ROOT / room).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts]  # fmt: skip


def test_every_folder_with_python_is_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = computed(ROOT, monkeypatch)["packages"]
    assert len(packages) == len(set(packages))
    assert set(packages) == {package_of(file) for file in files() if file.suffix == ".py"}


def test_packages_map_to_their_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    assert computed(ROOT, monkeypatch)["package_dir"] == ROOMS


def test_a_new_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("ssmperf", "impls", "impls/new_recurrence", "suites", "suites/tasks", "reports"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    packages = computed(tmp_path, monkeypatch)["packages"]
    assert {"ssmperf.impls.new_recurrence", "ssmperf.suites.tasks"} <= set(packages)


def test_files_that_are_not_python_are_package_data(monkeypatch: pytest.MonkeyPatch) -> None:
    given = computed(ROOT, monkeypatch)
    covered = {
        file
        for package, patterns in given["package_data"].items()
        for pattern in patterns
        for file in (ROOT / ROOMS[package]).glob(pattern)
    }
    left_out = {file for file in files() if file.suffix != ".py"} - covered
    assert left_out == set()
    assert ROOT / "ssmperf" / "py.typed" in covered


def test_examples_are_in_the_sdist_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(listed, cwd=ROOT, check=True, capture_output=True)
    sources = (tmp_path / "ssmperf.egg-info" / "SOURCES.txt").read_text().split()
    examples = {str(file.relative_to(ROOT)) for file in (ROOT / "examples").glob("*.py")}
    assert examples and examples <= set(sources)
    assert not any("examples" in name for name in computed(ROOT, monkeypatch)["packages"])


def test_every_dependency_is_pinned() -> None:
    """ci/constraints.txt names a version for all that the project, its tests and its CUDA kernels ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [Requirement(text) for text in [*project["dependencies"], *extras["test"], *extras["cuda"]]]
    asked = [requirement for requirement in asked if requirement.name != project["name"]]
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert all(len(pin.specifier) == 1 and str(pin.specifier).startswith("==") for pin in pins)
    for requirement in asked:
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_what_a_kernels_repository_begins_with_is_in_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel keeps no executable bit: whoever copies a script sets it, and knows one by its first line."""
    patterns = computed(ROOT, monkeypatch)["package_data"]["ssmperf"]
    covered = {file.name: file for pattern in patterns for file in (ROOT / "ssmperf").glob(pattern)}
    assert {"gate", "gpu.yml"} <= covered.keys()
    scripts = {name for name, file in covered.items() if file.read_text().startswith("#!")}
    assert scripts == {"gate"} and os.access(covered["gate"], os.X_OK)
