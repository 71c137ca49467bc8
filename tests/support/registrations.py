"""Registrations and plug-ins of a test, to be forgotten after it."""

from __future__ import annotations

import pytest

from ssmperf import Backend
from ssmperf.engine.registry import discovery, tables
from ssmperf.engine.tune import tables as configurations
from ssmperf.suitekit import registry


def built_in_backends(recurrence: str) -> list[Backend]:
    """List the package's own backends: neither peers nor those that other tests registered here."""
    found = registry.backends(recurrence)
    return [each for each in found if not registry.foreign("backend", f"{recurrence}/{each.name}")]


def keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give registrations and loaded plug-ins tables of their own until the patch is undone."""
    for built_in in (registry.models, registry.suites, registry.tasks, registry.reports, registry.claims):
        built_in()  # imported before, since only what is the test's own shall be lost
    for name in registry.recurrences():
        registry.backends(name)
        registry.analytics(name)
    registry.identities()
    entries = {kind: dict(table) for kind, table in tables.entries.items()}
    monkeypatch.setattr(tables, "entries", entries)
    monkeypatch.setattr(tables, "origins", dict(tables.origins))
    monkeypatch.setattr(discovery, "plugin_files", list(discovery.plugin_files))
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))
