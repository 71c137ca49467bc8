"""The kernel that `ssmperf new scan NAME --triton` writes compiles for GPUs, and keeps all in registers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.without_gpu.compiled import Usage, launched

from ssmperf.authors.starter.repository import StarterRepository, create
from ssmperf.suitekit import registry

pytest.importorskip("triton")

from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "dtype", "shape"),
    [
        (80, torch.bfloat16, (2, 9, 200)),
        (90, torch.float64, (2, 9, 200)),
        (100, torch.float32, (1, 1, 1)),  # sizes that Triton makes constants
    ],
    ids=str,
)
@pytest.mark.usefixtures("own_registrations")
def test_it_compiles_without_spills(
    arch: int, dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    create(StarterRepository("scan", "written_kernel", triton=True), tmp_path)
    registry.load_plugin(tmp_path / "written_kernel.py")
    function = registry.backend("scan", "written_kernel").function
    gate_dtype = torch.promote_types(dtype, torch.float32)

    def call() -> None:
        log_a = torch.zeros(shape, dtype=gate_dtype, requires_grad=True)
        output, state = function(log_a, torch.zeros(shape, dtype=dtype, requires_grad=True))
        (output.sum() + state.sum()).backward()

    kernels = launched(call, arch)
    assert list(kernels) == ["_forward", "_backward"]
    assert all(Usage.of_triton(kernel).spilled == 0 for kernel in kernels.values())
