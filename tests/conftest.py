"""Fixtures that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ssmperf import registry
from ssmperf.registry import discovery, tables
from ssmperf.tune import tables as configurations

# `pytest --hypothesis-profile=long tests/ssmperf/test_fuzz.py` takes minutes instead of seconds
settings.register_profile("long", deadline=None, max_examples=3000)


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after the test what it registers and loads."""
    for built_in in (registry.models, registry.suites, registry.tasks, registry.reports, registry.claims):
        built_in()  # imported before the test, which shall lose only its own
    for name in registry.recurrences():
        registry.backends(name)
        registry.analytics(name)
    registry.identities()
    entries = {kind: dict(table) for kind, table in tables.entries.items()}
    monkeypatch.setattr(tables, "entries", entries)
    monkeypatch.setattr(tables, "origins", dict(tables.origins))
    monkeypatch.setattr(discovery, "plugin_files", list(discovery.plugin_files))
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """A test's launch plans, which its patches may have shaped, are gone after it."""
    yield
    if plan := sys.modules.get("ssmperf.impls._triton.plan"):
        plan.forget()
