"""The kernel that `ssmperf new scan NAME --triton` writes: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ssmperf
from ssmperf.authors.starter.repository import StarterRepository, create
from ssmperf.suitekit import registry

if reason := registry.backend("scan", "triton").missing("cuda" if torch.cuda.is_available() else "cpu"):
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture
def written(tmp_path: Path, own_registrations: None) -> Iterator[Path]:
    create(StarterRepository("scan", "written_kernel", triton=True), tmp_path)
    return tmp_path / "written_kernel.py"


@pytest.mark.slow(but=("{'T': 1, 'C': 3}-float32",))
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [{"T": 1, "C": 3}, {"B": 3, "T": 5, "C": 131}], ids=str)
def test_it_is_right(written: Path, dtype: str, sizes: dict[str, int]) -> None:
    """Also where a second program has few channels left."""
    registry.load_plugin(written)
    report = ssmperf.verify("scan", "written_kernel", dtype=dtype, gates=["data", "const"], **sizes)
    assert report, report


@pytest.mark.slow
def test_resets_and_other_layouts(written: Path) -> None:
    registry.load_plugin(written)
    choices = {"regime": ["reset", "ones"], "gates": ["data", "const"], "T": 7, "C": 5}
    for layout in ("channels_last", "time_last"):
        report = ssmperf.verify("scan", "written_kernel", layout=layout, **choices)
        assert report, report


@pytest.mark.parametrize(
    ("line", "instead", "wrong"),
    [
        ("grad_h + to, mask=inside, other=0.0) + carried", "grad_h + to, mask=inside, other=0.0)", "log_a"),
        ("carried * before", "grad * before", "log_a"),
        ("state = gate * state + ", "state = ", "output"),
    ],
)
def test_a_fault_is_found(written: Path, line: str, instead: str, wrong: str) -> None:
    text = written.read_text()
    assert text.count(line) == 1
    written.write_text(text.replace(line, instead))
    registry.load_plugin(written)
    report = ssmperf.verify("scan", "written_kernel", T=5, C=3, gates="data")
    assert not report
    assert wrong in str(report.reason)
