"""The devices of a cluster: how far each is off the others, and which stands out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssmperf import Run
from ssmperf.engine.runs.nodes import node_lines, offsets


def run_on(**rates: tuple[Any, Any]) -> Run:
    """Make up a run whose devices copy and multiply at these rates."""
    nodes = {
        label: {
            "env_id": "e",
            "ceilings": {"copy_bytes_per_s": copy, "matmul_flops_per_s": {"bfloat16": product}},
        }
        for label, (copy, product) in rates.items()
    }
    return Run(Path("run"), {"nodes": nodes}, [])


def test_a_device_that_stands_out_is_named() -> None:
    run = run_on(a=(100.0, 10.0), b=(101.0, 10.1), c=(99.0, 7.0))
    assert offsets(run)["c"] == pytest.approx({"copies": -0.01, "multiplies": -0.3})
    (line,) = node_lines([run])
    assert line.startswith("3 devices: copies within 1.0 %, multiplies within 30.0 % of the median")
    assert line.endswith("stands out: c multiplies 30 % slower")


def test_equal_devices_have_a_line_and_one_device_none() -> None:
    assert node_lines([run_on(a=(100, 10), b=(100, 10))]) == [
        "2 devices: copies within 0.0 %, multiplies within 0.0 % of the median"
    ]
    assert "stands out" not in node_lines([run_on(a=(100, 10), b=(50, 10))])[0], "either could be the odd one"
    assert node_lines([run_on(a=(100, 10)), Run(Path("run"), {}, [])]) == []


def test_damaged_rates_are_left_out() -> None:
    run = run_on(a=(100, 10), b=("fast", None), c=(float("nan"), True), d=(100, 10))
    assert offsets(run).keys() == {"a", "d"}
    assert node_lines([Run(Path("run"), {"nodes": ["a"]}, [])]) == []
