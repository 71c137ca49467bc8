"""A report: how many times longer than the fastest backend does each one take? A table from the rows of runs.

    ssmperf run --suite throughput --models hgrn --out runs/example
    ssmperf report runs/example --plugin examples/report.py --format slowdown

The fastest backend of a case has 1.0. A backend that is wrong is not in the table.
"""

import pandas

from ssmperf import UsageError
from ssmperf.suitekit import axes, report


@report("slowdown")
def slowdown(runs, destination=None):
    """One row per time of a backend that competes: it is compared where all but the backend is the same."""
    rows = pandas.concat(run.frame() for run in runs)
    if "latency_s" not in rows:
        raise UsageError("slowdown needs times: run the suite throughput")
    rows = rows[rows["standing"] == "competes"].dropna(subset="latency_s")
    case = ["run", "env_id", "suite", "recurrence", "model", "shape", *(axis.rstrip("_") for axis in axes())]
    fastest = rows.groupby(case, dropna=False)["latency_s"].transform("min")
    table = rows.assign(slowdown=rows["latency_s"] / fastest)
    text = table[["run", "model", "shape", "dtype", "pass", "backend", "slowdown"]].to_string(index=False)
    if destination is None:
        return text
    destination.write_text(text)
    return None
