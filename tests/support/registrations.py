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


def keep_apart(monkeypatch: pytest.MonkeyPatch, *, built_in: bool = False) -> None:
    """Give registrations and loaded plug-ins tables of their own until the patch is undone.

    built_in: without what others have registered and loaded in this process.
    """
    for imported in (registry.models, registry.suites, registry.tasks, registry.reports, registry.claims):
        imported()  # before, since only what is the test's own shall be lost
    for name in registry.recurrences():
        registry.backends(name)
        registry.analytics(name)
    registry.identities()
    others = {key for key in tables.origins if built_in and registry.from_outside(*key)}
    entries = {
        kind: {label: entry for label, entry in table.items() if (kind, label) not in others}
        for kind, table in tables.entries.items()
    }
    origins = {key: origin for key, origin in tables.origins.items() if key not in others}
    monkeypatch.setattr(tables, "entries", entries)
    monkeypatch.setattr(tables, "origins", origins)
    monkeypatch.setattr(discovery, "plugin_files", [] if built_in else list(discovery.plugin_files))
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))
