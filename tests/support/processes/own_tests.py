"""Test suites of a kernel's own, run in this process by pytest's `pytester`.

A run in process forgets what was imported in it, which torch and the registry do not survive. `prepare`
imports all that such a suite needs first.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import pytest

from ssmperf.shell.pytest_plugin import measuring
from support.processes.in_process import CEILINGS

PLUGIN = "ssmperf.shell.pytest_plugin.hooks"
INSTALLED = any(  # as pytest looks: a stale egg-info in the checkout hides no other
    point.group == "pytest11" and point.name == "ssmperf"
    for distribution in importlib.metadata.distributions()
    for point in distribution.entry_points
)
LOAD = () if INSTALLED else ("-p", PLUGIN)
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:logging")
HEAD = """
import pytest, time, torch, ssmperf

QUICK = {"T": 16, "time": 0.01, "device": "cpu"}
SLOWER = 0.0

def mine(log_a, b, initial_state=None):
    until = time.perf_counter() + SLOWER
    while time.perf_counter() < until:
        pass
    return ssmperf.compute("scan", "sequential", log_a, b, initial_state)
"""
MEASURES = (
    HEAD
    + """
def test_it(ssmperf_session):
    ssmperf_session.measure("scan", mine, **QUICK)
"""
)


QUICK = {"time": 0.01, "T": 16}
MODULES = ("ssmperf.shell.pytest_plugin.session", "ssmperf.shell.pytest_plugin.benchmark",
           "ssmperf.engine.measure.stopwatch", "pandas", "rich.console", "scipy.special",
           "torch._dynamo")  # fmt: skip


def prepare() -> None:
    """Import what tests of kernels use, by measuring something."""
    for name in MODULES:
        importlib.import_module(name)
    for pass_ in ("forward", "backward"):
        case = measuring.wanted("scan", "sequential", device="cpu", pass_=pass_, **QUICK)
        facts = measuring.Facts("env", {}, CEILINGS)
        record = measuring.measured(case, facts, nonce=0, command="", passed_on=())
        assert record.status == "ok", record.reason
    importlib.import_module("ssmperf").registry.report("table", "comparison")


def run(pytester: pytest.Pytester, *arguments: Any, plugins: tuple[object, ...] = ()) -> pytest.RunResult:
    """Run the tests in pytester's folder in this process.

    Without pytest's logging, which leaves a file open where a session does not begin.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of these tests; under it, nothing is benchmarked
        return pytester.runpytest_inprocess(*LOAD, *WITHOUT, *map(str, arguments), plugins=plugins)
