"""The kernel of examples/triton_backend.py compiles for GPUs, and keeps all in registers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.without_gpu.compiled import Usage, launched

from ssmperf.suitekit import registry

pytest.importorskip("triton")

from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "dtype", "shape"),
    [(90, torch.float64, (2, 9, 200)), (100, torch.float32, (1, 1, 1))],  # sizes that Triton makes constants
    ids=str,
)
@pytest.mark.usefixtures("own_registrations")
def test_it_compiles_without_spills(arch: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    registry.load_plugin(Path(__file__).parents[3] / "examples" / "triton_backend.py")
    function = registry.backend("scan", "my_triton").function

    def call() -> None:
        output, state = function(*(torch.zeros(shape, dtype=dtype, requires_grad=True) for _ in range(2)))
        (output.sum() + state.sum()).backward()

    kernels = launched(call, arch)
    assert list(kernels) == ["scan_kernel"]
    assert all(Usage.of_triton(kernel).spilled == 0 for kernel in kernels.values())
