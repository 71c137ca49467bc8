"""Runs NVIDIA's compute-sanitizer over configurations that `ssmperf fuzz` draws, for each fused backend.

    python tests/proofs/sanitize.py                  40 under memcheck, 10 under racecheck and synccheck each
    python tests/proofs/sanitize.py --tools memcheck --backends 'scan/*' --configurations 5
    python tests/proofs/sanitize.py --dry-run        prints the commands

A backend is fused if its kernels run on GPUs only and are this project's. Each class that is drawn gives one
configuration: the longest of its first four examples. Left out are examples

- whose call is captured in a CUDA graph: no memory can be allocated in a capture without torch's cache,
- whose call names another GPU than its operands' as the current one,
- which the backend or the recurrence refuses by its declarations,
- of more than 2000 steps, or whose states of all steps have more than 2^22 elements (B * T * H * K * V), so
  that a configuration should take seconds.

Of three configurations, the second believes in a device with one multiprocessor, and the third in one with
many: with many, kernels cut time into segments. Each is called as fuzz calls it, without and with its
gradients. No result is compared: fuzz does that, and under a tool references would take minutes. torch's
kernels are checked as well, and a row names the kernels with errors.

One kind of finding is counted as `replicas` and no error: racecheck's pairs of writes by one instruction of a
kernel that Triton compiled. Of a tile with fewer elements than threads several threads have the same element,
and all of them store it. Such kernels write shared memory by the compiler's code alone, and where that lacks
a barrier, racecheck reports a read, or two instructions.

Prints a summary as JSON (--out FILE writes it) with a row per tool and group of configurations. Exits 3 if a
tool found an error, or a call broke its contract, failed or took too long; 4 without compute-sanitizer.
Needs a GPU; several share the groups. `--run BACKEND --from I --count N` runs one without the tool, on a CPU
in Triton's interpreter. It exits 1 if a call is neither finished nor refused, 4 if the backend cannot run
here.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.without_gpu.compiled import multiprocessors  # noqa: E402

from ssmperf.authors.fuzzing.configurations.draws import Draws  # noqa: E402
from ssmperf.authors.fuzzing.configurations.space import INTERPRETED, Budget, Space  # noqa: E402
from ssmperf.authors.fuzzing.in_process import verify_call  # noqa: E402
from ssmperf.authors.verification.bench import refusal_of  # noqa: E402
from ssmperf.engine.cases.calls.call import DEVICE, GRAPH  # noqa: E402
from ssmperf.engine.cases.case import Case  # noqa: E402
from ssmperf.engine.cases.record import Status  # noqa: E402
from ssmperf.engine.execute.request import select  # noqa: E402
from ssmperf.engine.judge.answer import call_backend, contract_of  # noqa: E402
from ssmperf.engine.operands.dtypes import dtype_of  # noqa: E402
from ssmperf.engine.operands.subject import subject_of  # noqa: E402
from ssmperf.engine.plan.refusal import form_problem  # noqa: E402
from ssmperf.engine.plan.selection import Selection  # noqa: E402
from ssmperf.engine.registry.declarations import Backend  # noqa: E402
from ssmperf.errors import Unsupported  # noqa: E402
from ssmperf.suitekit import registry  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
USUAL = TOOLS[:3]  # memory that torch leaves uninitialised on purpose would fill initcheck's report
CONFIGURATIONS = {"memcheck": 40}  # per backend
OTHERWISE = 10
GROUP = 5  # configurations per process
LIMIT_S = 900.0
JOBS = max(1, min(24, (os.cpu_count() or 1) // 2))  # most of a run is Python's start and compilation
FEW, MANY = 1, 10_000  # multiprocessors
BUDGET = Budget(size=272, steps=2000, usual_steps=500, elements=1 << 22, batch=8, of_class=4)


def fused() -> list[str]:
    """List the backends with kernels for GPUs that are not other people's."""
    names = ((owner, name) for owner in registry.recurrences() for name in registry.backend_names(owner))
    return [
        f"{owner}/{name}"
        for owner, name in names
        if not registry.is_peer(owner, name) and "cpu" not in registry.backend(owner, name).devices
    ]


