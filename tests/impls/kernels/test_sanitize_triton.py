"""The cases that compute-sanitizer runs on a GPU do run: here some of them in Triton's interpreter."""

from __future__ import annotations

import pytest
from proofs import sanitize
from triton import knobs


@pytest.mark.slow
@pytest.mark.skipif(not knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "case",
    [
        "scan/triton const strand",
        "scan/triton decode",
        "selective_scan/triton implicit decode",
        "ratio_scan/triton decode",
        "linear_attention/triton both float32",
    ],
)
def test_runs_where_there_is_no_gpu(case: str) -> None:
    sanitize.CASES[case].run("cpu")
