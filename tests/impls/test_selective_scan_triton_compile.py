"""The triton selective scan's kernels compile without a GPU, and keep everything in registers."""

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

registry.backend("selective_scan", "triton")
from ssmperf.impls.selective_scan._triton.backward import selective_scan_backward
from ssmperf.impls.selective_scan._triton.forward import selective_scan_forward
from ssmperf.impls.selective_scan._triton.spans import selective_scan_summary
from ssmperf.impls.selective_scan._triton.tiles import MARK, tiles

KERNELS = {
    "summary": selective_scan_summary, "reverse": selective_scan_summary,
    "forward": selective_scan_forward, "backward": selective_scan_backward,
}
UNSPECIALISED = ("T", "span", "rounds", "spans", "marks", "span_marks")
DATA = ("x", "v", "o", "g", "dx")
WORDS = ("k", "q", "w")


def compiled(pass_, gate, dtype, N, D, schedule, capability):
    kernel, wide = KERNELS[pass_], dtype == "fp32"
    cut = tiles({"reverse": "backward", "summary": "forward"}.get(pass_, pass_), N, wide=wide)
    types = dict.fromkeys(("state", "final", "saved", "final_grad", "scratch", "dkq", "dstate"), "*fp32")
    types |= dict.fromkeys(("delta", "ddelta"), "*fp32")
    types |= dict.fromkeys(DATA, "*" + dtype) | dict.fromkeys(WORDS, "*i64")
    types |= dict.fromkeys(("A", "dA"), "*fp32" if gate.startswith("exp") else None)
    many = schedule == "spans" or pass_ in ("summary", "reverse")
    types |= dict.fromkeys(("sums", "decays"), "*fp32" if many else None)
    per = 2 if wide else 4
    constants = dict(
        REVERSE=pass_ == "reverse", GATE=gate, D=D, N=N, WHOLE=schedule != "odd", EVEN=D % cut.block == 0,
        FLUSH=True, ROUNDS=MARK // cut.steps, R=cut.steps, BD=cut.block, G=cut.groups, M=cut.states,
        VECTOR=cut.channels,
    )
    for name in "KQW":
        constants |= {"KIND_" + name: dtype, "PER_" + name: per, "WORDS_" + name: -(-N // per)}
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
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def usage(binary):
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(re.search(rf"\b{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL")}


pass_, gate, dtype, N, D, schedule, capability, most = sys.argv[1:]
kernel = compiled(pass_, gate, dtype, int(N), int(D), schedule, int(capability))
found = usage(kernel.asm["cubin"])
print(*sys.argv[1:], found, "shared", kernel.metadata.shared)
assert found["LOCAL"] == 0 and found["STACK"] <= int(most), found
assert kernel.metadata.shared <= 101_376, kernel.metadata.shared  # of a block on the least of these devices
"""

PASSES = ("summary", "forward", "reverse", "backward")
VARIANTS = [
    *((pass_, gate, dtype, 16, 2048, "whole", 90) for pass_ in PASSES for gate in ("exp", "implicit")
      for dtype in ("fp32", "bf16", "fp16")),
    *((pass_, gate, "bf16", 16, 2048, "spans", 90) for pass_ in PASSES[1::2] for gate in ("exp", "implicit")),
    *((pass_, gate, "bf16", 16, 2001, "odd", 90) for pass_ in PASSES for gate in ("exp", "implicit")),
    *((pass_, "exp", dtype, N, 2048, "whole", 90) for pass_ in PASSES[1::2] for dtype in ("fp32", "bf16")
      for N in (8, 64, 128, 256)),
    *((pass_, gate, "bf16", 16, 2048, "whole", capability) for pass_ in PASSES[1::2]
      for gate in ("exp", "implicit") for capability in (80, 100)),
]  # fmt: skip

# Bytes of a thread's stack, where they are worth it.
SPILLS: dict[tuple[str | int, ...], int] = {}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant)))
def test_compiles_without_spills(variant: tuple[str | int, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, *map(str, variant), str(SPILLS.get(variant, 0))]
    outcome = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
