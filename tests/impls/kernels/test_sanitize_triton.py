"""The configurations for compute-sanitizer run: here some of each backend in Triton's interpreter."""

from __future__ import annotations

import pytest
from proofs import sanitize
from triton import knobs


@pytest.mark.slow
@pytest.mark.skipif(not knobs.runtime.interpret, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("backend", [name for name in sanitize.fused() if name.endswith("/triton")])
def test_runs_where_there_is_no_gpu(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--run", backend, "--from", "0", "--count", "3"]) == 0
    assert capsys.readouterr().out.count(": ok") > 0