def drawn(space: Space, selection: Selection, seed: int) -> Iterator[Case]:
    """Draw configurations: the longest example of each class that has one for the tools."""

    def suits(case: Case) -> bool:
        elements = math.prod(size for letter, size in case.shape.items() if letter != "G")
        refused = form_problem(case, space.recurrence) or refusal_of(case, space.backend, selection)
        return not refused and elements <= BUDGET.elements and not {GRAPH, DEVICE} & set(case.call.split())

    for each in Draws(space, seed).classes():
        if found := [case for case, _ in each.cases.values() if suits(case)]:
            yield max(found, key=lambda case: case.shape["T"])


def called(case: Case, entry: Backend, device: torch.device, seed: int) -> tuple[Status, str]:
    """Call a backend without and with the gradients of a case. Gives how that ended, and why."""
    subject = subject_of(case, str(device))
    function = subject.function(entry.function, dtype_of(case.dtype))
    try:
        values = subject.values(seed, with_state=True)
        expected = contract_of(subject, registry.recurrence(case.recurrence).definition, values)
        for gradients in (False, True)[: 1 + case.gradients]:
            answer = call_backend(function, values, expected, gradients=gradients, poison=False)
            if problem := answer.problem or answer.gradient_problem:
                return Status.WRONG, problem
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Unsupported as refused:
        return Status.UNSUPPORTED, str(refused)
    except Exception as error:
        return Status.CRASH, f"{type(error).__name__}: {error}"
    return Status.OK, ""


def run(backend: str, start: int, count: int, seed: int) -> int:
    """Call some configurations of a backend in this process, and return the exit code."""
    owner, _, name = backend.partition("/")
    selection, devices = select(models=(owner,))
    device, entry = selection.device, registry.backend(owner, name)
    if problem := entry.refusal(device=device.type, capability=device.capability):
        print(f"{backend} {problem}", file=sys.stderr)
        return 4
    budget = BUDGET if device.type == "cuda" else replace(INTERPRETED, of_class=BUDGET.of_class)
    cases = drawn(Space(owner, entry, device.type, budget), selection, seed)
    statuses = []
    for number, case in itertools.islice(enumerate(cases), start, start + count):
        print(f"{number}: {verify_call(case)}", flush=True)
        processors = (None, FEW, MANY)[number % 3]
        cut = multiprocessors(f"ssmperf.impls.{owner}._{name}.", processors) if processors else None
        with cut or nullcontext():
            status, reason = called(case, entry, torch.device(devices[0]), seed)
        print(f"{number}: {status} {reason}", flush=True)
        statuses.append(status)
    return 0 if statuses and set(statuses) <= {Status.OK, Status.UNSUPPORTED} else 1


def sanitizer() -> str | None:
    """compute-sanitizer: on PATH, of pip's nvidia-cuda-sanitizer-api, or of a CUDA toolkit."""
    if found := shutil.which("compute-sanitizer"):
        return found
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    for folder, pattern in ((packages, "cu*/bin"), (Path("/usr/local"), "cuda*/bin")):
        if found := sorted(folder.glob(f"{pattern}/compute-sanitizer")):
            return str(found[-1])
    return None


def command(program: str, tool: str, backend: str, start: int, count: int, seed: int) -> list[str]:
    # torch probes what a device can do, and takes an error of the API for an answer.
    return [
        program, "--tool", tool, "--target-processes", "application-only", "--report-api-errors", "no",
        "--print-limit", "20", sys.executable, str(Path(__file__).resolve()), "--run", backend,
        "--from", str(start), "--count", str(count), "--seed", str(seed),
    ]  # fmt: skip


def errors(output: str) -> int | None:
    """Read the count of the tool's last summary; None without one."""
    found = re.findall(
        r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", output.replace("no errors", "0 errors")
    )
    return int(found[-1][0] or found[-1][1]) if found else None


def replicas(output: str) -> int:
    """Count racecheck's pairs of writes by one instruction of a kernel that Triton compiled."""
    pair = r"Race reported between Write access at (\S+ in \S+\.py:\d+)\n=+ +and Write access at \1 "
    return len(re.findall(pair, output))


def kernels(output: str) -> list[str]:
    """Name the kernels at which the tool found errors, without their parameters."""
    return sorted(set(re.findall(r"^=+ .*\bat (?:void )?([\w:~]+).*\+0x", output, re.MULTILINE)))


