"""Host time per call of every fused kernel, in microseconds, beside an empty autograd function.

    python ci/host_time.py                          all cases, on the current GPU
    python ci/host_time.py --cases 'scan*' --out FILE
    TRITON_INTERPRET=1 python ci/host_time.py --device cpu --batches 1 --calls 1

Shapes are tiny, and the host waits for the device only between batches of calls, so that the queue of
launches never fills: the time is the host's alone. `drain` is the wait after a batch as a share of the batch;
where it is large, the device was the slower of the two and the row says nothing about the host.

The empty function is a `torch.autograd.Function` that allocates the same results, forward and backward, and
does nothing else. `above` is the time beyond it; `compute` and `compute above` are those of
`ssmperf.compute`. Numbers are medians over batches, and the batches of all subjects of a case alternate.

Exits 2 where the device is not there or no case is selected, 3 where a case failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import ssmperf  # noqa: E402
from ssmperf import registry  # noqa: E402

Given = Mapping[str, Any]
Call = Callable[[], object]
FLOAT = torch.float32
COLUMNS = ("call", "empty", "above", "compute", "compute above", "drain")


@dataclass(frozen=True)
class Place:
    """A device, and the half type that data have there: Triton's interpreter has no bfloat16 products."""

    device: str
    half: torch.dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, device=self.device).to(dtype or self.half)

    def gates(self, *shape: int) -> Tensor:
        """Logs of gates, in float32."""
        return -self.normal(*shape, dtype=FLOAT).abs()


def scan(place: Place, B: int, T: int, C: int, *, time_last: bool = False) -> Given:
    shape = (B, C, T) if time_last else (B, T, C)
    found = {"log_a": place.gates(*shape), "b": place.normal(*shape)}
    if T == 1:
        found["initial_state"] = place.normal(B, C, dtype=FLOAT)
    return {name: x.transpose(1, 2) if time_last else x for name, x in found.items()}


def selective(place: Place, B: int, T: int, gate: str = "exp") -> Given:
    D, N = 64, 16
    found: dict[str, Any] = {"x": place.normal(B, T, D), "delta": place.gates(B, T, D).exp()}
    found |= {"k": place.normal(B, T, N), "q": place.normal(B, T, N)}
    if gate == "exp":
        found["A"] = place.gates(D, N)
    if T == 1:
        found["initial_state"] = place.normal(B, D, N, dtype=FLOAT)
    return found | {"gate": gate}


def ratio(place: Place, B: int, T: int, C: int = 64) -> Given:
    found = {"log_w": place.gates(C), "k": place.normal(B, T, C), "v": place.normal(B, T, C)}
    if T == 1:
        found["initial_state"] = place.normal(B, 3, C, dtype=FLOAT)
    return found | {"bonus": place.normal(C, dtype=FLOAT)}


def attention(place: Place, B: int, T: int, gate: str) -> Given:
    H, K, V = 2, 64, 64
    found = {"q": place.normal(B, T, H, K), "k": place.normal(B, T, H, K), "v": place.normal(B, T, H, V)}
    return found | ({"log_a": place.gates(B, T, H, K)} if gate == "key" else {})


# By name: recurrence/backend, and the operands. A chain and spans need a sequence that is long for its width.
CASES: dict[str, tuple[str, Callable[[Place], Given]]] = {
    "scan triton": ("scan/triton", lambda place: scan(place, 2, 64, 64)),
    "scan triton chain": ("scan/triton", lambda place: scan(place, 1, 1024, 64)),
    "scan triton time_last": ("scan/triton", lambda place: scan(place, 2, 64, 64, time_last=True)),
    "scan triton decode": ("scan/triton", lambda place: scan(place, 2, 1, 64)),
    "scan cuda": ("scan/cuda", lambda place: scan(place, 2, 64, 64)),
    "scan cuda chain": ("scan/cuda", lambda place: scan(place, 1, 1024, 64)),
    "selective_scan exp": ("selective_scan/triton", lambda place: selective(place, 2, 64)),
    "selective_scan implicit": ("selective_scan/triton", lambda place: selective(place, 2, 64, "implicit")),
    "selective_scan decode": ("selective_scan/triton", lambda place: selective(place, 2, 1)),
    "ratio_scan": ("ratio_scan/triton", lambda place: ratio(place, 2, 64)),
    "ratio_scan spans": ("ratio_scan/triton", lambda place: ratio(place, 1, 1024)),
    "ratio_scan decode": ("ratio_scan/triton", lambda place: ratio(place, 2, 1)),
    "linear_attention key": ("linear_attention/triton", lambda place: attention(place, 1, 128, "key")),
    "linear_attention none": ("linear_attention/triton", lambda place: attention(place, 1, 128, "none")),
}


