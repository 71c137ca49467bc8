"""Profiles: every operator of one call is counted, and exactly one case must be selected."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ssmperf import UnknownName, Unsupported, UsageError
from ssmperf.authors.profiling import trace as profiling
from ssmperf.engine.execute.request import select

SMOKE = {"device": "cpu", "preset": "smoke", "dtype": "float32", "pass_": "forward"}


def profiled(folder: Path, **choices: object) -> profiling.Profile:
    selection, devices = select(**{**SMOKE, **choices})  # type: ignore[arg-type]
    return profiling.profile(selection, devices[0], folder)


def test_the_loop_launches_once_a_step(tmp_path: Path) -> None:
    launches = {
        T: profiled(tmp_path / str(T), models="hgrn", backends="sequential", axis=[f"T={T}", "B=1"]).launches
        for T in (16, 32, 64)
    }
    assert launches[64] - launches[32] == 2 * (launches[32] - launches[16]) > 0


def test_what_is_written_says_what_is_shown(tmp_path: Path) -> None:
    found = profiled(tmp_path, models="gla", backends="chunkwise")
    assert json.loads((tmp_path / "profile.json").read_text())["launches"] == found.launches
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    text = profiling.as_text(found)
    assert found.kernels[0].name in text
    assert str(tmp_path / "trace.json") in text
    assert found.duration_s == pytest.approx(sum(kernel.time_s for kernel in found.kernels))
    assert all(kernel.time_s >= 0 for kernel in found.kernels)


def test_several_cases_are_refused(tmp_path: Path) -> None:
    refused = {"T=16,32": "T has several values (16, 32)", "T=8": "dtype has several values"}
    for axis, several in refused.items():
        with pytest.raises(UsageError, match=re.escape(several)):
            profiled(tmp_path, models="hgrn", backends="sequential", axis=axis, dtype="float32,float64")


def test_a_bare_recurrence_has_one_call_too(tmp_path: Path) -> None:
    found = profiled(tmp_path, models="scan", backends="sequential", axis=["B=1", "T=1", "C=2"])
    assert found.case.operand_source.endswith("_complex")
    only_real = profiled(tmp_path, models="scan", backends="surrogate_raw", axis=["B=1", "T=3", "C=2"])
    assert only_real.launches > 0


def test_a_refused_case_says_why(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="TRITON_INTERPRET"):
        profiled(tmp_path, models="hgrn", backends="triton")
    with pytest.raises(UnknownName, match="backend"):
        profiled(tmp_path, models="hgrn", backends="sequentiel")
