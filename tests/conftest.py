"""Fixtures that all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.parts import PARTS, of_part
from support.processes import forks, quick_processes
from support.registrations import keep_apart

# `pytest --hypothesis-profile=long tests/ssmperf/shell/test_fuzz.py` takes minutes instead of seconds
settings.register_profile("long", deadline=None, max_examples=3000)
# how fast examples are drawn depends on who else has the cores
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="the tests that run each time, or the rest; default: all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        items[:], others = of_part(part, items)
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def forked_nurseries() -> Iterator[None]:
    """Fork nurseries, and sides of comparisons, instead of letting each import torch."""
    with quick_processes.forked_by(*forks.STARTERS):
        yield
    quick_processes.server.close()


@pytest.fixture
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with what is built in alone, and forget after the test what it registers and loads."""
    keep_apart(monkeypatch, built_in=True)


@pytest.fixture(autouse=True)
def own_plans() -> Iterator[None]:
    """A test's launch plans, which its patches may have shaped, are gone after it."""
    yield
    if plan := sys.modules.get("ssmperf.impls._triton.plan"):
        plan.forget()
