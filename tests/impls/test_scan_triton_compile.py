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
UNSPECIALISED = ("T", "tiles", "chunks", "launched")


def compiled(pass_, state, dtype, write):
    kernel, cut = KERNELS[pass_], function.tiles(pass_, state)
    is_complex = state == "complex"
    data, wide, gate = ("*i64", "*i64", "*fp32") if is_complex else (f"*{dtype}", "*fp32", "*fp32")
    phase = gate if is_complex else None
    types = dict.fromkeys(("b", "h", "g", "db"), data) | dict.fromkeys(("log_a", "da", "maps"), gate)
    types |= dict.fromkeys(("state", "final", "final_grad", "dstate"), wide)
    types |= dict.fromkeys(("phase", "dphase"), phase)
    constants = dict(
        A_CHANNEL=1, P_CHANNEL=int(is_complex), VARIES=True, COMPLEX=is_complex, WRITE=write, WHOLE=True,
        FLUSH=True, A_GRAD="elements", P_GRAD="elements" if is_complex else "none",
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
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": cut.warps})


def usage(binary):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(re.search(rf"\b{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL")}


pass_, state, dtype, write = sys.argv[1:]
kernel = compiled(pass_, state, dtype, write == "write")
found = usage(kernel.asm["cubin"])
assert found["STACK"] == found["LOCAL"] == 0, found
assert kernel.asm["ttgir"].count("ttg.convert_layout") == 0, "data move between threads"
assert kernel.metadata.shared <= 232_448, kernel.metadata.shared  # of a block on Hopper
"""

VARIANTS = [
    (pass_, state, dtype, "write")
    for pass_ in ("forward", "backward")
    for state, dtype in (("real", "fp32"), ("real", "bf16"), ("complex", "fp32"))
] + [("forward", "real", "fp32", "map"), ("backward", "real", "fp32", "map")]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
def test_compiles_for_hopper_without_spills(variant: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, *variant]
    outcome = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
