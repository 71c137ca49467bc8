"""Imports of a built-in peer: what they leave behind is no fault of a call, unless results depend on it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ssmperf.engine.execute import worker
from ssmperf.engine.execute.process_state import Snapshot
from ssmperf.suitekit import registry


def peer(loads: Any) -> Any:
    return SimpleNamespace(of="scan", name="planted_peer", loads=loads)


def test_a_variable_that_an_import_sets_is_no_difference_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = Snapshot.take()
    settled = worker.after_imports(initial, peer(lambda: monkeypatch.setenv("PLANTED_PACKAGE", "here")))
    assert settled is not initial
    assert any("PLANTED_PACKAGE" in each for each in initial.difference(Snapshot.take()))
    assert not any("PLANTED_PACKAGE" in each for each in settled.difference(Snapshot.take()))


def test_an_import_that_replaces_the_clock_stays_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = Snapshot.take()
    tampering = peer(lambda: monkeypatch.setattr(time, "perf_counter", lambda: 0.0))
    assert worker.after_imports(initial, tampering) is initial


def test_imports_of_plug_ins_and_failing_ones_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    initial = Snapshot.take()
    assert worker.after_imports(initial, peer(None)) is initial
    settled = worker.after_imports(initial, peer(lambda: __import__("no_such_package")))
    assert not settled.difference(initial)
    monkeypatch.setattr(registry, "file_of", lambda kind, label: "plugin.py")
    outside = peer(lambda: monkeypatch.setenv("PLANTED_PACKAGE", "here"))
    assert worker.after_imports(initial, outside) is initial
