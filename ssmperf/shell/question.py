"""What `best` is asked about, on the command line and in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ssmperf.engine.plan.run_options import Names, names
from ssmperf.engine.plan.sizes import parse_sizes
from ssmperf.engine.runs.scope import narrowed
from ssmperf.engine.runs.store import Run
from ssmperf.engine.runs.workloads import of_workloads
from ssmperf.errors import UsageError


def question(
    models: Names | None, axis: Sequence[str], workload: Names | None
) -> tuple[str, Callable[[Sequence[Run]], list[Run]]]:
    """Name the report that answers, and give the function that keeps the part of runs that is asked for.

    Raises:
        UsageError: a workload is named, and models or sizes as well.
    """
    if (workloads := names(workload)) is None:
        asked, sizes = names(models), parse_sizes(axis)
        return "best", lambda runs: narrowed(runs, asked, sizes)
    if models or axis:
        raise UsageError("a workload has its model and sizes: leave out --models and --axis")
    return "workloads", lambda runs: of_workloads(runs, workloads)
