"""The kernels of one step compile for Hopper: one per call, its state read and written as vectors."""

from __future__ import annotations

import pytest
import torch
from support.without_gpu.compiled import Usage, launched

from ssmperf.suitekit import registry

if reason := registry.import_problem("scan", "triton"):
    pytest.skip(reason, allow_module_level=True)

from triton import knobs

if knobs.runtime.interpret:
    pytest.skip("Triton interprets kernels in this process", allow_module_level=True)

B, C, N = 8, 256, 16
FLOAT, BFLOAT, COMPLEX = torch.float32, torch.bfloat16, torch.complex64


def zeros(*size: int, dtype: torch.dtype = FLOAT) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype)


CASES = {
    "scan": {"log_a": zeros(B, 1, C), "b": zeros(B, 1, C), "initial_state": zeros(B, C)},
    "scan complex": {
        "log_a": zeros(C),
        "phase": zeros(C),
        "b": zeros(B, 1, C, dtype=COMPLEX),
        "initial_state": zeros(B, C, dtype=COMPLEX),
    },
    "selective_scan": {
        "x": zeros(B, 1, C, dtype=BFLOAT),
        "delta": zeros(B, 1, C),
        "k": zeros(B, 1, N, dtype=BFLOAT),
        "q": zeros(B, 1, N, dtype=BFLOAT),
        "A": zeros(C, N),
        "initial_state": zeros(B, C, N),
    },
    "ratio_scan": {
        "log_w": zeros(C),
        "k": zeros(B, 1, C, dtype=BFLOAT),
        "v": zeros(B, 1, C, dtype=BFLOAT),
        "bonus": zeros(C),
        "initial_state": zeros(B, 3, C),
    },
    "linear_attention": {
        **{name: zeros(B, 1, 4, 128, dtype=BFLOAT) for name in "qkv"},
        "log_a": zeros(B, 1, 4, 128),
        "initial_state": zeros(B, 4, 128, 128),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_with_vectors_and_no_spills(case: str) -> None:
    recurrence = case.split()[0]
    entry = registry.backend(recurrence, "triton")
    kernels = launched(lambda: entry.function(**CASES[case]), 90)
    assert list(kernels) == [f"{recurrence}_forward_decode"]
    assert any(name in f"{recurrence}_forward_decode" for name in entry.kernels)
    (kernel,) = kernels.values()
    assert Usage.of(kernel.asm["cubin"], kernel.metadata.shared).spilled == 0
    wide = "v2.b64" if "complex" in case else "v4.b32"
    assert f"ld.global.{wide}" in kernel.asm["ptx"]
    assert f"st.global.{wide}" in kernel.asm["ptx"]
