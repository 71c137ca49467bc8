"""Time linear attention under gates that are mild, or strong in some heads, on a GPU.

    python ci/wide_times.py OUT.jsonl

Strong decay makes chunks wide (`impls/linear_attention/_triton/walk.py`): in no head, in one chunk of one
head, in two heads of each sequence, or in all. Times are medians of replays of a CUDA graph with a cold L2:
forward without gradients, and forward with backward; bfloat16, gates in float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssmperf import registry

SHAPES = (  # gate, B, T, H, K, V
    ("key", 4, 4096, 16, 128, 128),
    ("scalar", 4, 4096, 16, 128, 128),
    ("scalar", 4, 4096, 32, 64, 64),
    ("scalar", 8, 2048, 32, 128, 64),
    ("scalar", 1, 65536, 16, 128, 128),
    ("scalar", 4, 4096, 16, 128, 129),
    ("key", 2, 1000, 3, 80, 80),
)
WIDE = ("none", "one", "few", "all")
MILD, STRONG, CHUNK = 0.1, -4.0, 64
REPEATS, L2_BYTES = 15, 1 << 28


def main() -> None:
    """Time all shapes, and write a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    function = registry.backend("linear_attention", "triton").function
    with out.open("w") as file:
        for gate, *shape in SHAPES:
            for wide in WIDE:
                operands = drawn(gate, *shape, wide=wide)
                row = {"gate": gate, "shape": shape, "wide": wide, **times(function, operands)}
                print(json.dumps(row), file=file, flush=True)
                print(json.dumps(row), flush=True)


def drawn(gate: str, B: int, T: int, H: int, K: int, V: int, *, wide: str) -> dict[str, Tensor]:
    """Draw operands whose gates are mild but for what is wide."""
    generator = torch.Generator("cuda").manual_seed(0)
    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16, generator=generator)
    q, k, v = normal(B, T, H, K) * K**-0.5, normal(B, T, H, K) * K**-0.5, normal(B, T, H, V)
    gates = (B, T, H, K) if gate == "key" else (B, T, H)
    log_a = -MILD * torch.rand(gates, device="cuda", generator=generator)
    if wide == "one":
        log_a[0, T // 2 : T // 2 + CHUNK, 0] = STRONG
    elif wide == "few":
        log_a[:, :, :2] = STRONG
    elif wide == "all":
        log_a[:] = STRONG
    return {"q": q, "k": k, "v": v, "log_a": log_a}


def times(function: Callable[..., Any], operands: dict[str, Tensor]) -> dict[str, float]:
    """Time a forward call without gradients, and one with its backward pass."""
    with torch.no_grad():
        forward = replayed_us(lambda: function(**operands))
    leaves = {name: value.detach().requires_grad_() for name, value in operands.items()}
    incoming = torch.randn_like(operands["v"])
    both = replayed_us(lambda: torch.autograd.grad(function(**leaves)[0], list(leaves.values()), incoming))
    return {"forward_us": round(forward, 1), "both_us": round(both, 1)}


def replayed_us(call: Callable[[], Any]) -> float:
    """Capture a call as a CUDA graph, and take the median of its replays, in microseconds."""
    beside, current = torch.cuda.Stream(), torch.cuda.current_stream()
    beside.wait_stream(current)
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    current.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    cold, found = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda"), list[float]()
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cold.zero_()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return statistics.median(found)


if __name__ == "__main__":
    main()
