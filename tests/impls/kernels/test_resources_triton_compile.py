"""Triton kernels, compiled without a GPU, need what the table says of registers, stack and memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.without_gpu import compiled_table
from support.without_gpu.compiled import SHARED_BYTES, Usage
from support.without_gpu.compiled_cases import ARCHS, CASES, FULL, TritonCase

# The main cases for one architecture, which have every kernel, and the first of each backend for the others:
# compiling all takes three minutes of two cores. `python ci/resources.py` compiles them all.
MAIN = [case for case in CASES if isinstance(case, TritonCase) and case.main]
FIRST = {case.backend: case for case in reversed(MAIN)}
SUBJECTS = [
    pytest.param(case, arch, id=f"{case.backend} {case.name} sm_{arch}")
    for case in MAIN
    for arch in ARCHS
    if case.on(arch) and (arch == FULL or case is FIRST[case.backend])
]


def moves_steps(kernel: Any) -> bool:
    """Whether a loop moves data between threads on their way into the arithmetic."""
    loop = kernel.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    return "ttg.convert_layout" in loop


def exchanges(kernel: Any) -> bool:
    """Whether threads exchange anything."""
    return kernel.metadata.shared > 0 or re.search(r"\bshfl\b", kernel.asm["ptx"]) is not None


# Laws for the kernels of a case whatever the numbers, by the beginning of its name.
LAWS = {
    r"scan/triton \S+ strand": moves_steps,
    r"ratio_scan/triton \S+ (?!streamed)": exchanges,
}


@pytest.mark.slow(
    but=(
        "* decode sm_90",
        "scan/triton * chain sm_90",
        "scan/triton * time_last sm_90",
        "ratio_scan/triton bf16 spans sm_90",
    )
)
@pytest.mark.parametrize(("case", "arch"), SUBJECTS)
def test_kernels_need_what_the_table_says(case: TritonCase, arch: int) -> None:
    if reason := case.missing():
        pytest.skip(reason)
    kernels = case.kernels(arch)
    found = {name: Usage.of_triton(kernel) for name, kernel in kernels.items()}
    assert kernels
    assert all(usage.shared <= SHARED_BYTES[arch] for usage in found.values()), found
    for name, law in LAWS.items():
        if re.match(name, f"{case.backend} {case.name}"):
            assert not any(law(kernel) for kernel in kernels.values()), law.__doc__
    differences = compiled_table.differences(compiled_table.read(), case, arch, found)
    assert not differences, "\n".join([*differences, f"update: {compiled_table.UPDATE}"])
