"""What tests of the core share."""

from __future__ import annotations

import pytest

from ssmperf import registry


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers and loads is gone after it."""
    for built_in in (registry.models, registry.suites, registry.reports):
        built_in()  # imported before the test, which shall lose only its own
    for name in registry.recurrences():
        registry.backends(name)
    for name in ("_recurrences", "_backends", "_models", "_suites", "_reports", "_origins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registry, "_plugins", list(registry._plugins))
