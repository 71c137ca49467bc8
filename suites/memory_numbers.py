"""The numbers of one case of the memory suite: peaks at several sizes, and a graph's and a state's bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf import Case, Record, Status
from ssmperf.suitekit import (
    UNPACKED,
    Context,
    Judging,
    Memory,
    Values,
    call_of,
    declared_bytes,
    is_out_of_memory,
    predicted_call_s,
    registry,
    saved_bytes,
    specs,
    trace,
)

from .largest_size import at_size, free_bytes, largest_sizes, ranges
from .memory_growth import Growth, growth_exponent

PASSES = ("forward_backward", "forward")  # the widest first
DIVISORS = (4, 2, 1)  # the lengths measured are the case's, divided by these
SLOW_DIVISORS = (4, 1)  # those of a case whose calls take long
LONG_CALL_S = 0.1
PACKED = "packed sequences have the lengths that were chosen"
COMPILES = "compiled anew for each shape (name it with --backends to try)"


@dataclass(frozen=True, slots=True)
class Use:
    """The memory of a case at one size of a dimension.

    input_bytes: operands, parameters, and the incoming gradient of a pass with gradients.
    result_bytes: output, final state, and the gradients of operands and parameters.
    parameter_bytes: None for an operation, whose parameters are operands.
    """

    size: int
    input_bytes: int
    result_bytes: int
    parameter_bytes: int | None
    memory: Memory
    call_s: float


def measure_memory(case: Case, context: Context) -> Record:
    """Measure the memory of a case that is right.

    peak_bytes: the most bytes that a call of the pass held at once, beyond the operands and the incoming
        gradient. Results and gradients of operands count.
    declared_peak_bytes: the same by the backend's declarations: workspace, what is kept for backward, results
        and gradients. None for a block, whose other parts declare nothing.
    peak_over_declared: the ratio of the two.
    forward_peak_bytes: the peak of a forward call without a graph.
    saved_bytes: distinct storages that autograd saved for backward, without the operands.
    graph_bytes: everything held between forward and backward: results, and what no hook sees.
    left_bytes: still held after a second call, when its results are gone: a cache, or a leak, which `doubts`
        says. If a call takes long, it is the first one at this length.
    state_bytes: the final state of the recurrence; that of attention grows with T.
    operand_bytes, parameter_bytes: the operands; at level block x alone, and the parameters apart.
    growth_exponent: the p of peak ∝ T^p, fitted to `peaks_bytes` over `lengths`. At level block it is
        the p of peak = constant + c·T^p, since the gradients of parameters do not grow.
    batch_exponent: the same for B, fitted to two batches.
    batch_T: the length of these batches, the shortest if a call takes long. Their memory at the case's length
        is then taken to be as many times larger as that of the case's own batch.
    largest_T, largest_B: the largest size that ran, within an eighth, the other sizes being the case's. A
        lower bound if `largest_T_reason` says why the search ended.
    predicted_largest_T, predicted_largest_B: the largest size that fits by a constant and a power of it,
        fitted to the same peaks.
    growth_exponent_low, growth_exponent_high, predicted_largest_T_low, predicted_largest_T_high: of an
        operation, the powers from one length to the next, and the sizes by these, where they do not agree.
    declared_largest_T, declared_largest_B: the same by the declarations.

    The backend is verified at the shortest of the lengths only, because the oracle takes memory and time. One
    that is compiled anew for each shape is called at two lengths and one batch, unless backends or sizes are
    named.
    """
    lengths = measured_lengths(case, context)
    verdict, buffers = Judging(at_size(case, "T", lengths[0]), context).first()
    verdict = replace(verdict, output=None)
    del buffers  # and the output: the search for the largest sizes needs the room
    if verdict.status is not Status.OK:
        return context.record(case, verdict)
    numbers: dict[str, Any] = {"verified_T": lengths[0], "peak_bytes": None}
    slow, uses = is_slow(case), list[Use]()
    spared = PACKED if is_packed(case) else COMPILES if spares_shapes(case, context) else None
    for length in lengths:
        there = at_size(case, "T", length)
        values = context.subject(there).values(0, with_state=False)
        used, reason = use_of(there, context, values, "T", again=not slow)
        if used is None:
            return context.record(case, verdict, **numbers, peak_bytes_reason=reason)
        uses.append(used)
    last = uses[-1]
    growth = growth_of(uses)
    declared = declared_peak_bytes(case, last.result_bytes)
    numbers |= {
        "peak_bytes": last.memory.peak_bytes,
        "declared_peak_bytes": declared,
        "peak_over_declared": last.memory.peak_bytes / declared if declared else None,
        "left_bytes": last.memory.left_bytes,
        "doubts": _doubts(case, last, again=not slow),
        "lengths": list(lengths),
        "peaks_bytes": [used.memory.peak_bytes for used in uses],
        "declared_peaks_bytes": declared
        and [declared_peak_bytes(at_size(case, "T", used.size), used.result_bytes) for used in uses],
        "growth_exponent": _exponent(uses, growth if case.level == "block" else None),
        "operand_bytes": sum(each.nbytes for each in _operands(case, values)),
        "parameter_bytes": last.parameter_bytes,
        **_forward_and_graph(case, context, values, last, again=not slow),
    }
    work = {dimension: flops_exponent(case, context, values, dimension) for dimension in ("T", "B")}
    del values
    base = uses[0] if slow else last  # fewer steps take a loop less time, and fewer sequences do not
    batches = [] if spared else _batches(at_size(case, "T", base.size), context, base, again=not slow)
    numbers |= {"batch_exponent": _exponent(batches, None), "batch_T": base.size if batches else None}
    batches = [scaled(used, base, last) for used in batches]
    batch_growth = growth_of(batches)
    capacity = free_bytes(context.device)
    for dimension, grown, small in (("T", growth, uses), ("B", batch_growth, batches)):
        numbers |= largest_sizes(
            case,
            context,
            dimension,
            grown,
            declared_total(case, dimension, small),
            capacity_bytes=capacity,
            small=small[0].size if small else 1,
            call_s=last.call_s,
            work_exponent=work[dimension],
            untried=spared or (f"a call takes {last.call_s:.2g} s" if slow else None),
        )
    numbers |= ranges(*_measured(uses), capacity) if case.level == "op" else {}
    context.spoiled |= _keeps_memory(context, [*uses, *batches])
    return context.record(case, verdict, capacity_bytes=capacity, **numbers)


def measured_lengths(case: Case, context: Context) -> tuple[int, ...]:
    """List the case's length, and its half and quarter, or the latter alone, if the backend takes them.

    Packed sequences have one length together.
    """
    if is_packed(case):
        return (case.shape["T"],)
    divisors = SLOW_DIVISORS if is_slow(case) or spares_shapes(case, context) else DIVISORS
    lengths = sorted({max(1, case.shape["T"] // divisor) for divisor in divisors})
    refused = context.backend(case).lengths
    return tuple(T for T in lengths if case.shape["T"] == T or refused is None or refused(T) is None)


def is_packed(case: Case) -> bool:
    return case.packing != UNPACKED


def spares_shapes(case: Case, context: Context) -> bool:
    """Tell whether a case is measured at few shapes, since a GPU's code is compiled for each."""
    return compiles_per_shape(case) and not context.specific


