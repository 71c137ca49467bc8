"""The first call of a case in a fresh process whose compilers have empty caches, against a later call."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ssmperf.authors.profiling import process
from ssmperf.authors.profiling.host import PASSES
from ssmperf.authors.profiling.subjects import cases_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.plan import Selection
from ssmperf.engine.processes.compilers import compiler_caches


def chosen(selection: Selection) -> list[Case]:
    """List the cases: where no sizes are named, of the preset's last shape. Raises UsageError."""
    return cases_of(selection, passes=PASSES, shapes=slice(-1, None))


def numbers_of(case: Case, device: str, timeout_s: float) -> dict[str, Any]:
    """Measure a case: seconds of the first call and of a later one."""
    with tempfile.TemporaryDirectory() as folder:
        # the cache of this package's kernels in CUDA is in the user's
        caches = {**compiler_caches(Path(folder)), "XDG_CACHE_HOME": folder}
        return process.run(process.FIRST_CALL, case, device, timeout_s, variables=caches)[0]
