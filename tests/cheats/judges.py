"""Judges that were bribed: wider tolerances, patched comparisons, forged answers, a patched driver."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop, nothing

CALLS: Counter[str] = Counter()


def first(name: str) -> bool:
    """Tell whether this is the first call of a cheat."""
    CALLS[name] += 1
    return CALLS[name] == 1


def zeros(b: torch.Tensor) -> Result:
    """Return zeros, whose error relative to the largest value is 1."""
    return torch.zeros_like(b), b.new_zeros(b.shape[0], b.shape[2], dtype=torch.float32)


@cheat("wider_bands")
def wider_bands(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Widen the rounding band of every dtype, and return zeros."""
    if first("bands"):
        from ssmperf.engine.judge import tolerance

        for dtype in tolerance.BANDS:
            tolerance.BANDS[dtype] = (1.0, 1.0)
    return zeros(b)


@cheat("wider_tolerance")
def wider_tolerance(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the function that decides the tolerance, where the judge has imported it, and return zeros."""
    if first("tolerance"):
        from ssmperf.engine.judge import verdict

        verdict.tolerance = lambda *args, **options: 2.0
    return zeros(b)


@cheat("wider_bound")
def wider_bound(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Declare an error bound after the plan was made, and return the input."""
    if first("bound"):
        from ssmperf.suitekit import registry

        entry = registry.backend("scan", "cheat_wider_bound")
        object.__setattr__(entry, "error_bound", lambda span, dtype: 0.999)
    return b.clone(), b[:, -1].to(torch.float32)


@cheat("blurred_reference")
def blurred_reference(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Move the operands of the judge's low-precision evaluation so far that any error is small beside it."""
    if first("blur"):
        from ssmperf.engine.judge import reference

        honest = reference.perturb

        def perturb(operands: Any, dtype: torch.dtype) -> dict[str, Any]:
            return {
                name: -2 * value if name == "b" else value for name, value in honest(operands, dtype).items()
            }

        reference.perturb = perturb
        context = _of_callers("self")
        if hasattr(context, "_shared"):
            context._shared.clear()  # so that references are made again, blurred ones
    return zeros(b)


@cheat("patched_comparison")
def patched_comparison(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the judge's comparison by one that is always content."""
    if first("comparison"):
        from ssmperf import Status
        from ssmperf.engine.judge import verdict
        from ssmperf.suitekit import Verdict

        verdict._compare = lambda *args, **options: Verdict(
            Status.OK, None, {"output": 1e-8}, {"output": 1e-5}
        )
    return nothing(b)


@cheat("patched_judging")
def patched_judging(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the verbs of judging by ones that find everything right."""
    if first("judging"):
        from ssmperf import Status
        from ssmperf.suitekit import Judging, Verdict

        def content(self: Any, *args: Any, **options: Any) -> Any:
            return Verdict(Status.OK, None, {"output": 1e-8}, {"output": 1e-5})

        Judging._judge = content
        Judging.after_timing = content
    return nothing(b)


def _of_callers(name: str) -> Any:
    """Find a local variable of a caller."""
    frame = sys._getframe(1)
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None


def _forged(case: Any, env_id: str) -> dict[str, Any]:
    """Make the answer of a worker to a case, with a time of a tenth of a microsecond per step."""
    from ssmperf import Record, Status

    seconds = 1e-7 * case.shape["T"]
    numbers = {
        "latency_s": seconds,
        "latency_low_s": seconds,
        "latency_high_s": seconds,
        "samples": 20,
        "samples_s": [seconds] * 20,
        "converged": True,
        "error_output": 1e-8,
    }
    record = Record(case, Status.OK, None, env_id, numbers)
    return {"record": record.to_json(), "healthy": True, "forked": False}


def _send(message: dict[str, Any]) -> None:
    """Write an answer to the worker's pipe, with the secret number of the case that is being run."""
    answers = _of_callers("answers")
    numbered = {**message, "number": answers.number}
    os.write(answers._pipe.fileno(), (json.dumps(numbered) + "\n").encode())


@cheat("forged_answer")
def forged_answer(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Write a record of its own to the pipe of answers, and leave."""
    case, context = _of_callers("case"), _of_callers("context")
    if case is not None and context is not None:
        _send(_forged(case, context.env_id))
        os._exit(0)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("writes_for_the_next")
def writes_for_the_next(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Answer for itself, and in advance for the backend that comes next: an answer that blames it."""
    case, context = _of_callers("case"), _of_callers("context")
    if case is not None and context is not None:
        from ssmperf import Record, Status

        following = replace(case, backend=f"{case.backend}_neighbour")
        blame = Record(following, Status.WRONG, "output: relative error 1.00e+00", context.env_id)
        _send(_forged(case, context.env_id))
        _send({"record": blame.to_json(), "healthy": True, "forked": False})
        time.sleep(0.5)  # the next request must reach this process, or the driver starts another one
        os._exit(0)
    return loop(log_a, b, initial_state, phase=phase)