def compiles_per_shape(case: Case) -> bool:
    """Tell whether a case's backend is compiled anew for each shape."""
    return case.device != "cpu" and registry.backend(case.owner, case.backend).compiles_per_shape


def is_slow(case: Case) -> bool:
    """Tell whether a case's call on a GPU is predicted to take long, as that of a loop over many steps."""
    return case.device != "cpu" and predicted_call_s(case) > LONG_CALL_S


def use_of(
    case: Case, context: Context, values: Values, dimension: str, *, again: bool
) -> tuple[Use | None, str | None]:
    """Measure the memory of a call of the case, whose size of the dimension is already the wanted one.

    again: whether it is the second call that is measured; the first one fills the caches.
    """
    call = call_of(case.pass_, context.function(case), values)
    memory, reason, call_s = _traced(call, context, again=again)
    if memory is None:
        return None, reason
    operands = [*_operands(case, values), *_parameters(case, values)]
    gradients = sum(each.nbytes for each in operands) if case.gradients else 0
    incoming = values.grad_output.nbytes
    results = incoming + (0 if values.grad_state is None else values.grad_state.nbytes)
    return Use(
        case.shape[dimension],
        sum(each.nbytes for each in operands) + (incoming if case.gradients else 0),
        results + gradients,
        sum(each.nbytes for each in _parameters(case, values)) if case.level == "block" else None,
        memory,
        call_s,
    ), None


