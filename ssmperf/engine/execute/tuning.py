"""Search for the best configurations before a case is timed; each candidate is judged, then timed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.judging import Judging
from ssmperf.engine.measure.passes import pass_of
from ssmperf.engine.operands.values import Values
from ssmperf.engine.tune.search import Found, Refused, search
from ssmperf.engine.tune.tables import noted, using


@contextlib.contextmanager
def tuned(judging: Judging, buffers: Values) -> Iterator[dict[str, Any]]:
    """Run the block with the configurations that make the case's call fastest, if the run autotunes.

    buffers: those that `Judging.first` returned. Yields numbers about the search for the record; none without
        a search.
    """
    if not judging.context.settings.autotune:
        yield {}
        return
    found = _search(judging, buffers)
    judging.restore(buffers)  # a wrong candidate may have changed them
    with using(found.rows):
        yield found.numbers()


def _search(judging: Judging, buffers: Values) -> Found:
    case, context = judging.case, judging.context
    backend, function = context.backend(case), context.function(case)

    def measure() -> float:
        verdict = judging.with_candidate(buffers)
        if verdict.status is not Status.OK:
            raise Refused(verdict.reason)
        timed = pass_of(case, backend, function, buffers)
        return context.median_s(case, timed.call, touched=timed.touched)

    def healthy() -> bool:
        if not context.device.startswith("cuda"):
            return True
        try:
            torch.cuda.empty_cache()
            torch.cuda.synchronize(context.device)
        except RuntimeError:
            return False
        return True

    call = pass_of(case, backend, function, buffers).call
    with noted() as consulted:
        call()
    del call
    return search(consulted, measure, on_progress=context.on_progress, healthy=healthy)
