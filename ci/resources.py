"""Registers, stack and shared memory of every kernel, against tests/impls/resources.csv.

    python ci/resources.py                      says what differs, and exits 1
    python ci/resources.py --write              brings the table up to date
    python ci/resources.py --write --triton V   with other versions of Triton, which pip fetches

Needs no GPU. Rows belong to the version of the compiler that made them: those of other versions are kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.without_gpu.compiled import Usage  # noqa: E402
from support.without_gpu.compiled_cases import ARCHS, CASES  # noqa: E402
from support.without_gpu.compiled_table import FILE, differences, faults, read, updated, write  # noqa: E402


def usage(job: tuple[int, int]) -> tuple[dict[str, Usage], float]:
    """Give a case's resources by kernel, and the processor seconds that finding them took."""
    place, arch = job
    start = os.times()
    found = CASES[place].usage(arch)
    return found, sum(os.times()[:4]) - sum(start[:4])


def measured(backends: str) -> dict[tuple[int, int], dict[str, Usage]]:
    """Compile the kernels; give their resources by place of the case and architecture."""
    jobs = [
        (place, arch)
        for place, case in enumerate(CASES)
        for arch in ARCHS
        if case.on(arch) and case.backend.startswith(backends) and not case.missing()
    ]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for job, (kernels, seconds) in zip(jobs, pool.map(usage, jobs), strict=True):
            found[job] = kernels
            case = f"{CASES[job[0]].backend} {CASES[job[0]].name}"
            print(f"[{len(found)}/{len(jobs)}] {case} sm_{job[1]}: {seconds:.1f} s", flush=True)
    return found


def with_triton(version: str, arguments: list[str]) -> int:
    """Run this again with another version of Triton, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*command, f"triton=={version}"], check=True)
        environment = os.environ | {"PYTHONPATH": folder}
        return subprocess.run([sys.executable, __file__, *arguments], env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="bring the table up to date")
    parser.add_argument("--triton", nargs="+", metavar="VERSION", help="compile with these versions")
    parser.add_argument("--backend", default="", metavar="NAME", help="only those whose name begins so")
    options = parser.parse_args()
    if options.triton:
        arguments = ["--backend", options.backend] + ["--write"] * options.write
        return max(with_triton(version, arguments) for version in options.triton)

    found = {(CASES[place], arch): kernels for (place, arch), kernels in measured(options.backend).items()}
    if options.write:
        write(updated(read() if FILE.exists() else {}, found))
    table = read()
    lines = [
        line for (case, arch), kernels in found.items() for line in differences(table, case, arch, kernels)
    ]
    for case in CASES:
        if (reason := case.missing()) and case.backend.startswith(options.backend):
            print(f"left unchanged: {case.backend} {case.name}: {reason}")
    lines = list(dict.fromkeys(lines + faults(table)))
    print("\n".join(lines) or f"{FILE} is up to date")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