def growth_of(uses: Sequence[Use]) -> Growth | None:
    """Fit how the memory of a case grows with the dimension whose sizes were measured."""
    return Growth.fitted(*_measured(uses))


def _measured(uses: Sequence[Use]) -> tuple[list[int], list[int], list[int]]:
    """List the sizes, the bytes of their operands and their peaks."""
    inputs = [used.input_bytes for used in uses]
    return [used.size for used in uses], inputs, [used.memory.peak_bytes for used in uses]


def _exponent(uses: Sequence[Use], growth: Growth | None) -> float | None:
    """Fit the power of the size by which the peaks grow; that of `growth`, beside its constant, if given."""
    if growth is not None or not uses:
        return growth.exponent if growth else None
    return growth_exponent([used.size for used in uses], [used.memory.peak_bytes for used in uses])


def declared_peak_bytes(case: Case, result_bytes: float) -> float | None:
    """Add results and gradients to the declared bytes; None for a block, or without declarations."""
    declared = declared_bytes(case) if case.level == "op" else None
    return None if declared is None else declared + result_bytes


def declared_total(case: Case, dimension: str, uses: Sequence[Use]) -> Callable[[int], float] | None:
    """Make a function of a dimension's size: the declared peak, with the operands.

    uses: those at two sizes or more, which tell how operands and results grow.
    """
    if len(uses) < 2 or declared_peak_bytes(case, 0) is None:
        return None
    small, large = uses[0], uses[-1]

    def total(size: int) -> float:
        share = (size - small.size) / (large.size - small.size)
        known = small.input_bytes + share * (large.input_bytes - small.input_bytes)
        results = small.result_bytes + share * (large.result_bytes - small.result_bytes)
        return known + (declared_peak_bytes(at_size(case, dimension, size), results) or 0.0)

    return total


def _operands(case: Case, values: Values) -> list[Tensor]:
    """List the operands: of a block, x alone."""
    return [values.tensors["x"]] if case.level == "block" else list(values.tensors.values())


def _parameters(case: Case, values: Values) -> list[Tensor]:
    """List the parameters of a block."""
    return [value for name, value in values.tensors.items() if case.level == "block" and name != "x"]


def _traced(
    call: Callable[[], Any], context: Context, *, again: bool
) -> tuple[Memory | None, str | None, float]:
    """Trace the memory of a call, and take its time."""
    if again:
        call()
    begin = time.monotonic()
    memory, reason = trace(call, context.device)
    return memory, reason, time.monotonic() - begin


def scaled(used: Use, base: Use, last: Use) -> Use:
    """Scale the memory of a batch from one length to another, by that of another batch at both lengths.

    base, last: the memory of that batch at the length of `used`, and at the other.
    """

    def bytes_of(measured: int, before: int, after: int) -> int:
        return round(measured * after / before) if before else measured

    peak = bytes_of(used.memory.peak_bytes, base.memory.peak_bytes, last.memory.peak_bytes)
    return replace(
        used,
        input_bytes=bytes_of(used.input_bytes, base.input_bytes, last.input_bytes),
        result_bytes=bytes_of(used.result_bytes, base.result_bytes, last.result_bytes),
        memory=replace(used.memory, peak_bytes=peak),
    )


