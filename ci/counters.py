"""Hardware counters of every kernel of a few calls, by Nsight Compute: the causes of a kernel's waits.

    python ci/counters.py                             all cases
    python ci/counters.py --cases 'mamba*' --out FILE
    python ci/counters.py --dry-run                   prints the commands

Prints JSON (--out FILE writes it): a row for each launch of a kernel of ours, with its case. `stalls` are how
many warps wait for a reason at each instruction issued, the largest first. Caches are emptied before each
kernel, clocks are left alone. Exits 2 where there is no ncu, 3 where a case gave no counters.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import io
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from ssmperf import registry  # noqa: E402
from ssmperf.engine.tune import tables  # noqa: E402

METRICS = {
    "time_us": ("gpu__time_duration.sum", 1e-3),
    "memory_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "issued_a_cycle": ("smsp__issue_active.avg.per_cycle_active", 1),
    "special_functions_percent": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1),
    "warps_a_multiprocessor": ("sm__warps_active.avg.per_cycle_active", 1),
    "instructions": ("smsp__inst_executed.sum", 1),
    "registers": ("launch__registers_per_thread", 1),
}
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "wait",
)  # fmt: skip
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LIMIT_S = 120

Given = Mapping[str, Any]


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def scan(B: int, T: int, gate: torch.dtype, data: torch.dtype, *, time_last: bool = False) -> Given:
    C = 1536
    shape = (B, C, T) if time_last else (B, T, C)
    operands = {"log_a": -normal(*shape, dtype=gate).abs(), "b": normal(*shape, dtype=data)}
    return {key: x.transpose(1, 2) if time_last else x for key, x in operands.items()}


def selective(B: int, T: int, gate: str) -> Given:
    D, N = 2048, 16
    given: dict[str, Any] = {"x": normal(B, T, D), "k": normal(B, T, N) / 4, "q": normal(B, T, N)}
    given["delta"] = torch.nn.functional.softplus(normal(B, T, D, dtype=torch.float32) - 4)
    if gate == "exp":
        given["A"] = -torch.arange(1, N + 1, device="cuda").float().repeat(D, 1)
    return given | {"gate": gate}


def ratio(B: int, T: int, C: int) -> Given:
    log_w = -torch.rand(C, device="cuda") - 0.1
    return {"log_w": log_w, "k": normal(B, T, C), "v": normal(B, T, C), "bonus": torch.zeros_like(log_w)}


def attention(*, turned: bool) -> Given:
    B, T, H, D = 4, 4096, 16, 128
    given: dict[str, Any] = {name: normal(B, T, H, D) for name in "qkv"}
    given["log_a"] = torch.nn.functional.logsigmoid(normal(B, T, H, D, dtype=torch.float32)) / 16
    if turned:
        given["phase"] = normal(B, T, H, D, dtype=torch.float32)
    return given


FLOAT, HALF = torch.float32, torch.bfloat16
CASES: dict[str, tuple[str, Callable[[], Given]]] = {
    "scan half B8 T2048": ("scan/cuda", lambda: scan(8, 2048, HALF, HALF)),
    "scan half B8 T16384": ("scan/cuda", lambda: scan(8, 16384, HALF, HALF)),
    "scan half B1 T131072": ("scan/cuda", lambda: scan(1, 131072, HALF, HALF)),
    "scan float32 B1 T131072": ("scan/cuda", lambda: scan(1, 131072, FLOAT, FLOAT)),
    "time_last half B8 T2048": ("scan/triton", lambda: scan(8, 2048, HALF, HALF, time_last=True)),
    "time_last float32 B8 T2047": ("scan/triton", lambda: scan(8, 2047, FLOAT, FLOAT, time_last=True)),
    "mamba B8 T8192": ("selective_scan/triton", lambda: selective(8, 8192, "exp")),
    "mamba B1 T65536": ("selective_scan/triton", lambda: selective(1, 65536, "exp")),
    "longhorn B8 T8192": ("selective_scan/triton", lambda: selective(8, 8192, "implicit")),
    "rwkv4 B8 T8192": ("ratio_scan/triton", lambda: ratio(8, 8192, 2048)),
    "attention key": ("linear_attention/triton", lambda: attention(turned=False)),
    "attention complex": ("linear_attention/triton", lambda: attention(turned=True)),
    "attention complex, chunks": ("linear_attention/triton", lambda: attention(turned=True)),
}
CHANGES = {"attention complex, chunks": {"walk": 0}}  # fields of the backend's configurations


def run(name: str) -> None:
    """Forward and backward of a case, once."""
    backend, make = CASES[name]
    given = {
        key: x.requires_grad_() if isinstance(x, Tensor) and x.is_leaf else x for key, x in make().items()
    }
    leaves = [x for x in given.values() if isinstance(x, Tensor)]
    with tables.using(tables.changed(backend, CHANGES.get(name, {}))):
        outputs = registry.backend(*backend.split("/")).function(**given)
        torch.autograd.grad(outputs[0], leaves, torch.ones_like(outputs[0]), allow_unused=True)
    torch.cuda.synchronize()


def command(program: str, name: str) -> list[str]:
    wanted = [metric for metric, _ in METRICS.values()] + [STALL.format(reason) for reason in STALLS]
    return [
        program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--kernel-name", "regex:scan|^la_", "--metrics", ",".join(wanted),
        sys.executable, str(Path(__file__).resolve()), "--run", name,
    ]  # fmt: skip


def rows(output: str) -> list[dict[str, Any]]:
    """Read ncu's CSV, which has a row of units below the names."""
    text = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    table = list(csv.DictReader(io.StringIO(text)))
    return [counters(row) for row in table if row.get("ID")]


def counters(row: Mapping[str, str]) -> dict[str, Any]:
    def value(metric: str, scale: float) -> float:
        return float(f"{float(row[metric].replace(',', '')) * scale:.4g}")

    found: dict[str, Any] = {"kernel": row["Kernel Name"].partition("(")[0]}
    found |= {key: value(metric, scale) for key, (metric, scale) in METRICS.items()}
    stalls = {reason: value(STALL.format(reason), 1) for reason in STALLS if STALL.format(reason) in row}
    largest = sorted(stalls, key=lambda reason: -stalls[reason])[:5]
    return found | {"stalls": {reason: stalls[reason] for reason in largest}}


def examined(program: str, name: str) -> list[dict[str, Any]]:
    line = command(program, name)
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        found = rows(done.stdout)
    except (subprocess.TimeoutExpired, KeyError, ValueError) as problem:  # "n/a" is no number
        return [{"case": name, "failed": repr(problem), "command": shlex.join(line)}]
    if done.returncode != 0 or not found:
        return [{"case": name, "failed": (done.stdout + done.stderr)[-2000:], "command": shlex.join(line)}]
    return [{"case": name} | row for row in found]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="such as 'mamba*'")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the JSON")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--run", choices=CASES, metavar="CASE", help="run a case, without ncu")
    options = parser.parse_args(arguments)
    if options.run:
        run(options.run)
        return 0
    program = shutil.which("ncu")
    names = fnmatch.filter(CASES, options.cases)
    if not names:
        parser.error(f"no case is called {options.cases!r} (there are {', '.join(CASES)})")
    if options.dry_run:
        print(*(shlex.join(command(program or "ncu", name)) for name in names), sep="\n")
        return 0
    if program is None:
        parser.error("no ncu on PATH: install Nsight Compute")
    found = [row for name in names for row in examined(program, name)]
    head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    text = json.dumps(head | {"kernels": found}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 3 if any("failed" in row for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
