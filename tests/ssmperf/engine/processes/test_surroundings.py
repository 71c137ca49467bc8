"""Children start with what this process had before it imported foreign code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ssmperf.engine.processes import surroundings
from ssmperf.suitekit import registry


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_changed", {})
    monkeypatch.setenv("PLANTED_KEPT", "before")
    monkeypatch.delenv("PLANTED_ADDED", raising=False)


def test_variables_of_foreign_code_reach_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    with surroundings.watched():
        monkeypatch.setenv("PLANTED_KEPT", "during")
        monkeypatch.setenv("PLANTED_ADDED", "during")
    assert os.environ["PLANTED_ADDED"] == "during"  # for what was imported
    found = surroundings.variables()
    assert found["PLANTED_KEPT"] == "before" and "PLANTED_ADDED" not in found
    with surroundings.watched():
        monkeypatch.setenv("PLANTED_KEPT", "again")
    assert surroundings.variables()["PLANTED_KEPT"] == "before"


def test_variables_that_are_set_later_reach_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with surroundings.watched():
        monkeypatch.setenv("PLANTED_KEPT", "during")
    monkeypatch.setenv("PLANTED_KEPT", "by the user")
    assert surroundings.variables()["PLANTED_KEPT"] == "by the user"


def test_folder_and_cores_are_put_back(tmp_path: Path) -> None:
    folder, cores = Path.cwd(), os.sched_getaffinity(0)
    with surroundings.watched():
        os.chdir(tmp_path)
        os.sched_setaffinity(0, {min(cores)})
    assert (Path.cwd(), os.sched_getaffinity(0)) == (folder, cores)


def test_the_niceness_of_a_plug_in_stays_in_its_thread(tmp_path: Path, own_registrations: None) -> None:
    file = tmp_path / "nice.py"
    file.write_text("import os\nos.nice(1)\n")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    registry.load_plugin_apart(file)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_current_folder_is_searched_where_the_package_lies_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (surroundings.PACKAGE / "suitekit.py").exists() or (surroundings.PACKAGE / "suitekit").exists()
    monkeypatch.chdir(surroundings.PACKAGE.parent)  # a checkout that is not installed
    assert surroundings.interpreter() == [sys.executable]
    monkeypatch.chdir(tmp_path)
    assert surroundings.interpreter() == [sys.executable, "-P"]