def _batches(case: Case, context: Context, own: Use, *, again: bool) -> list[Use]:
    """Measure the batch and its half, or its double if the half is one sequence; skip sizes that do not fit.

    One sequence says little of many: tensors of one are views where those of many are copies.

    own: the memory of the case itself.
    """
    B = case.shape["B"]
    found = []
    for size in (2, 4) if B == 1 else (B // 2, B) if B > 3 else (B, 2 * B):
        if size == B:
            found.append(replace(own, size=B))
            continue
        there = at_size(case, "B", size)
        try:
            values = context.subject(there).values(0, with_state=False)
            used, _ = use_of(there, context, values, "B", again=again)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            used = None
        found += [] if used is None else [used]
    return found


def _forward_and_graph(
    case: Case, context: Context, values: Values, last: Use, *, again: bool
) -> dict[str, Any]:
    """Measure the memory of a forward call without a graph, of another call's graph, and of the final state.

    last: the memory of the case itself, which may be such a forward call.
    """
    if not case.gradients:
        return {
            "forward_peak_bytes": last.memory.peak_bytes,
            "state_bytes": _state_bytes(case, context, values),
        }
    function = context.function(case)
    forward, _, _ = _traced(call_of("forward", function, values), context, again=again)
    leaves = {name: value.detach().requires_grad_() for name, value in values.varying.items()}
    held: list[Any] = []
    saved: list[int] = []

    def call() -> None:
        held.append(function(**{**values.operands, **leaves}))

    def hold() -> None:
        saved.append(saved_bytes(call, values.tensors.values()))

    graph, _ = trace(hold, context.device)
    state = held[0][1] if case.level == "op" else None
    state_bytes = state.nbytes if isinstance(state, Tensor) else None
    held.clear()
    return {
        "forward_peak_bytes": forward.peak_bytes if forward else None,
        "graph_bytes": graph.left_bytes if graph else None,
        "saved_bytes": saved[0],
        "state_bytes": _state_bytes(case, context, values) if state_bytes is None else state_bytes,
    }


def _state_bytes(case: Case, context: Context, values: Values) -> int:
    """Count the bytes of the final state that the backend returns; a recurrence without one has none."""
    if not context.recurrence(case).has_state:
        return 0
    operands = context.subject(case).lower(values.operands)
    with torch.no_grad():
        _, state = context.backend(case).function(
            **{name: value for name, value in operands.items() if name != "initial_state"}
        )
    return state.nbytes if isinstance(state, Tensor) else 0


def flops_exponent(case: Case, context: Context, values: Values, dimension: str) -> float:
    """Find the power of a dimension's size by which the work of the recurrence grows, from its cost."""
    known = specs(context.subject(case).lower(values.operands))
    cost = context.recurrence(case).cost

    def flops(size: int) -> float:
        return cost(context.operand_shape(at_size(case, dimension, size)), known, case.pass_).flops

    once, twice = flops(case.shape[dimension]), flops(2 * case.shape[dimension])
    return math.log2(twice / once) if once > 0 else 1.0


def _doubts(case: Case, used: Use, *, again: bool) -> list[str]:
    """Say that a call left memory behind, in bytes per token, as a leak is told from a cache."""
    left = used.memory.left_bytes
    if left <= 0:
        return []
    share = left / (case.shape["B"] * case.shape["T"])
    which = "a second call" if again else "a call"
    held = f"{left:,} bytes are still held after {which}, {share:.3g} per token"
    return [f"{held}: a leak, or a cache that grows"]


def _keeps_memory(context: Context, uses: Sequence[Use]) -> bool:
    """Tell whether calls on a GPU left memory behind, which later cases should not have to share."""
    return context.device.startswith("cuda") and any(used.memory.left_bytes > 0 for used in uses)
