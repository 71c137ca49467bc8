"""The scan's kernels with time innermost compile for Hopper: vectors in registers, none of them spilled."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
import torch
from support.without_gpu.compiled import Usage, launched

from ssmperf.suitekit import registry

pytest.importorskip("triton")
ENTRY = registry.backend("scan", "triton")
if registry.import_problem("scan", "triton"):
    pytest.skip("needs triton", allow_module_level=True)

from triton import knobs  # noqa: E402

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

from ssmperf.impls.scan._triton import time_last  # noqa: E402

FLOAT, BFLOAT, COMPLEX = torch.float32, torch.bfloat16, torch.complex64
WIDTHS = {  # of data and of gates
    "float32": (FLOAT, FLOAT),
    "mixed": (BFLOAT, FLOAT),
    "half": (BFLOAT, BFLOAT),
    "complex": (COMPLEX, FLOAT),
}
T, C = 16_384, 2


def compiled(widths: str, *, few: bool, const: bool = False, T: int = T) -> dict[str, Any]:
    data, gate = WIDTHS[widths]
    b = torch.zeros(1, C, T, dtype=data).transpose(1, 2).requires_grad_()
    size = (C,) if const else (1, C, T)
    gates = [torch.zeros(size, dtype=gate).requires_grad_() for _ in range(1 + data.is_complex)]
    log_a, phase = (gate if const else gate.transpose(1, 2) for gate in (*gates, *gates)[:2])
    state = torch.zeros(1, C, dtype=COMPLEX if data.is_complex else FLOAT).requires_grad_()

    def call() -> None:
        outputs = ENTRY.function(log_a, b, state, phase=phase if data.is_complex else None)
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])

    with mock.patch.object(time_last, "processors", lambda device: 10_000 if few else 0):
        return launched(call, 90)


@pytest.mark.parametrize("few", [False, True], ids=["rows", "few-rows"])
@pytest.mark.parametrize("widths", WIDTHS)
def test_nothing_spills_and_all_travels_as_vectors(widths: str, few: bool) -> None:
    kernels = compiled(widths, few=few)
    assert list(kernels) == ["scan_forward_time_last", "scan_backward_time_last"]
    for name, kernel in kernels.items():
        needs = Usage.of(kernel.asm["cubin"], kernel.metadata.shared)
        assert needs.spilled == 0, (name, needs)
        ptx = kernel.asm["ptx"]
        assert re.search(r"st\.global\.v[24]", ptx), name
        assert re.search(r"cp\.async\.c[ag]\.shared\.global \[[^,]*\], \[[^,]*\], 0x10", ptx), name
        if not few:
            assert "st.shared" not in ptx, f"{name}: data move between threads through shared memory"


@pytest.mark.slow(but=("float32",))
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_constant_gate_and_a_length_of_no_whole_tiles_do_not_spill(widths: str) -> None:
    for kernels in (compiled(widths, few=False, const=True), compiled(widths, few=False, T=T + 3)):
        for name, kernel in kernels.items():
            assert Usage.of(kernel.asm["cubin"], kernel.metadata.shared).spilled == 0, name
