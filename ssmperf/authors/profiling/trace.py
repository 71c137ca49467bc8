"""Profile one call: its kernels, launches, registers and spills, and a trace to look at.

The call runs in the calling process, and nothing is judged.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmperf.authors.profiling.subjects import ProfiledCall, cases_of, synchronize
from ssmperf.engine.cases.case import Case, chosen_axes
from ssmperf.engine.measure.provenance import silence
from ssmperf.engine.plan import Selection, refusal
from ssmperf.errors import Unsupported, UsageError

WARM_CALLS = 3
TRACE, NUMBERS = "trace.json", "profile.json"
LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """All launches of one kernel within the call; on a CPU, all calls of one operator.

    time_s: seconds; an operator's time excludes the operators that it calls.
    registers, shared_bytes, occupancy: those of one launch, as the profiler reports them.
    spills: spilled registers, as Triton reports them.
    """

    name: str
    launches: int
    time_s: float
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    spills: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one call: its kernels, those with the longest time first.

    duration_s: on a GPU, seconds from the start of the first kernel to the end of the last; on a CPU, the
        operators' total.
    idle_fraction: share of that time in which no kernel ran; None on a CPU.
    """

    case: Case
    kernels: tuple[Kernel, ...]
    duration_s: float
    idle_fraction: float | None
    folder: Path

    @property
    def launches(self) -> int:
        return sum(kernel.launches for kernel in self.kernels)

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case.to_json(),
            "span_s": self.duration_s,
            "idle_fraction": self.idle_fraction,
            "launches": self.launches,
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "trace": str(self.folder / TRACE),
        }