def gpus() -> list[str]:
    """List the GPUs for processes, which see one each, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def examined(
    program: str, seed: int, limit_s: float, group: tuple[str, str, int, int], gpu: str
) -> dict[str, Any]:
    """Run the tool over a group: tool, backend, first configuration and their number. Return its row."""
    tool, backend, start, count = group
    line = command(program, tool, backend, start, count, seed)
    # Without its cache every tensor is an allocation of its own, so memcheck sees where one ends.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_VISIBLE_DEVICES": gpu}
    row: dict[str, Any] = {"tool": tool, "backend": backend, "configurations": f"{start}-{start + count - 1}"}
    row |= {"status": "ok", "errors": None}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        row["status"] = "timeout"
    else:
        output = done.stdout + done.stderr
        row["errors"] = errors(output)
        if row["errors"] and (found := replicas(output)):
            row |= {"replicas": found, "kernels": kernels(output), "errors": row["errors"] - found}
        if row["errors"]:
            row |= {"status": "errors", "kernels": kernels(output)}
        elif done.returncode != 0 or row["errors"] is None:
            row["status"] = "failed"
    row["refused"] = output.count(f": {Status.UNSUPPORTED} ")
    if row["status"] != "ok" or row.get("replicas"):
        row["output"] = output[-20_000:]
    return row | {"seconds": round(time.perf_counter() - began, 1), "command": shlex.join(line)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", default=",".join(USUAL), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--backends", default="*", metavar="PATTERN", help="such as 'scan/*'")
    parser.add_argument("--configurations", type=int, metavar="N", help="per backend and tool")
    parser.add_argument("--seed", type=int, default=0, help="of the configurations")
    parser.add_argument("--timeout", type=float, default=LIMIT_S, metavar="S", help="of a group under a tool")
    parser.add_argument("--jobs", type=int, default=JOBS, help="groups at once")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the summary")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--run", metavar="BACKEND", help="run configurations, without compute-sanitizer")
    parser.add_argument("--from", type=int, default=0, dest="start", metavar="I", help="the first to run")
    parser.add_argument("--count", type=int, default=GROUP, metavar="N", help="how many to run")
    options = parser.parse_args(arguments)
    if options.run and options.run not in fused():
        parser.error(f"no fused backend is called {options.run!r} (there are {', '.join(fused())})")
    if options.run:
        return run(options.run, options.start, options.count, options.seed)

    tools = options.tools.split(",")
    backends = fnmatch.filter(fused(), options.backends)
    if unknown := set(tools) - set(TOOLS):
        parser.error(f"unknown tools: {', '.join(sorted(unknown))} (there are {', '.join(TOOLS)})")
    if not backends:
        parser.error(f"no fused backend is called {options.backends!r} (there are {', '.join(fused())})")
    groups = []
    for tool in tools:
        count = options.configurations or CONFIGURATIONS.get(tool, OTHERWISE)
        starts = range(0, count, GROUP)
        groups += [(tool, each, start, min(GROUP, count - start)) for start in starts for each in backends]
    program = sanitizer()
    if options.dry_run:
        for group in groups:
            print(shlex.join(command(program or "compute-sanitizer", *group, options.seed)))
        return 0
    if program is None:
        print(
            "no compute-sanitizer on PATH or in /usr/local/cuda*/bin: pip install nvidia-cuda-sanitizer-api",
            file=sys.stderr,
        )
        return 4

    with ThreadPoolExecutor(options.jobs) as pool:
        judge = partial(examined, program, options.seed, options.timeout)
        rows = list(pool.map(judge, groups, itertools.cycle(gpus() or [""])))
    text = json.dumps({"program": program, "runs": rows}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    bad = [
        f"{row['tool']} {row['backend']} {row['configurations']}: {row['status']}"
        for row in rows
        if row["status"] != "ok"
    ]
    equal = sum(row.get("replicas", 0) for row in rows)
    filtered = f" ({equal} pairs of equal writes are no errors)" if equal else ""
    print("\n".join(bad) if bad else f"no errors in {len(rows)} runs{filtered}", file=sys.stderr)
    return 3 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
