"""What tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ssmperf import configurations, registry


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers and loads is gone after it."""
    for built_in in (registry.models, registry.suites, registry.reports):
        built_in()  # imported before the test, which shall lose only its own
    for name in registry.recurrences():
        registry.backends(name)
    registry.identities()
    monkeypatch.setattr(registry, "_tables", {kind: dict(table) for kind, table in registry._tables.items()})
    monkeypatch.setattr(registry, "_origins", dict(registry._origins))
    monkeypatch.setattr(registry, "_plugins", list(registry._plugins))
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """A test's launch plans, which its patches may have shaped, are gone after it."""
    yield
    if plan := sys.modules.get("ssmperf.impls._triton.plan"):
        plan.forget()
