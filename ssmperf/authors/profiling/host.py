"""The host's time per call: how long the CPU needs to issue a call to a GPU, without waiting for the GPU.

The host waits for the device only between batches of calls. On tiny operands the queue of launches never
fills, and the time is the host's alone. `drain_fraction` is the wait after a batch as a share of the batch:
where it is large, the queue may have been full, and the row says little about the host.

`empty_s` is the same of an autograd function that allocates results and gradients of the same shapes and does
nothing else. `compute_s` is the same of `ssmperf.compute`, which checks the operands before the call. Times
are medians over batches, and the batches of the three alternate.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssmperf.authors import direct
from ssmperf.authors.profiling.subjects import ProfiledCall, cases_of, synchronize
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.values import Values, call_of
from ssmperf.engine.plan import Selection
from ssmperf.engine.registry.presets import ON_CPU
from ssmperf.errors import UsageError

PASSES = ("forward", "forward_backward")
BATCHES, CALLS, WARM_CALLS = 40, 50, 3
LONGEST_S = 10.0  # of a case, as far as fewer calls per batch allow

Call = Callable[[], Any]


def chosen(selection: Selection) -> list[Case]:
    """List the cases: where no sizes are named, of the first shape of the preset `smoke`.

    Raises:
        UsageError: there are none, or they are for a CPU.
    """
    if selection.device.type == "cpu":
        raise UsageError(
            "--host needs a GPU: on a CPU the host computes the call itself, and `ssmperf run --suite "
            "throughput` measures that"
        )
    small = replace(selection, preset=selection.preset or ON_CPU)
    return cases_of(small, passes=PASSES, dtype="bfloat16", shapes=slice(1))


class Empty(torch.autograd.Function):
    """Allocates results like those of a call, and gradients like the operands."""

    @staticmethod
    def forward(ctx: Any, results: Sequence[Tensor], *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.operands = operands
        return tuple(torch.empty_like(each) for each in results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        return None, *(
            torch.empty_like(each) if want else None for each, want in zip(ctx.operands, wanted, strict=True)
        )


def empty_function(function: Callable[..., Any], values: Values) -> Callable[..., Any]:
    """Make the empty function whose results are like those of another one on these values."""
    with torch.no_grad():
        output, state = values.call(function)
    results = [output.detach()] if state is None else [output.detach(), state.detach()]

    def empty(**operands: Any) -> tuple[Tensor, Tensor | None]:
        tensors = [each for each in operands.values() if isinstance(each, Tensor)]
        found = Empty.apply(results, *tensors)  # type: ignore[no-untyped-call]
        return found[0], found[1] if len(found) > 1 else None

    return empty


def calls_of(case: Case, device: str) -> dict[str, Call]:
    """Make the calls to compare: the backend's, the empty function's and that of `ssmperf.compute`.

    A layer's call (`--level block`) has no counterpart in `ssmperf.compute`.
    """
    subject = ProfiledCall.of(case, device)
    subject.call()()  # refuses a result of a wrong form
    calls = {
        "host_s": subject.call(checked=False),
        "empty_s": call_of(case.pass_, empty_function(subject.function, subject.values), subject.values),
    }
    if case.level == "op":
        compute = partial(direct.compute, case.owner, case.backend)
        calls["compute_s"] = call_of(case.pass_, compute, subject.values)
    return calls


def numbers_of(case: Case, device: str) -> dict[str, Any]:
    """Measure a case: seconds per call by name, the fastest batch's, and the share of waiting."""
    with torch.cuda.device(device):
        found = times(calls_of(case, device), partial(synchronize, device))
    fastest = {f"fastest_{name}": each.fastest_s for name, each in found.items()}
    medians = {name: each.median_s for name, each in found.items()}
    return {**medians, **fastest, "drain_fraction": found["host_s"].drain_fraction}


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds per call over batches, and the median wait after a batch as a share of the batch."""

    median_s: float
    fastest_s: float
    drain_fraction: float


def times(
    calls: Mapping[str, Call],
    wait: Callable[[], None],
    *,
    longest_s: float = LONGEST_S,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, HostTime]:
    """Time calls in alternating batches. wait: for the device. now: the host's clock, in seconds."""
    counts = {
        name: _count(call, wait, longest_s / (BATCHES * len(calls)), now) for name, call in calls.items()
    }
    batches: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for _ in range(BATCHES):
            for name, call in calls.items():
                batches[name].append(_batch(call, counts[name], wait, now))
    finally:
        gc.enable()
    return {
        name: HostTime(
            statistics.median(host_s for host_s, _ in pairs) / counts[name],
            min(host_s for host_s, _ in pairs) / counts[name],
            statistics.median(wait_s / host_s for host_s, wait_s in pairs),
        )
        for name, pairs in batches.items()
    }


def _count(call: Call, wait: Callable[[], None], batch_s: float, now: Callable[[], float]) -> int:
    """Warm a call up, and count the calls of a batch that may last so long, at least one."""
    for _ in range(WARM_CALLS):
        call()
    issued_s, waited_s = _batch(call, 1, wait, now)
    return max(1, min(CALLS, int(batch_s / (issued_s + waited_s))))


def _batch(call: Call, count: int, wait: Callable[[], None], now: Callable[[], float]) -> tuple[float, float]:
    """Give the seconds in which calls are issued, and of the wait after them."""
    wait()
    start_s = now()
    for _ in range(count):
        call()
    issued_s = now()
    wait()
    return issued_s - start_s, now() - issued_s
