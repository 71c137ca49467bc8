"""The triton ratio scan's kernels compile without a GPU, and a thread keeps a tile in its registers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

PROGRAM = r"""
import re, subprocess, sys, tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ssmperf import registry

registry.backend("ratio_scan", "triton")
from ssmperf.impls.ratio_scan._triton import function
from ssmperf.impls.ratio_scan._triton.backward import ratio_scan_backward
from ssmperf.impls.ratio_scan._triton.forward import ratio_scan_forward

KERNELS = {"forward": ratio_scan_forward, "backward": ratio_scan_backward}
DATA = ("k", "v", "y", "dy", "dk", "dv")
ABSENT = {
    "no_bonus": {"bonus", "du"},
    "bonus": set(),
    "odd": set(),
    "summary": {"y", "marks", "entry", "dk", "dv", "dw", "du", "end"},
}


def compiled(pass_, dtype, variant, capability):
    kernel, itemsize = KERNELS[pass_], {"fp32": 4, "bf16": 2}[dtype]
    cut = function.tiles(pass_, itemsize)
    constants = dict(
        C=2000 if variant == "odd" else 2048, R=cut.steps, BC=cut.channels,
        MARK=function.tiles("backward", itemsize).steps, WHOLE=variant != "odd", SUMMARY=variant == "summary",
        FLUSH=True,
    )
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        absent = name in ABSENT[variant] and not (pass_ == "backward" and name == "marks")
        if name in constants or absent:
            signature[name], constexprs[name] = "constexpr", constants.get(name)
        elif name in ("T", "tiles", "w_batch"):
            signature[name] = "i32"
        else:
            signature[name] = f"*{dtype}" if name in DATA else "*fp32"
            if name not in DATA:
                attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs, attributes)
    options = {"num_warps": cut.warps}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def tool(name, binary):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        command = [str(program), name, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


pass_, dtype, variant, capability = *sys.argv[1:4], int(sys.argv[4])
kernel = compiled(pass_, dtype, variant, capability)
found = {key: int(re.search(rf"\b{key}:(\d+)", tool("--dump-resource-usage", kernel.asm["cubin"]))[1])
         for key in ("REG", "STACK", "LOCAL")}
print(found)
assert found["LOCAL"] == 0 and found["STACK"] <= int(sys.argv[5]), found
assert kernel.metadata.shared == 0, "steps move through shared memory"
assert "SHFL" not in tool("--dump-sass", kernel.asm["cubin"]), "steps move between threads"
"""

VARIANTS = [
    (pass_, dtype, variant, capability)
    for pass_ in ("forward", "backward")
    for dtype in ("fp32", "bf16")
    for variant in ("bonus", "no_bonus", "odd", "summary")
    for capability in ("80", "90", "100")
    if capability == "90" or variant == "bonus"
]
SPILLS: dict[tuple[str, ...], int] = {}  # bytes of a thread's stack, with the reason


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_compiles_without_spills_and_without_exchange(variant: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, *variant, str(SPILLS.get(variant, 0))]
    outcome = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
