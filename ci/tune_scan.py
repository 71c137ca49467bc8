"""Times the `triton` backend of `scan` on a GPU: its shipped tiles, and candidates.

    python ci/tune_scan.py --steps check,times,sweep --json scan.jsonl

Compiling takes most of a sweep; with `--steps compile --widths half`, say, a process does a part of it ahead.

Fractions are of the copy bandwidth measured in the same run, over the least bytes: forward reads gates and b
and writes h; backward reads gates, h and dh and writes the two gradients.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from ssmperf import registry

SCAN = registry.backend("scan", "triton").function
DEFINITION = registry.recurrence("scan").definition

from ssmperf.impls.scan._triton import function, tiles  # noqa: E402

SHAPES = [(8, 2048, 1536), (8, 16384, 1536), (1, 131072, 1536), (1, 1048576, 1536)]
SWEPT = {"chain": [(1, 131072, 1536)], "strand": [(8, 16384, 1536), (8, 2048, 1536)]}
COMPILED = {"chain": [(1, 1024, 1536)], "strand": [(8, 256, 1536)]}
TABLES = {"strand": tiles.STRAND, "chain": tiles.CHAIN}
DTYPES = {  # of gates and of data
    "float32": (torch.float32, torch.float32),
    "mixed": (torch.float32, torch.bfloat16),
    "half": (torch.bfloat16, torch.bfloat16),
    "complex": (torch.float32, torch.complex64),
}
# steps, runs, channels, vector, warps, stages(, registers)
CANDIDATES: dict[tuple[str, str, str], list[tuple[int, ...]]] = {
    ("chain", "forward", "real"): [
        (8, 16, 32, 4, 4, 1, 168), (8, 16, 32, 4, 4, 1, 128), (4, 16, 32, 4, 4, 1, 128),
        (8, 32, 32, 4, 8, 1, 128), (8, 16, 64, 4, 8, 1, 128),
    ],
    ("chain", "backward", "real"): [
        (8, 16, 32, 4, 4, 1, 168), (8, 16, 32, 4, 4, 1, 128), (4, 16, 32, 4, 4, 1, 128),
        (4, 16, 32, 4, 4, 1, 96), (4, 32, 32, 4, 8, 1, 128),
    ],
    ("chain", "forward", "complex"): [
        (8, 8, 32, 2, 4, 1, 168), (8, 8, 32, 2, 4, 1, 128), (4, 8, 32, 2, 4, 1, 128),
        (8, 16, 32, 2, 8, 1, 128),
    ],
    ("chain", "backward", "complex"): [
        (8, 8, 32, 2, 4, 1, 168), (4, 8, 32, 2, 4, 1, 128), (4, 16, 32, 2, 8, 1, 128),
    ],
    ("strand", "forward", "float32"): [
        (8, 4, 32, 4, 1, 3), (8, 4, 32, 4, 1, 4), (8, 4, 32, 4, 1, 2), (8, 2, 64, 4, 1, 3),
        (4, 4, 32, 4, 1, 4), (8, 8, 64, 8, 2, 3),
    ],
    ("strand", "forward", "mixed"): [
        (8, 8, 32, 4, 2, 3), (8, 8, 32, 4, 2, 2), (8, 4, 64, 8, 1, 3), (8, 4, 64, 8, 1, 2),
        (8, 8, 32, 8, 1, 2), (8, 8, 64, 8, 2, 3), (16, 8, 32, 4, 2, 2), (4, 8, 32, 8, 1, 4),
    ],
    ("strand", "forward", "half"): [
        (8, 8, 32, 8, 1, 3), (8, 8, 32, 8, 1, 2), (8, 8, 32, 8, 1, 4), (8, 4, 64, 8, 1, 3),
        (8, 8, 64, 8, 2, 3), (8, 16, 32, 8, 2, 3), (4, 8, 32, 8, 1, 4),
    ],
    ("strand", "forward", "complex"): [
        (8, 8, 32, 2, 4, 3), (8, 4, 32, 2, 2, 3), (8, 2, 32, 2, 1, 3), (4, 4, 32, 2, 2, 4),
        (4, 8, 32, 2, 4, 3),
    ],
    ("strand", "backward", "float32"): [
        (8, 8, 64, 8, 2, 2), (8, 4, 64, 8, 1, 2), (8, 4, 32, 4, 1, 2), (16, 4, 32, 4, 1, 2),
        (4, 8, 64, 8, 2, 3), (4, 8, 32, 4, 2, 3),
    ],
    ("strand", "backward", "mixed"): [
        (16, 4, 32, 4, 1, 2), (8, 4, 32, 4, 1, 2), (8, 4, 32, 4, 1, 3), (8, 4, 64, 8, 1, 2),
        (4, 8, 64, 8, 2, 3), (4, 8, 32, 4, 2, 4), (16, 4, 32, 4, 1, 3),
    ],
    ("strand", "backward", "half"): [
        (4, 16, 64, 8, 4, 3), (4, 8, 64, 8, 2, 3), (4, 4, 64, 8, 1, 3), (4, 8, 32, 8, 1, 3),
        (4, 8, 64, 8, 2, 4), (8, 4, 64, 8, 1, 2), (8, 4, 32, 4, 1, 3),
    ],
    ("strand", "backward", "complex"): [
        (4, 8, 32, 2, 4, 2), (4, 4, 32, 2, 2, 2), (4, 4, 32, 2, 2, 3), (8, 4, 32, 2, 2, 2),
        (4, 8, 32, 2, 4, 3),
    ],
}  # fmt: skip


def bench(call: Callable[[], Any]) -> float:
    """Median milliseconds."""
    return float(triton.testing.do_bench(call, warmup=20, rep=60, return_mode="median"))


def operands(widths: str, B: int, T: int, C: int) -> list[Tensor]:
    """log_a, b and, where they are complex, phase."""
    gate, data = DTYPES[widths]
    log_a = torch.nn.functional.logsigmoid(torch.randn(B, T, C, device="cuda")).div_(16).to(gate)
    drawn = [log_a, torch.randn(B, T, C, device="cuda", dtype=data)]
    return [*drawn, torch.randn(B, T, C, device="cuda")] if data.is_complex else drawn


def scan(compute: Callable[..., Any], leaves: list[Tensor]) -> tuple[Tensor, Tensor]:
    log_a, b, *phase = leaves
    return compute(log_a, b, phase=phase[0] if phase else None)


def outcome(compute: Callable[..., Any], given: list[Tensor], *, double: bool = False) -> list[Tensor]:
    """h, h_T and the gradients, under output gradients that are the same in every call."""
    torch.manual_seed(7)
    leaves = []
    for x in given:
        wide = torch.complex128 if x.is_complex() else torch.float64
        leaves.append((x.to(wide) if double else x.detach()).requires_grad_())
    h, final = scan(compute, leaves)
    low = torch.complex64 if h.is_complex() else torch.float32
    weights = [torch.randn(x.shape, device=x.device, dtype=low) for x in (h, final)]
    weights = [weights[0].to(given[1].dtype).to(h.dtype), weights[1].to(final.dtype)]
    return [h.detach(), final.detach(), *torch.autograd.grad([h, final], leaves, weights)]


def distance(got: list[Tensor], want: list[Tensor]) -> list[float]:
    return [((x.to(y.dtype) - y).norm() / y.norm()).item() for x, y in zip(got, want, strict=True)]


def check(widths: str) -> None:
    """Relative errors of h, h_T and the gradients; of a long chain its bits and its distance to strands."""
    for shape in [(2, 1037, 96), (1, 4099, 64)]:
        given = operands(widths, *shape)
        errors = distance(outcome(SCAN, given), outcome(DEFINITION, given, double=True))
        print(f"{widths:8} {shape!s:18}", *(f"{error:.1e}" for error in errors), flush=True)
    given = operands(widths, 1, 131072, 1536)
    first = outcome(SCAN, given)
    same = all(torch.equal(x, y) for _ in range(10) for x, y in zip(first, outcome(SCAN, given), strict=True))
    enough, function.ENOUGH = function.ENOUGH, 0
    errors = distance(first, outcome(SCAN, given))
    function.ENOUGH = enough
    print(
        f"{widths:8} chain against strands",
        *(f"{error:.1e}" for error in errors),
        "same bits:",
        same,
        flush=True,
    )


def calls(given: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """What is timed of each pass."""
    leaves = [x.requires_grad_() for x in given]
    h, _ = scan(SCAN, leaves)
    g = torch.randn_like(h)

    def forward() -> None:
        with torch.no_grad():
            scan(SCAN, leaves)

    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad([h], leaves, [g], retain_graph=True),
        "forward_backward": lambda: torch.autograd.grad([scan(SCAN, leaves)[0]], leaves, [g]),
    }


def least_bytes(given: list[Tensor], pass_: str) -> int:
    log_a, b, *phase = (x.numel() * x.element_size() for x in given)
    gates = log_a + sum(phase)
    forward, backward = gates + 2 * b, 2 * gates + 3 * b
    return {"forward": forward, "backward": backward, "forward_backward": forward + backward}[pass_]


class Results:
    """Prints each time, and appends it to a file."""

    def __init__(self, path: Path | None, version: str, copy: float) -> None:
        self.path, self.version, self.copy = path, version, copy

    def add(self, widths: str, given: list[Tensor], pass_: str, ms: float, config: Any) -> None:
        fraction = least_bytes(given, pass_) / ms / 1e6 / self.copy
        gate, data = (str(x.dtype).removeprefix("torch.") for x in given[:2])
        B, T, C = given[1].shape
        numbers = list(asdict(config).values()) if config else None
        row = {"version": self.version, "shape": {"B": B, "T": T, "C": C}, "dtype": data, "gate_dtype": gate}
        row |= {"pass": pass_, "config": numbers, "ms": round(ms, 4), "fraction": round(fraction, 4)}
        row |= {"copy_gb_s": round(self.copy), "device": torch.cuda.get_device_name()}
        row |= {"torch": torch.__version__, "triton": triton.__version__}
        print(f"{widths:8} {(B, T, C)!s:18} {pass_:16} {ms:8.4f} ms {fraction:6.1%}  {numbers}", flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def time_shipped(widths: str, shape: tuple[int, int, int], results: Results) -> None:
    given = operands(widths, *shape)
    for pass_, call in calls(given).items():
        plan = (
            None if pass_ == "forward_backward" else function.Plan.of(pass_, given[1], given[0], *given[2:])
        )
        results.add(widths, given, pass_, bench(call), plan and plan.cut)


def sweep(widths: str, schedule: str, results: Results | None) -> Iterator[None]:
    """Times one candidate a step on all shapes of a schedule, or only compiles it."""
    prepared = []
    for shape in (SWEPT if results else COMPILED)[schedule]:
        given = operands(widths, *shape)
        prepared.append((given, calls(given)))
    table = TABLES[schedule]
    kind = widths if widths == "complex" or schedule == "strand" else "real"
    for pass_ in ("forward", "backward"):
        shipped = table[pass_, widths]
        for numbers in CANDIDATES[schedule, pass_, kind]:
            table[pass_, widths] = tiles.Tiles(*numbers)
            for given, named in prepared:
                try:
                    if results:
                        results.add(widths, given, pass_, bench(named[pass_]), table[pass_, widths])
                    else:
                        named[pass_]()
                except (RuntimeError, triton.runtime.errors.TritonError) as error:
                    print(widths, pass_, numbers, type(error).__name__, str(error)[:200], flush=True)
            table[pass_, widths] = shipped
            yield


def copy_bandwidth() -> float:
    """GB/s, read plus written."""
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() * 4 / bench(lambda: y.copy_(x)) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", default="check,times", help="of compile, check, times, sweep")
    parser.add_argument("--widths", default=",".join(DTYPES))
    parser.add_argument("--schedules", default="chain,strand", help="without chain, only strands are used")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no candidate after so long")
    parser.add_argument("--version", default="2", help="how the rows call what they measure")
    parser.add_argument("--json", type=Path, help="append one JSON object a line to this file")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    steps, names, schedules = (x.split(",") for x in (options.steps, options.widths, options.schedules))
    if "chain" not in schedules:
        function.ENOUGH = 0

    if "compile" in steps:
        for schedule in schedules:
            for widths in names:
                list(sweep(widths, schedule, None))
    if "check" in steps:
        for widths in names:
            check(widths)
    if "times" not in steps and "sweep" not in steps:
        return
    results = Results(options.json, options.version, copy_bandwidth())
    print(
        torch.cuda.get_device_name(), torch.__version__, triton.__version__, f"copy {results.copy:.0f} GB/s"
    )
    if "times" in steps:
        for shape in SHAPES:
            for widths in names:
                if widths != "complex" or shape[1] < 1 << 20:
                    time_shipped(widths, shape, results)
    for schedule in schedules if "sweep" in steps else ():
        for widths in names:
            for _ in sweep(widths, schedule, results):
                if time.monotonic() > end:
                    print(f"out of time in the sweep of {schedule} {widths}")
                    return


if __name__ == "__main__":
    main()