class Empty(torch.autograd.Function):
    """Allocates results like those of a call, and gradients like the operands."""

    @staticmethod
    def forward(ctx: Any, results: Sequence[Tensor], *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.operands = operands
        return tuple(torch.empty_like(each) for each in results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(torch.empty_like(each) for each in ctx.operands)


def subjects(backend: str, given: Given) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """The call of a backend, the empty function, and `ssmperf.compute`, by column."""
    recurrence, name = backend.split("/")
    function = registry.backend(recurrence, name).function
    tensors = [each for each in given.values() if isinstance(each, Tensor)]
    with torch.no_grad():
        results = [each.detach() for each in function(**given)]
    return {
        "call": lambda: function(**given),
        "empty": lambda: Empty.apply(results, *tensors),
        "compute": lambda: ssmperf.compute(recurrence, name, **given),
    }


def forward(compute: Callable[[], tuple[Tensor, ...]]) -> Call:
    def call() -> None:
        with torch.no_grad():
            compute()

    return call


def both(compute: Callable[[], tuple[Tensor, ...]], leaves: Sequence[Tensor]) -> Call:
    """A forward and a backward pass, with a gradient at each result."""
    cotangents = [torch.ones_like(each) for each in compute()]

    def call() -> None:
        torch.autograd.grad(compute(), leaves, cotangents)

    return call


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def times(calls: Mapping[str, Call], device: str, *, batches: int, count: int) -> dict[str, dict[str, float]]:
    """Microseconds per call and the share of waiting, by subject: medians over alternating batches."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    synchronize(device)
    gc.collect()
    gc.disable()
    try:
        for _ in range(batches):
            for name, call in calls.items():
                synchronize(device)
                start = time.perf_counter()
                for _ in range(count):
                    call()
                end = time.perf_counter()
                synchronize(device)
                found[name].append((end - start, time.perf_counter() - end))
    finally:
        gc.enable()
    return {
        name: {
            "us": statistics.median(host for host, _ in pairs) / count * 1e6,
            "fastest_us": min(host for host, _ in pairs) / count * 1e6,
            "drain": statistics.median(wait / host for host, wait in pairs),
        }
        for name, pairs in found.items()
    }


def measured(name: str, place: Place, *, batches: int, count: int) -> list[dict[str, Any]]:
    """The rows of a case: forward, and forward and backward unless it decodes."""
    backend, make = CASES[name]
    rows = []
    for pass_ in ("forward",) if "decode" in name else ("forward", "both"):
        torch.manual_seed(0)
        given = make(place)
        leaves = [each for each in given.values() if isinstance(each, Tensor)]
        for leaf in leaves:
            leaf.requires_grad_(pass_ == "both")
        made = subjects(backend, given)
        calls = {
            key: forward(each) if pass_ == "forward" else both(each, leaves) for key, each in made.items()
        }
        rows.append({"case": name, "backend": backend, "pass": pass_} | row(times(
            calls, place.device, batches=batches, count=count
        )))  # fmt: skip
    return rows


def row(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The columns of a row from the times of the subjects."""
    us = {name: each["us"] for name, each in found.items()}
    above = {"above": us["call"] - us["empty"], "compute above": us["compute"] - us["empty"]}
    fastest = {f"{name} fastest": each["fastest_us"] for name, each in found.items()}
    drain = {"drain": found["call"]["drain"]}
    return {name: round(x, 3) for name, x in (us | above | drain | fastest).items()}


def attempted(name: str, place: Place, *, batches: int, count: int) -> list[dict[str, Any]]:
    """The rows of a case, or one that says why there are none."""
    backend = CASES[name][0]
    head = {"case": name, "backend": backend}
    entry = registry.backend(*backend.split("/"))
    if reason := entry.missing(place.device.partition(":")[0]):
        return [head | {"skipped": reason}]
    try:
        return measured(name, place, batches=batches, count=count)
    except (RuntimeError, ValueError, ssmperf.SsmperfError) as problem:
        return [head | {"failed": repr(problem)}]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'case':26}{'pass':9}" + "".join(f"{column:>15}" for column in COLUMNS)]
    for each in rows:
        if reason := each.get("failed") or each.get("skipped"):
            lines.append(f"{each['case']:26}{reason}")
        else:
            cells = "".join(f"{each[column]:15.2f}" for column in COLUMNS)
            lines.append(f"{each['case']:26}{each['pass']:9}{cells}")
    return "\n".join(lines)


def environment(device: str) -> dict[str, Any]:
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = None
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor()
    return {
        "device": name, "host": platform.machine(), "python": platform.python_version(),
        "torch": torch.__version__, "triton": version,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="such as 'scan*'")
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1, or cpu for a trial in the interpreter"
    )
    parser.add_argument("--batches", type=int, default=40, help="batches per subject")
    parser.add_argument("--calls", type=int, default=50, help="calls per batch")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the JSON")
    options = parser.parse_args(arguments)
    names = fnmatch.filter(CASES, options.cases)
    if not names:
        parser.error(f"no case is called {options.cases!r} (there are {', '.join(CASES)})")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    place = Place(options.device, torch.bfloat16 if options.device.startswith("cuda") else FLOAT)
    rows = [
        each
        for name in names
        for each in attempted(name, place, batches=options.batches, count=options.calls)
    ]
    print(table(rows))
    if options.out:
        text = json.dumps(environment(options.device) | {"rows": rows}, indent=1)
        options.out.write_text(text + "\n")
    return 3 if any("failed" in each for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
