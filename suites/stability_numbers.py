"""The numbers of one case of the stability suite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf import Case, Record, Status, Unsupported
from ssmperf.authoring import steps
from ssmperf.suitekit import (
    Context,
    Judging,
    Verdict,
    decay_span,
    is_out_of_memory,
    registry,
    relative_error,
    widen,
)

ALONG_TIME = (
    "first_wrong_step",
    "first_nan_step",
    "largest_finite_error",
    "error_envelope",
    "phase_drift",
)
PIECES = 16  # into which the sequence is divided, each with its largest error and state
LONGEST_STATES = 1024  # steps up to which the states along the sequence are computed
# The backend is called again, on the same and on other operands, at lengths in this range,
REPEATED = range(256, 1025)
REPEATED_CPU_S = 0.1  # if a call on a CPU is predicted to take no longer.
CPU_SECONDS_PER_LAUNCH = 1e-5
CPU_BYTES_PER_SECOND = 3e8  # of the workspace, most of which holds exponentials


def measure_stability(case: Case, context: Context) -> Record:
    """Judge one call along its sequence, and see what changes the result.

    decay_span: the largest sum over time of a channel's log gates' magnitudes; infinite with resets.
    error_bound, bound_holds: the bound that an approximate backend declares for this decay span, and whether
        the error is within it.
    first_wrong_step: the first step whose error is above the tolerance of the whole output.
    first_nan_step: the first step with a value that is not finite.
    largest_finite_error: the largest error of a finite value, relative to the largest float64 output.
    error_envelope: the largest error in each piece of the sequence, relative like the above. The pieces end
        before `steps`.
    largest_state, state_envelope: the largest magnitude in the float64 states at the ends of pieces, and that
        at each of these ends; of a long sequence, that of the final state alone.
    phase_drift: radians by which the last piece of a complex output is turned.

    At some lengths the backend is called a few times more:

    deterministic: whether two calls gave the same bits.
    tf32_difference: the largest change of the output if float32 products may use tf32 (on a GPU), and
    gate_dtype_difference: if the gates are rounded to bfloat16; both relative to the largest output.
    """
    judging = Judging(case, context)
    values = judging.values(0)
    bound = judging.bound(values.operands)
    numbers: dict[str, Any] = {
        "decay_span": span_of(case, values.operands),
        "error_bound": bound,
    }
    ends, envelope = context.memoised(case, "state_envelope", lambda: state_envelope(case, values.operands))
    try:
        verdict = judging.once(ends=ends)
    except Unsupported as refused:
        verdict = Verdict(Status.UNSUPPORTED, str(refused) or "the backend gave no reason")
    else:
        cheap = case.device != "cpu" or predicted_cpu_s(case) <= REPEATED_CPU_S
        if cheap and case.shape["T"] in REPEATED:
            numbers |= _repeated_if_possible(case, context, values.operands)
    error = verdict.errors.get("output")
    largest = max(envelope) if envelope else verdict.extra.get("largest_final_state")
    return context.record(
        case,
        verdict,
        bound_holds=None if bound is None or error is None else error <= bound,
        steps=list(ends),
        state_envelope=None if envelope is None else list(envelope),
        largest_state=largest,
        **numbers,
        **{name: verdict.extra.get(name) for name in ALONG_TIME},
    )


def _repeated_if_possible(case: Case, context: Context, operands: Mapping[str, Any]) -> dict[str, Any]:
    """Call the backend again; a refusal or a lack of memory changes no earlier findings."""
    try:
        return repeated(case, context, operands)
    except Exception as error:
        if not (isinstance(error, Unsupported) or is_out_of_memory(error)):
            raise
        return {"repeated_reason": str(error).partition("\n")[0]}


def repeated(case: Case, context: Context, operands: Mapping[str, Any]) -> dict[str, Any]:
    """Call the backend again: twice on the same operands, with tf32, and with gates in bfloat16."""
    function = context.function(case)

    def call(given: Mapping[str, Any]) -> Tensor:
        with torch.no_grad():
            output: Tensor = function(**given)[0]
        return output.clone()

    first = call(operands)
    found: dict[str, Any] = {"deterministic": same_bits(first, call(operands))}
    gates = registry.recurrence(case.recurrence).gates
    rounded = {
        name: in_bfloat16(value) if name in gates and isinstance(value, Tensor) else value
        for name, value in operands.items()
    }
    if any(rounded[name] is not value for name, value in operands.items()):
        found["gate_dtype_difference"] = relative_error(call(rounded), first)
    if context.device.startswith("cuda") and case.dtype == "float32":
        with tf32_allowed():
            found["tf32_difference"] = relative_error(call(operands), first)
    return found


def span_of(case: Case, operands: Mapping[str, Any]) -> float:
    """Compute the decay span of operands, which is infinite if a log gate is −∞."""
    recurrence = registry.recurrence(case.recurrence)
    logs = [value for name, value in operands.items() if name in recurrence.gates and name.startswith("log_")]
    if any(isinstance(value, Tensor) and bool(torch.isinf(value).any()) for value in logs):
        return math.inf
    return decay_span(recurrence, operands)


def predicted_cpu_s(case: Case) -> float:
    """Predict the time of a call on a CPU from the launches and the workspace that the backend declares."""
    if registry.import_problem(case.owner, case.backend):
        return 0.0
    backend = registry.backend(case.owner, case.backend)
    kind = registry.model(case.model).gate if case.model else case.operand_source.partition("/")[2]
    launches = backend.launches(case.shape) if backend.launches else 0.0
    itemsize = 8 if kind.endswith("_complex") or case.dtype == "float64" else 4
    workspace = backend.workspace(case.shape, itemsize, kind) if backend.workspace else 0.0
    return launches * CPU_SECONDS_PER_LAUNCH + workspace / CPU_BYTES_PER_SECOND


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Tell whether two results are equal, where NaN equals NaN."""
    if first.shape != second.shape:
        return False
    return bool(((first == second) | (torch.isnan(first) & torch.isnan(second))).all())


def in_bfloat16(gate: Tensor) -> Tensor:
    """Round a gate to bfloat16, and keep its dtype."""
    if gate.is_complex():
        return torch.complex(in_bfloat16(gate.real), in_bfloat16(gate.imag))
    return gate.to(torch.bfloat16).to(gate.dtype)


@contextlib.contextmanager
def tf32_allowed() -> Iterator[None]:
    """Let float32 products use tf32 for a while."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def state_envelope(
    case: Case, operands: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Find the ends of the sequence's pieces, and the largest magnitude in the float64 state at each of them.

    None for a recurrence without a state, and for a sequence whose loop would take too long.
    """
    T = case.shape["T"]
    pieces = min(PIECES, T)
    ends = tuple(T * piece // pieces for piece in range(1, pieces + 1))
    recurrence = registry.recurrence(case.recurrence)
    if not recurrence.has_state or T > LONGEST_STATES:
        return ends, None
    operands = {name: widen(value, torch.float64) for name, value in operands.items()}
    state, largest, start = None, [], 0
    with torch.no_grad():
        for end in ends:
            _, state = recurrence.definition(**steps(operands, start, end, T), initial_state=state)
            largest.append(float(state.abs().max()))
            start = end
    return ends, tuple(largest)