def profile(selection: Selection, device: str, folder: Path) -> Profile:
    """Profile one call of the case that a selection names; of a preset's shapes, the last one is taken.

    Writes `trace.json` (for Perfetto or chrome://tracing) and `profile.json` into the folder. The result of
    the call is not judged.

    Raises:
        UsageError: the selection names several cases or none, or the folder cannot be written.
        Unsupported: the backend refuses the case.
        BrokenContract: it returns something other than (output, final_state).
    """
    case = _the_case(selection)
    call = ProfiledCall.of(case, device).call()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _trace(call, device, folder / TRACE)
        events = json.loads((folder / TRACE).read_text())["traceEvents"]
        summarise = _profile_of_gpu if device.startswith("cuda") else _profile_of_cpu
        found = summarise(case, events, folder)
        (folder / NUMBERS).write_text(json.dumps(found.to_json(), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    return found


def as_text(found: Profile) -> str:
    """Format the kernels as a table, followed by the path of the trace."""
    from tabulate import tabulate

    total = sum(kernel.time_s for kernel in found.kernels) or 1.0
    columns = ["registers", "spills", "shared_bytes", "occupancy"]
    shown = [name for name in columns if any(getattr(each, name) is not None for each in found.kernels)]
    rows = [
        {
            "kernel": shortened(kernel.name),
            "launches": kernel.launches,
            "µs": round(kernel.time_s * 1e6, 1),
            "share": f"{kernel.time_s / total:.1%}",
            **{name.replace("_", " "): getattr(kernel, name) for name in shown},
        }
        for kernel in found.kernels
    ]
    idle = "" if found.idle_fraction is None else f", no kernel running for {found.idle_fraction:.0%} of it"
    return "\n".join([
        str(found.case),
        tabulate(rows, headers="keys", tablefmt="simple"),
        f"{found.launches} launches in {found.duration_s * 1e6:.0f} µs{idle}",
        f"trace written to {found.folder / TRACE} (open it in ui.perfetto.dev)",
    ])  # fmt: skip


def _the_case(selection: Selection) -> Case:
    cases = cases_of(selection, passes=("forward_backward",))
    chosen: dict[str, Sequence[Any]] = {each.name: each.sizes for each in selection.sizes}
    chosen |= {axis.label: selection.chosen(name) or () for name, axis in chosen_axes().items() if axis.many}
    for name, values in chosen.items():
        if len(values) > 1:
            several = ", ".join(map(str, values))
            raise UsageError(f"one call is profiled, but {name} has several values ({several}): give one")
    # of a bare recurrence, the last kind of gates that the backend takes; of a workload, the first form
    ordered = cases if selection.parts else cases[::-1]
    case = next((each for each in ordered if not refusal(each, selection)), ordered[0])
    reason = refusal(case, selection)
    if reason:
        raise Unsupported(f"{case}: {reason}")
    return case


def _trace(call: Callable[[], Any], device: str, file: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity

    silence()
    on_gpu = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for _ in range(WARM_CALLS):
        call()
    synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        call()
        synchronize(device)
    profiler.export_chrome_trace(str(file))


def _profile_of_gpu(case: Case, events: list[dict[str, Any]], folder: Path) -> Profile:
    """Sum up the kernels, copies and fills on the device."""
    on_device = ("kernel", "gpu_memcpy", "gpu_memset")
    ran = [event for event in events if event.get("cat") in on_device]
    if not ran:
        raise Unsupported(f"{case}: the profiler saw no kernel on the device")
    spills = _spills()
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in ran:
        by_name.setdefault(str(event["name"]), []).append(event)
    kernels = []
    for name, launches in by_name.items():
        facts = launches[0].get("args", {})
        kernels.append(
            Kernel(
                name,
                len(launches),
                sum(float(event["dur"]) for event in launches) * 1e-6,
                facts.get("registers per thread"),
                facts.get("shared memory"),
                facts.get("est. achieved occupancy %"),
                spills.get(name),
            )
        )
    begin = min(float(event["ts"]) for event in ran)
    end = max(float(event["ts"]) + float(event["dur"]) for event in ran)
    duration_s = (end - begin) * 1e-6
    busy_s = sum(kernel.time_s for kernel in kernels)
    idle = max(0.0, 1 - busy_s / duration_s) if duration_s else None
    return Profile(case, _longest_first(kernels), duration_s, idle, folder)


def _profile_of_cpu(case: Case, events: list[dict[str, Any]], folder: Path) -> Profile:
    """Sum up the operators, each without the time of those that it calls."""
    ran = [event for event in events if event.get("cat") == "cpu_op"]
    ran.sort(key=lambda event: (event["tid"], float(event["ts"]), -float(event["dur"])))
    own = [float(event["dur"]) for event in ran]
    open_: list[int] = []  # operators that enclose the current one, outermost first
    for place, event in enumerate(ran):
        while open_ and not _encloses(ran[open_[-1]], event):
            open_.pop()
        if open_:
            own[open_[-1]] -= float(event["dur"])
        open_.append(place)
    totals: dict[str, list[float]] = {}
    for event, time in zip(ran, own, strict=True):
        totals.setdefault(str(event["name"]), []).append(time * 1e-6)
    kernels = [Kernel(name, len(times), sum(times)) for name, times in totals.items()]
    duration_s = sum(kernel.time_s for kernel in kernels)
    return Profile(case, _longest_first(kernels), duration_s, None, folder)


def _encloses(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    ends = [float(event["ts"]) + float(event["dur"]) for event in (outer, inner)]
    return bool(outer["tid"] == inner["tid"] and ends[1] <= ends[0])


def _longest_first(kernels: list[Kernel]) -> tuple[Kernel, ...]:
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.time_s, kernel.name)))


def _spills() -> dict[str, int]:
    """Find the spilled registers of all Triton kernels in this process, by name; the most of each name."""
    if "triton" not in sys.modules:
        return {}
    from triton.compiler import CompiledKernel

    found: dict[str, int] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), CompiledKernel) and isinstance(getattr(thing, "n_spills", None), int):
            found[thing.name] = max(thing.n_spills, found.get(thing.name, 0))
    return found


def shortened(name: str) -> str:
    """Cut a long name of a kernel at its end."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
