"""How long the default runs take, by their forecasts: a suite that grows beyond its time is found here."""

from __future__ import annotations

import pytest

from ssmperf import Case
from ssmperf.engine.execute.request import select
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.plan.estimate import expected_s
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.selection import Selection
from ssmperf.suitekit import registry

TEN_MINUTES = 600
BOUNDS_S = {"memory": 480, "stability": 500}  # of others, ten minutes
ON_GPU = ("correctness", "throughput", "memory", "stability", "extrapolation", "training")
BENCH_S, ALL_SMOKE_S = 240, 1200  # of ci/bench, and of all suites


def measured(selection: Selection, suite: str) -> list[Case]:
    """List the cases that run, without backends of plug-ins of other tests."""
    plan = make_plan(selection, [suite])
    return [
        case
        for case in StandIns(plan, selection).measured(plan.to_run)
        if not registry.foreign("backend", f"{case.recurrence}/{case.backend}")
    ]


@pytest.mark.slow(but=("memory", "extrapolation"))
@pytest.mark.parametrize("suite", ON_GPU)
def test_a_default_run_on_a_gpu_takes_about_ten_minutes_at_most(suite: str) -> None:
    selection, _ = select(device="cuda", planning=True)
    cases = measured(selection, suite)
    assert len({case.owner for case in cases}) >= 12  # it is no answer to measure nothing
    forecast_s = expected_s(cases, workers=selection.device.workers, training=selection.scale.training)
    assert forecast_s <= BOUNDS_S.get(suite, TEN_MINUTES)


@pytest.mark.slow
def test_default_runs_on_a_cpu_take_minutes() -> None:
    selection, _ = select(device="cpu")
    spent_s = {
        suite: expected_s(measured(selection, suite), training=selection.scale.training) for suite in ON_GPU
    }
    assert spent_s["throughput"] <= BENCH_S
    assert sum(spent_s.values()) <= ALL_SMOKE_S
