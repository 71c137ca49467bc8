"""Families of models: a full name makes its member once, and the error for a wrong one lists valid names."""

from __future__ import annotations

import pytest

from ssmperf import ModelEntry, UnknownName, UsageError
from ssmperf.authoring import Model, family
from ssmperf.suitekit import registry

pytestmark = pytest.mark.usefixtures("own_registrations")


@pytest.fixture
def made() -> list[str]:
    """Record the full names for which the family makes an entry."""
    calls: list[str] = []

    @family("power", members=["power:2"])
    def power(name: str) -> ModelEntry:
        calls.append(name)
        exponent = name.partition(":")[2]
        if not exponent.isdigit():
            raise UsageError(f"{name!r}: valid are power:0, power:1, ...")
        return ModelEntry(name, type("Power", (Model,), {}), "scan", "none", "data")

    return calls


def test_members_are_listed_and_others_are_made_when_they_are_named(made: list[str]) -> None:
    assert "power:2" in registry.models()
    assert "power:3" not in registry.models()
    entry = registry.model("power:3")
    assert entry.cls.name == "power:3"
    assert registry.model("power:3") is entry
    assert registry.recurrence_of("power:3") == "scan"
    assert registry.backend("power:3", "blelloch").of == "scan"
    assert made == ["power:2", "power:3"]
    assert "power:3" not in registry.models()  # or the next run of all models would have it
    assert registry.foreign("model", "power:3") and not registry.foreign("model", "lcsm:0-0-1-0:3")


def test_a_name_of_another_form_is_no_member(made: list[str]) -> None:
    with pytest.raises(UsageError, match="lower snake case"):
        registry.model("power:A")
    assert made == ["power:2"]


def test_a_wrong_parameter_says_what_is_valid(made: list[str]) -> None:
    with pytest.raises(UsageError, match="valid are power:0"):
        registry.model("power:x")
    assert "power:x" not in registry.models()


def test_a_family_that_nobody_registered_is_an_unknown_model(made: list[str]) -> None:
    with pytest.raises(UnknownName, match="root:2"):
        registry.model("root:2")
