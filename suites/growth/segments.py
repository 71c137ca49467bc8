"""Is the state passed on? A sequence in segments, each from the state in which the one before it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmperf import Status, Unsupported
from ssmperf.authoring import steps
from ssmperf.suitekit import Judging, Verdict, relative_error

SEGMENTS = 8  # of equal length


def judge_segments(judging: Judging, verdict: Verdict) -> tuple[Verdict, dict[str, Any]]:
    """Judge a call in segments, which must be as right as the call in one piece.

    verdict: that of the call in one piece, which is right.

    Returns:
        The verdict on both, and the numbers:

        segments: how many there are.
        error_in_segments: the error of the output against float64.
        segments_difference: the largest difference from the output in one call, relative to its size.
        segments_reason: why there are none.
    """
    case, context = judging.case, judging.context
    T = case.shape["T"]
    length = T // SEGMENTS
    refused = context.backend(case).lengths
    reason = None
    if not context.recurrence(case).has_state:
        reason = "the recurrence has no state"
    elif T % SEGMENTS:
        reason = f"T is no multiple of {SEGMENTS}"
    elif refused is not None and (refusal := refused(length)):
        reason = refusal
    if reason is not None:
        return verdict, {"segments_reason": reason}
    function = context.function(case)
    outputs: list[Tensor] = []
    try:
        found = judging.instead(segmented(function, T, outputs.append))
    except Unsupported as error:
        return verdict, {"segments_reason": str(error) or "the backend gave no reason"}
    numbers: dict[str, Any] = {"segments": SEGMENTS, "error_in_segments": found.errors.get("output")}
    if outputs:
        with torch.no_grad():
            whole, _ = function(**judging.values(0).operands)
        numbers["segments_difference"] = relative_error(outputs[-1], whole)
    if found.status is Status.OK:
        return verdict, numbers
    reason = f"in {SEGMENTS} segments through initial_state: {found.reason}"
    # errors and tolerances stay those of the whole call
    return replace(verdict, status=found.status, reason=reason, diagnosis=found.diagnosis), numbers


def segmented(
    function: Callable[..., Any], T: int, on_output: Callable[[Tensor], object]
) -> Callable[..., tuple[Tensor, Any]]:
    """Make the function that calls another on one segment after another and hands the state on.

    T: length of the whole sequence. on_output: called with each output of the whole sequence.
    """
    length = T // SEGMENTS

    def call(**operands: Any) -> tuple[Tensor, Any]:
        state = operands.pop("initial_state", None)
        outputs = []
        for start in range(0, T, length):
            if start > 0 and state is None:
                raise Unsupported("the backend gives no state from which the next segment could begin")
            given = steps(operands, start, start + length, T)
            if state is not None:
                given["initial_state"] = state
            output, state = function(**given)
            outputs.append(output)
        output = torch.cat(outputs, dim=1)
        on_output(output)
        return output, state

    return call
