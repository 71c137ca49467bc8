"""Before a case is timed: its call with other configurations, each judged and timed like the first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ssmperf.case import Case
from ssmperf.configurations import noted, using
from ssmperf.execute.context import Context
from ssmperf.measure.search import Found, Refused, search
from ssmperf.measure.timed import timed
from ssmperf.measure.verify import Values
from ssmperf.record import Status


@contextlib.contextmanager
def tuned(case: Case, context: Context, buffers: Values) -> Iterator[dict[str, Any]]:
    """Let the block run with the configurations that make the case's call fastest, if the run autotunes.

    buffers: as `Context.verify` left them. Gives what a record says of the search, nothing if there is none.
    """
    if not context.settings.autotune:
        yield {}
        return
    found = _found(case, context, buffers)
    context.restore(case, buffers)  # whatever a candidate did to them
    with using(found.rows):
        yield found.numbers()


def _found(case: Case, context: Context, buffers: Values) -> Found:
    backend, function = context.backend(case), context.function(case)

    def measure() -> float:
        verdict = context.judge_again(case, buffers)
        if verdict.status is not Status.OK:
            raise Refused(verdict.reason)
        measured = timed(case, backend, function, buffers)
        return context.median_s(case, measured.call, touched=measured.touched)

    def healthy() -> bool:
        if not context.device.startswith("cuda"):
            return True
        try:
            torch.cuda.empty_cache()
            torch.cuda.synchronize(context.device)
        except RuntimeError:
            return False
        return True

    call = timed(case, backend, function, buffers).call
    with noted() as consulted:
        call()
    del call
    return search(consulted, measure, say=context.say, healthy=healthy)
