"""Experiments begin from a record's verdict, which may have come from a file."""

from __future__ import annotations

import json
import math

from ssmperf import Record, Status
from ssmperf.engine.diagnosis.experiments import stands_out, verdict_of
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan


def test_a_verdict_stands_out_where_a_file_has_null_for_nan() -> None:
    selection, _ = select(device="cpu", models="retnet", backends="sequential", dtype="float32")
    case = make_plan(selection, ["correctness"]).to_run[0]
    numbers = {"errors": {"output": math.nan}, "tolerances": {"output": 0.1}}
    record = Record(case, Status.NAN, "output: no value is finite", numbers=numbers)
    verdict = verdict_of(Record.from_json(json.loads(json.dumps(record.to_json()))))
    assert math.isnan(verdict.errors["output"])
    assert verdict.excess == math.inf
    assert stands_out(verdict)
