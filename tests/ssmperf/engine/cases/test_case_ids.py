"""The ids of cases never change, since old runs are compared with new ones by them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ssmperf.engine.execute.request import select
from ssmperf.engine.plan import make_plan

LIST = Path(__file__).parents[3] / "case_ids.tsv.gz"  # ids and texts of all cases in the CPU's default plans


def committed() -> dict[str, str]:
    lines = gzip.decompress(LIST.read_bytes()).decode().splitlines()
    return dict(line.split("\t") for line in lines)


@pytest.mark.parametrize("suite", ["correctness", "throughput", "memory", "stability", "extrapolation"])
def test_the_ids_are_those_of_the_committed_list(suite: str) -> None:
    wanted = {case_id: text for case_id, text in committed().items() if text.startswith(f"{suite} ")}
    selection, _ = select(device="cpu", peers=True)
    planned = {item.case.id: str(item.case) for item in make_plan(selection, (suite,)).cases}
    assert len(wanted) > 200
    assert {case_id: planned.get(case_id) for case_id in wanted} == wanted
