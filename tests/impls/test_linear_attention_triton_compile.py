"""The launches of linear_attention's Triton backend compile for Hopper without spilling a register.

In a fresh process that doesn't interpret: what a forward and a backward call would launch is recorded on CPU
tensors and compiled ahead of time, which needs no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
import json, re, subprocess, sys, tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from ssmperf import registry

K, V, dtype, gate, dump = sys.argv[1:]
K, V, dtype = int(K), int(V), getattr(torch, dtype)
registry.recurrence("linear_attention")
from ssmperf.impls.linear_attention._triton.function import LinearAttention

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
launches = []


def record(self, *args, grid, warmup, **named):
    options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
    bound = {**dict(zip(self.arg_names, args)), **named}
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(self.params):
        value = bound[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32"
    launches.append((self, signature, constants, attributes, options))


JITFunction.run = record
B, T, H = 1, 128, 2
q, k = (torch.zeros(B, T, H, K, dtype=dtype, requires_grad=True) for _ in "qk")
v = torch.zeros(B, T, H, V, dtype=dtype, requires_grad=True)
width = {"none": 0, "scalar": 1, "key": K}[gate]
log_a = torch.zeros(B, T, H, width, requires_grad=True) if width else None
o, state = LinearAttention.apply(q, k, v, log_a, torch.zeros(B, H, K, V, requires_grad=True), None)
(o.sum() + state.sum()).backward()

for kernel, signature, constants, attributes, options in launches:
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [dump, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True)
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage.stdout))
    print(json.dumps({"kernel": kernel.fn.__name__, "shared": compiled.metadata.shared,
                      **{name: int(value) for name, value in fields.items()}}))
"""


def cuobjdump() -> str:
    triton = pytest.importorskip("triton")
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.exists():
        pytest.skip("triton brings no cuobjdump")
    return str(path)


@pytest.mark.parametrize(
    ("K", "V", "dtype", "gate"),
    [
        (128, 128, "bfloat16", "key"),
        (128, 64, "bfloat16", "scalar"),
        (64, 64, "float16", "none"),
        (128, 128, "float32", "key"),
        (64, 64, "float32", "scalar"),
    ],
)
def test_launches_compile_for_hopper_without_spills(K: int, V: int, dtype: str, gate: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, str(K), str(V), dtype, gate, cuobjdump()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    launched = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"la_increment", "la_carry", "la_output", "la_grad_qk"} <= {entry["kernel"] for entry in launched}
    for entry in launched:
        assert entry["STACK"] == entry["LOCAL"] == 0, entry
        assert entry["shared"] <= 227 * 1024, entry
