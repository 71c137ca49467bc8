"""Hardware counters of the kernels of one call, by Nsight Compute (`ncu`): what a kernel waits for.

Each case runs in a process of its own under `ncu`, which counts between two marks around a call. Kernels are
repeated for each group of counters, caches are emptied before each kernel, and clocks are left alone.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Mapping
from typing import Any

from ssmperf.authors.profiling import process
from ssmperf.authors.profiling.measurement import Failed
from ssmperf.authors.profiling.subjects import cases_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.plan import Selection
from ssmperf.errors import CannotMeasure, UsageError

PASSES = ("forward_backward",)
PROGRAM = "ncu"
MOST_LAUNCHES = 100  # of a call that are counted
MOST_STALLS = 5
METRICS = {  # by the name of a number: the counter, and the factor to the number's unit
    "time_s": ("gpu__time_duration.sum", 1e-9),
    "memory_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "issued_per_cycle": ("smsp__issue_active.avg.per_cycle_active", 1),
    "special_functions_percent": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1),
    "warps_per_multiprocessor": ("sm__warps_active.avg.per_cycle_active", 1),
    "instructions": ("smsp__inst_executed.sum", 1),
    "registers": ("launch__registers_per_thread", 1),
}
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "wait",
)  # fmt: skip
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
NO_PERMISSION = "ERR_NVGPUCTRPERM"
ERROR = re.compile(r"^==ERROR== (?P<text>.+)$", re.MULTILINE)


def chosen(selection: Selection) -> list[Case]:
    """List the cases: where no sizes are named, of the preset's last shape.

    Raises:
        UsageError: there are none, or they are for a CPU.
        CannotMeasure: there is no Nsight Compute.
    """
    if selection.device.type == "cpu":
        raise UsageError("--counters needs a GPU: the counters are those of its multiprocessors")
    cases = cases_of(selection, passes=PASSES, shapes=slice(-1, None))
    if shutil.which(PROGRAM) is None:
        raise CannotMeasure(
            f"--counters needs Nsight Compute, and there is no {PROGRAM} on PATH: install it (the CUDA "
            "toolkit and the packages nsight-compute have it) or add its folder to PATH"
        )
    return cases


def numbers_of(case: Case, device: str, timeout_s: float) -> dict[str, Any]:
    """Measure a case: the counters of each launch, in order, `kernels`.

    Raises:
        CannotMeasure: the driver keeps the counters from this user.
        Failed: the case failed, or no kernel was counted.
    """
    try:
        _, output = process.run(process.WATCHED, case, device, timeout_s, under=command())
    except process.Aborted as error:
        check_permission(error.output)
        raise
    check_permission(output)
    try:
        kernels = rows(output)
    except (KeyError, ValueError) as error:  # "n/a" is no number
        raise Failed(Status.CRASH, f"{PROGRAM} gave no number: {error!r}") from error
    if not kernels:
        found = ERROR.search(output)
        raise Failed(Status.CRASH, f"{PROGRAM}: {found['text'] if found else 'no kernel was counted'}")
    return {"kernels": kernels}


def command() -> list[str]:
    """Give the words of the command under which a process runs."""
    wanted = [metric for metric, _ in METRICS.values()] + [STALL.format(reason) for reason in STALLS]
    return [
        PROGRAM, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--profile-from-start", "off", "--launch-count", str(MOST_LAUNCHES), "--metrics", ",".join(wanted),
    ]  # fmt: skip


def check_permission(output: str) -> None:
    """Raise CannotMeasure if the driver kept the counters from this user."""
    if NO_PERMISSION in output:
        raise CannotMeasure(
            "--counters: the driver lets only administrators read the counters. Run it as root, in a "
            "container with --cap-add=SYS_ADMIN, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )


def rows(output: str) -> list[dict[str, Any]]:
    """Read ncu's CSV among other output: a line of names, a line of units, and a line per launch."""
    lines = output.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    text = "\n".join(line for line in lines[start:] if line.startswith('"'))
    return [_counters(row) for row in csv.DictReader(io.StringIO(text)) if row["ID"]]


def _counters(row: Mapping[str, str]) -> dict[str, Any]:
    def value(metric: str, scale: float) -> float:
        return float(f"{float(row[metric].replace(',', '')) * scale:.4g}")

    stalls = {reason: value(STALL.format(reason), 1) for reason in STALLS if STALL.format(reason) in row}
    largest = sorted(stalls, key=lambda reason: -stalls[reason])[:MOST_STALLS]
    return {
        "kernel": row["Kernel Name"].partition("(")[0],
        **{name: value(metric, scale) for name, (metric, scale) in METRICS.items()},
        "stalls": {reason: stalls[reason] for reason in largest},
    }
