"""The triton scan's kernels compile for Hopper without a GPU, and keep everything in registers."""

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

registry.backend("scan", "triton")
from ssmperf.impls.scan._triton import function
from ssmperf.impls.scan._triton.backward import scan_backward
from ssmperf.impls.scan._triton.forward import scan_forward

KERNELS = {"forward": scan_forward, "backward": scan_backward}
UNSPECIALISED = ("T", "tiles")
DTYPES = {  # of data and of gates
    "float32": ("fp32", "fp32"),
    "mixed": ("bf16", "fp32"),
    "half": ("bf16", "bf16"),
    "complex": ("i64", "fp32"),
}


def compiled(pass_, widths, schedule):
    kernel, cut = KERNELS[pass_], function.tiles(pass_, widths, chained=schedule == "chain")
    is_complex = widths == "complex"
    data, gate = (f"*{dtype}" for dtype in DTYPES[widths])
    phase = gate if is_complex else None
    types = dict.fromkeys(("b", "h", "g", "db"), data) | dict.fromkeys(("log_a", "da"), gate)
    types |= dict.fromkeys(("state", "final", "final_grad", "dstate"), "*i64" if is_complex else "*fp32")
    types |= dict.fromkeys(("phase", "dphase"), phase) | {"words": "*i64" if schedule == "chain" else None}
    constants = dict(
        A_CHANNEL=1, P_CHANNEL=int(is_complex), VARIES=True, COMPLEX=is_complex, WHOLE=True, FLUSH=True,
        A_GRAD="elements", P_GRAD="elements" if is_complex else "none",
        R=cut.steps, RUNS=cut.runs, BC=cut.channels, VECTOR=cut.vector, STAGES=cut.stages,
    )
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        kind = types.get(name, "i32")
        if name in constants or kind is None:
            signature[name], constexprs[name] = "constexpr", constants.get(name)
        else:
            signature[name] = kind
            if name not in UNSPECIALISED:
                attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs, attributes)
    options = {"num_warps": cut.warps, "maxnreg": cut.registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def usage(binary):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(re.search(rf"\b{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL")}


kernel = compiled(*sys.argv[1:4])
found = usage(kernel.asm["cubin"])
assert found["LOCAL"] == 0 and found["STACK"] <= int(sys.argv[4]), found
loop = kernel.asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
assert sys.argv[3] == "chain" or "ttg.convert_layout" not in loop, "data move between threads"
assert kernel.metadata.shared <= 232_448, kernel.metadata.shared  # of a block on Hopper
"""

VARIANTS = [
    (pass_, widths, schedule)
    for pass_ in ("forward", "backward")
    for widths in ("float32", "mixed", "half", "complex")
    for schedule in ("strand", "chain")
]

# Bytes of a thread's stack. A cap of 128 registers lets four programs share a multiprocessor: measured on an
# H200, that is worth 12 to 15 % of a chained forward pass, which spends its time waiting for other tiles.
SPILLS = {("forward", widths, "chain"): 24 for widths in ("float32", "mixed", "half")}
SPILLS["forward", "complex", "chain"] = 16  # by Triton 3.7; 3.6 needs none


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_compiles_for_hopper_without_spills(variant: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, *variant, str(SPILLS.get(variant, 0))]
    outcome = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
