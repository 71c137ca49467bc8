"""The kinds of measurements of a profile: which cases each has, how it measures one, and its table's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from ssmperf.authors.profiling import counters, first_call, host, measurement
from ssmperf.authors.profiling.measurement import Measurement as Measurement
from ssmperf.authors.profiling.trace import shortened
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.plan import Selection
from ssmperf.errors import UsageError

Row = dict[str, Any]
LONG_DRAIN = 0.1
DRAINED = "drain above 10 %: the host may have waited for a full queue of launches; choose smaller sizes"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of measurement.

    chosen: lists the cases of a selection. numbers_of: measures a case on a device within so many seconds.
    rows: makes the rows of a record. limited: whether a case is measured in a process that can be ended.
    """

    chosen: Callable[[Selection], list[Case]]
    numbers_of: Callable[[Case, str, float], Mapping[str, Any]]
    rows: Callable[[Record], Iterator[Row]]
    limited: bool = True


def the_kind(named: Sequence[str], timeout_s: float | None) -> str | None:
    """Check the kinds that are asked for, and return the one; None for a trace.

    Raises:
        UsageError: there are several, or a timeout for one that has none.
    """
    if len(named) > 1:
        raise UsageError(f"one of these at a time: {', '.join(f'--{name}' for name in named)}")
    kind = next(iter(named), None)
    if timeout_s is not None and (kind is None or not KINDS[kind].limited):
        limited = " and ".join(f"--{name}" for name, each in KINDS.items() if each.limited)
        raise UsageError(f"--timeout is for {limited}, which measure each case in a process of its own")
    return kind


def measure(found: Measurement, selection: Selection, timeout_s: float, progress: Progress) -> None:
    """Measure the cases of a selection; see `measurement.measure` for the exceptions."""
    kind = KINDS[found.kind]
    measurement.measure(
        found,
        kind.chosen(selection),
        selection,
        lambda case: kind.numbers_of(case, found.device, timeout_s),
        progress,
    )


def as_text(found: Measurement) -> str:
    """Format the records as a table, followed by cases without numbers and the path of the file."""
    good = [record for record in found.records if record.status is Status.OK]
    rows = [row for record in good for row in KINDS[found.kind].rows(record)]
    lines = [tabulate(rows, headers="keys", tablefmt="simple", floatfmt=".4g")] if rows else []
    if any(record.numbers.get("drain_fraction", 0) > LONG_DRAIN for record in good):
        lines.append(DRAINED)
    for record in found.records:
        if record.status is not Status.OK:
            lines.append(f"{record.status}: {record.case}: {record.reason}")
    return "\n".join([*lines, f"{found.kind} written to {found.file}"])


def _of_host(record: Record) -> Iterator[Row]:
    us = {name: value * 1e6 for name, value in record.numbers.items() if name.endswith("_s")}
    row = {"case": str(record.case), "call µs": us["host_s"], "empty": us["empty_s"]}
    row["above"] = us["host_s"] - us["empty_s"]
    if "compute_s" in us:
        row |= {"compute": us["compute_s"], "compute above": us["compute_s"] - us["empty_s"]}
    yield row | {"drain": f"{record.numbers['drain_fraction']:.0%}"}


def _of_first_call(record: Record) -> Iterator[Row]:
    numbers = record.numbers
    yield {"case": str(record.case), "first s": numbers["first_s"], "later ms": numbers["later_s"] * 1e3}


def _of_counters(record: Record) -> Iterator[Row]:
    for each in record.numbers["kernels"]:
        yield {
            "case": str(record.case),
            "kernel": shortened(each["kernel"]),
            "µs": each["time_s"] * 1e6,
            "memory %": each["memory_percent"],
            "issued/cycle": each["issued_per_cycle"],
            "special %": each["special_functions_percent"],
            "warps": each["warps_per_multiprocessor"],
            "registers": each["registers"],
            "stalled": ", ".join(f"{reason} {warps:.2g}" for reason, warps in each["stalls"].items()),
        }


KINDS = {
    "host": Kind(host.chosen, lambda case, device, _: host.numbers_of(case, device), _of_host, limited=False),
    "first-call": Kind(first_call.chosen, first_call.numbers_of, _of_first_call),
    "counters": Kind(counters.chosen, counters.numbers_of, _of_counters),
}
