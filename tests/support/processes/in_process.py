"""Runs a suite's cases in the tests' own process, without the seconds that a worker takes to start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssmperf import Case, Record, Status
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.request import select
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.registry.presets import PRESETS, Training
from ssmperf.suitekit import registry
from support.registrations import keep_apart

CEILINGS = Ceilings(1e15, {"float32": 1e18, "bfloat16": 1e18}, 1e15, 1e18, 0)  # which nothing reaches


def records_of(
    suite: str,
    plugin: Path,
    *,
    wanted: Callable[[Case], bool] = lambda case: True,
    training: Training = PRESETS["smoke"].training,
    ceilings: Ceilings = CEILINGS,
    **choices: Any,
) -> list[Record]:
    """Run the wanted cases of these choices on the CPU and return their records; forget the plug-in."""
    with pytest.MonkeyPatch.context() as patch:
        keep_apart(patch)
        registry.load_plugin(plugin)
        selection, _ = select(device="cpu", **choices)
        plan = make_plan(selection, [suite])
        words = ("--plugin", str(plugin))
        context = Context("cpu", "env", Settings(0.001, 0.01), ceilings, words=words, training=training)
        records = [Record(item.case, Status.UNSUPPORTED, item.refusal, None) for item in plan.refused]
        records += [run_case(case, context) for case in plan.to_run if wanted(case)]
        return [Record.from_json(record.to_json()) for record in records if wanted(record.case)]
