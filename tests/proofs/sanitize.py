"""Runs NVIDIA's compute-sanitizer over one small case per kernel, forward and backward.

    python tests/proofs/sanitize.py                       memcheck, racecheck and synccheck over all cases
    python tests/proofs/sanitize.py --tools memcheck --cases 'scan/cuda*'
    python tests/proofs/sanitize.py --dry-run             prints the commands

Prints a summary as JSON (--out FILE writes it): a row for each tool and case with the errors that the tool
found, seconds and the command. Exits 3 where there is any, or where a case crashed or took too long; 4 where
there is no compute-sanitizer. Needs a GPU; `--run CASE` runs a case alone, without one in Triton's
interpreter.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
from support.without_gpu.compiled import multiprocessors  # noqa: E402
from torch import Tensor  # noqa: E402

from ssmperf.suitekit import registry  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
USUAL = TOOLS[:3]  # memory that torch leaves uninitialised on purpose would fill initcheck's report
LIMIT_S = 150.0
JOBS = 6  # most of a run is Python's start and compilation
FEW, MANY = 1, 10_000  # multiprocessors: with many, time is cut between programs as well


@dataclass(frozen=True)
class Case:
    """A call of a backend: shapes of its operands, and how many multiprocessors it shall believe in."""

    backend: str
    name: str
    shapes: Mapping[str, tuple[int, ...]]
    processors: int
    options: Mapping[str, Any] = field(default_factory=dict)
    complex: bool = False
    dtype: torch.dtype = torch.float32
    decode: bool = False
    time_last: bool = False

    def __str__(self) -> str:
        return f"{self.backend} {self.name}"

    def run(self, device: str) -> None:
        """Forward, and backward unless it decodes.

        Raises:
            AssertionError: a result that is not finite.
        """
        recurrence, _, name = self.backend.partition("/")
        entry = registry.backend(recurrence, name)
        generator = torch.Generator().manual_seed(0)
        given = {}
        for key, shape in self.shapes.items():
            x = self.drawn(key, shape, generator)
            if self.time_last and len(shape) == 3:
                x = x.transpose(1, 2).contiguous().transpose(1, 2)
            given[key] = x.to(device).requires_grad_(not self.decode)
        with multiprocessors(f"ssmperf.impls.{recurrence}._{name}.", self.processors):
            results = list(entry.function(**given, **self.options))
            if not self.decode:
                results += torch.autograd.grad(
                    results, list(given.values()), [torch.ones_like(x) for x in results], allow_unused=True
                )
        assert all(torch.isfinite(x).all() for x in results if x is not None)

    def drawn(self, key: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        x = torch.randn(shape, generator=generator)
        if key.startswith("log_") or key == "A":
            return -x.abs()
        if key == "delta":
            return x.abs() / 10
        if key == "initial_state" and self.backend.startswith("ratio_scan"):
            return torch.stack([x[:, 0], x[:, 1].abs() + 0.1, x[:, 2]], 1)
        if self.complex and key in ("b", "initial_state"):
            return torch.complex(x, torch.randn(shape, generator=generator))
        return x.to(self.dtype) if key in ("b", "x", "k", "q", "v") else x


def scans() -> list[Case]:
    def case(backend: str, name: str, B: int, T: int, gate: tuple[int, ...], **more: Any) -> Case:
        C = gate[-1]
        shapes = {"log_a": gate, "b": (B, T, C), "initial_state": (B, C)}
        if more.get("complex"):
            shapes["phase"] = gate
        return Case(backend, name, shapes, MANY if "chain" in name else FEW, **more)

    found = []
    for backend in ("scan/triton", "scan/cuda"):
        found += [
            case(backend, "strand", 2, 77, (2, 77, 33)),
            case(backend, "const strand", 2, 77, (33,), dtype=torch.bfloat16),
            case(backend, "chain", 1, 397, (1, 397, 33), dtype=torch.bfloat16),
            case(backend, "const chain", 1, 397, (33,)),
            case(backend, "complex chain", 1, 397, (1, 397, 33), complex=True),
        ]
    found += [
        case("scan/triton", "complex strand", 2, 77, (2, 77, 33), complex=True),
        case("scan/triton", "time_last", 2, 177, (2, 177, 5), time_last=True),
        case("scan/triton", "decode", 3, 1, (3, 1, 33), decode=True),
    ]
    return found


def others() -> list[Case]:
    found = []
    for gate in ("exp", "implicit"):
        for name, B, T, D, N in (
            ("whole", 2, 77, 33, 5),
            ("spans", 1, 833, 17, 5),
            ("streamed", 2, 128, 64, 8),
            ("streamed spans", 1, 832, 64, 8),
            ("decode", 3, 1, 33, 5),
        ):
            shapes: dict[str, tuple[int, ...]] = {
                "x": (B, T, D),
                "delta": (B, T, D),
                "k": (B, T, N),
                "q": (B, T, N),
            }
            shapes |= {"initial_state": (B, D, N)} | ({"A": (D, N)} if gate == "exp" else {})
            processors = MANY if name.endswith("spans") else FEW
            options = {"gate": gate}
            found.append(
                Case(
                    "selective_scan/triton",
                    f"{gate} {name}",
                    shapes,
                    processors,
                    options,
                    decode=name == "decode",
                )
            )
    for name, B, T, C in (
        ("whole", 2, 77, 33),
        ("spans", 1, 397, 33),
        ("streamed", 2, 64, 32),
        ("decode", 3, 1, 33),
    ):
        shapes = {"log_w": (C,), "k": (B, T, C), "v": (B, T, C), "initial_state": (B, 3, C), "bonus": (C,)}
        processors = MANY if name == "spans" else FEW
        dtype = torch.bfloat16 if name == "streamed" else torch.float32
        found.append(
            Case("ratio_scan/triton", name, shapes, processors, dtype=dtype, decode=name == "decode")
        )
    keys = dict.fromkeys(("q", "k", "log_a"), (1, 77, 2, 9)) | {
        "v": (1, 77, 2, 7),
        "initial_state": (1, 2, 9, 7),
    }
    found.append(Case("linear_attention/triton", "key", keys, FEW))
    for name, extra in (("complex", {"phase": (1, 77, 2, 9)}), ("both", {"log_b": (1, 77, 2, 7)})):
        for dtype in (torch.float32, torch.bfloat16):
            label = f"{name} {str(dtype).removeprefix('torch.')}"
            found.append(Case("linear_attention/triton", label, keys | extra, FEW, dtype=dtype))
    bonus = keys | {"bonus": (2, 9)}
    for name, shapes in (("bonus", bonus), ("pre", keys)):
        found.append(
            Case("linear_attention/triton", name, shapes, FEW, {"read": "pre"}, dtype=torch.bfloat16)
        )
    walked = dict.fromkeys(("q", "k"), (1, 397, 2, 33)) | {"v": (1, 397, 2, 17)}
    for name, gate in (("padded", (1, 397, 2)), ("spans", (1, 397, 2, 33))):
        shapes = walked | {"log_a": gate, "initial_state": (1, 2, 33, 17)}
        processors = MANY if name == "spans" else FEW
        found.append(Case("linear_attention/triton", name, shapes, processors, dtype=torch.bfloat16))
        shapes |= {"initial_state": (3, 2, 33, 17)}
        options = {"cu_seqlens": torch.tensor([0, 100, 100, 397])}
        name += " packed"
        found.append(Case("linear_attention/triton", name, shapes, processors, options, dtype=torch.bfloat16))
    shapes = dict.fromkeys(("x", "delta"), (1, 833, 17)) | dict.fromkeys(("k", "q"), (1, 833, 5))
    shapes |= {"initial_state": (3, 17, 5), "A": (17, 5)}
    options = {"cu_seqlens": torch.tensor([0, 600, 600, 833])}
    found.append(Case("selective_scan/triton", "exp packed", shapes, MANY, options))
    return found


CASES = {str(case): case for case in (*scans(), *others())}


def sanitizer() -> str | None:
    """compute-sanitizer: on PATH, of pip's nvidia-cuda-sanitizer-api, or of a CUDA toolkit."""
    if found := shutil.which("compute-sanitizer"):
        return found
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    for folder, pattern in ((packages, "cu*/bin"), (Path("/usr/local"), "cuda*/bin")):
        if found := sorted(folder.glob(f"{pattern}/compute-sanitizer")):
            return str(found[-1])
    return None


