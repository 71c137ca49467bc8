"""Undo each of the last ten fixes of fused kernels, alone in a copy of the tree; `ssmperf fuzz` finds eight.

    python tests/proofs/undone.py [COMMIT...] [--minutes 9] [--seed 7] [--interpreted] [--out FILE]

Needs a GPU, for most of these faults are compilers' or half precision's; with --interpreted, kernels run in
Triton's interpreter. One fix per eight cores is undone at the same time, on the GPUs in turn, so a timeout
may be a busy machine's. A run of fuzz ends with its minutes, found or not.

Prints a line per fix, with the command that repeats the smallest configuration; --out writes them as JSON.
Exits 1 if fewer than eight are found, or one of up to eight that are named is not; 2 for an unknown commit;
4 without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from proofs.mutations import Missed, Mutation, called, tree  # noqa: E402

LEAST = 8
CORES = 8  # of each run: kernels of a hundred classes are compiled
FOUND, RIGHT = 3, 0  # exit codes of fuzz
ATTENTION, DELTA = "impls/linear_attention", "impls/delta_rule"

FIXES = (
    Mutation(
        "f1e1ce6e",
        f"{DELTA}/_triton/parts.py",
        "coarse = tl.floor(log_gate * (1.0 / GRID)) * GRID",
        "coarse = log_gate",
        "delta_rule",
        "triton",
    ),
    Mutation(
        "ed30a62c",
        f"{DELTA}/_cuda/device.cuh",
        "if constexpr (COUNT > BEGUN)",
        "if constexpr (COUNT > 56)",
        "delta_rule",
        "cuda",
    ),
    Mutation(
        "006fc152",
        f"{ATTENTION}/triton.py",
        "(each if each.is_complex() else each.to(real) for each in (x.q, x.k, x.v))",
        "(x.q, x.k, x.v)",
        "linear_attention",
        "triton",
    ),
    Mutation(
        "30c8affa",
        f"{ATTENTION}/triton.py",
        "widened(_contiguous(log_b, log_b.dtype), more)",
        "widened(_contiguous(log_b, log_b.dtype), V + more - log_b.shape[-1])",
        "linear_attention",
        "triton",
    ),
    Mutation(
        "d4e20c01",
        f"{ATTENTION}/_triton/anchors.py",
        "return tl.minimum(LIMIT, LIMIT * 0.1 * steps)",
        "return LIMIT + 0.0 * steps",
        "linear_attention",
        "triton",
    ),
    Mutation(
        "f4053277",
        f"{ATTENTION}/_triton/steps.py",
        "cells = CELLS if begun or BX != 16 else CELLS // 4",
        "cells = CELLS",
        "linear_attention",
        "triton",
    ),
    Mutation(
        "9f57fb67",
        f"{DELTA}/triton.py",
        "if q.shape[-1] < NARROW:",
        "if q.shape[-1] < 0:",
        "delta_rule",
        "triton",
    ),
    Mutation(
        "545a7005",
        f"{ATTENTION}/triton.py",
        "V, more = v.shape[-1], whole_width(v) - v.shape[-1]",
        "V, more = v.shape[-1], 0",
        "linear_attention",
        "triton",
    ),
    Mutation(
        "745abd70",
        f"{DELTA}/_triton/carry.py",
        "max(1, 2 * processors // max(1, programs))",
        "max(1, 2 * processors // programs)",
        "delta_rule",
        "triton",
    ),
    Mutation(
        "9c5c1f62",
        f"{DELTA}/cuda.py",
        "contiguous(cu_seqlens.to(torch.int64))",
        "contiguous(cu_seqlens)",
        "delta_rule",
        "cuda",
    ),
)


def fuzzed(fix: Mutation, device: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Fuzz the backend of a fix without it. Gives the first of the faults that are found, with their number.

    Raises:
        Missed: no fault was found, or fuzz did not end as it should.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree(Path(folder))
        (Path(folder) / fix.file).write_text(fix.planted(ROOT))
        command = [
            *("-c", "from ssmperf.shell.cli import main; main()"),
            *("fuzz", fix.models, "--backends", fix.backends, "--device", device, "--json"),
            *("--minutes", str(chosen.minutes), "--seed", str(chosen.seed), "--out", f"{folder}/run"),
        ]
        own = {"PYTHONDONTWRITEBYTECODE": "", "XDG_CACHE_HOME": folder}
        own |= {"TRITON_INTERPRET": "1"} if chosen.interpreted else {}
        done = called(command, Path(folder), own)
    if done.returncode not in (FOUND, RIGHT):
        raise Missed(f"fuzz ended with exit code {done.returncode}: {done.stderr[-400:]}")
    result = json.loads(done.stdout)
    if not result["faults"]:
        raise Missed(f"{result['examples']:,} examples of {result['classes']} classes show no fault")
    first = result["faults"][0]
    kept = {key: first[key] for key in ("what", "explanation", "status", "reason", "command")}
    return {"fix": fix.name, "examples": result["examples"], "faults": len(result["faults"]), **kept}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--interpreted", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.commits) - {fix.name for fix in FIXES}:
        parser.error(f"no such fix: {', '.join(sorted(unknown))} (known: {', '.join(f.name for f in FIXES)})")
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = ["cpu"] if chosen.interpreted else gpus
    if not devices:
        print("needs a CUDA device, or --interpreted")
        return 4
    fixes = [fix for fix in FIXES if not chosen.commits or fix.name in chosen.commits]
    cores = os.cpu_count() or 1
    rows = []
    with ThreadPoolExecutor(max(1, min(len(fixes), cores // CORES))) as threads:
        places = itertools.cycle(devices)
        running = [(fix, threads.submit(fuzzed, fix, next(places), chosen)) for fix in fixes]
        for fix, each in running:
            try:
                rows.append(each.result())
                print(f"found   {fix.name}: {rows[-1]['reason']}\n        {rows[-1]['command']}", flush=True)
            except Missed as problem:
                print(f"MISSED  {fix.name}: {problem}", flush=True)
    if chosen.out:
        lines = {"seed": chosen.seed, "minutes": chosen.minutes, "asked": len(fixes), "found": rows}
        chosen.out.write_text(json.dumps(lines, indent=1) + "\n")
    print(f"{len(rows)} of {len(fixes)} found")
    return 0 if len(rows) >= min(LEAST, len(fixes)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