def command(program: str, tool: str, case: str) -> list[str]:
    # torch probes what a device can do, and takes an error of the API for an answer.
    return [
        program, "--tool", tool, "--target-processes", "application-only", "--report-api-errors", "no",
        "--print-limit", "20", sys.executable, str(Path(__file__).resolve()), "--run", case,
    ]  # fmt: skip


def errors(output: str) -> int | None:
    """Read the count of the tool's last summary; None without one."""
    found = re.findall(
        r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output.replace("no errors", "0 errors")
    )
    return int(found[-1][0] or found[-1][1]) if found else None


def examined(program: str, tool: str, case: str, limit_s: float) -> dict[str, Any]:
    """A row of the summary."""
    line = command(program, tool, case)
    # Without its cache every tensor is an allocation of its own, so memcheck sees where one ends.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    row: dict[str, Any] = {"tool": tool, "case": case, "status": "ok", "errors": None}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        row["status"] = "timeout"
    else:
        output = done.stdout + done.stderr
        row["errors"] = errors(output)
        if row["errors"]:
            row["status"] = "errors"
        elif done.returncode != 0 or row["errors"] is None:
            row["status"] = "crash"
        if row["status"] != "ok":
            row["output"] = output[-4000:]
    return row | {"seconds": round(time.perf_counter() - start, 1), "command": shlex.join(line)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", default=",".join(USUAL), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="such as 'scan/cuda*'")
    parser.add_argument("--timeout", type=float, default=LIMIT_S, metavar="S", help="of a case under a tool")
    parser.add_argument("--jobs", type=int, default=JOBS, help="cases at once")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the summary")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--run", choices=CASES, metavar="CASE", help="run a case, without compute-sanitizer")
    options = parser.parse_args(arguments)
    if options.run:
        CASES[options.run].run("cuda" if torch.cuda.is_available() else "cpu")
        return 0

    tools = options.tools.split(",")
    cases = fnmatch.filter(CASES, options.cases)
    if unknown := set(tools) - set(TOOLS):
        parser.error(f"unknown tools: {', '.join(sorted(unknown))} (there are {', '.join(TOOLS)})")
    if not cases:
        parser.error(f"no case is called {options.cases!r} (there are {', '.join(CASES)})")
    program = sanitizer()
    if options.dry_run:
        for case in cases:
            for tool in tools:
                print(shlex.join(command(program or "compute-sanitizer", tool, case)))
        return 0
    if program is None:
        print(
            "no compute-sanitizer on PATH or in /usr/local/cuda*/bin: pip install nvidia-cuda-sanitizer-api",
            file=sys.stderr,
        )
        return 4

    def all_tools(case: str) -> list[dict[str, Any]]:
        return [examined(program, tool, case, options.timeout) for tool in tools]

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = [row for found in pool.map(all_tools, cases) for row in found]
    text = json.dumps({"program": program, "runs": rows}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    bad = [f"{row['tool']} {row['case']}: {row['status']}" for row in rows if row["status"] != "ok"]
    print("\n".join(bad) if bad else f"no errors in {len(rows)} runs", file=sys.stderr)
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
