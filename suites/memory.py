"""How much memory does each backend take, how does it grow with the length, and what length is too long?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from ssmperf import (
    Case,
    Chart,
    Context,
    Judging,
    Memory,
    Record,
    Section,
    Selection,
    Shape,
    Status,
    Values,
    call_of,
    product,
    registry,
    saved_bytes,
    subjects,
    suite,
    trace,
)

from .largest_length import Growth, at_length, largest_length

SECTION = Section(
    title="Memory",
    question="How much memory does each backend take beyond its operands, and how does that grow with T?",
    columns=(
        "peak_bytes",
        "forward_peak_bytes",
        "saved_bytes",
        "graph_bytes",
        "left_bytes",
        "growth_exponent",
        "largest_T",
        "predicted_largest_T",
    ),
    rank="peak_bytes",
    charts=(Chart(x="lengths", y="peaks_bytes", title="Peak memory against length"),),
)

DIVISORS = (4, 2, 1)  # the lengths measured are the case's, divided by these
PASSES = ("forward_backward", "forward")


@suite("memory", section=SECTION, fresh_process=True)
class MemoryUse:
    """One case per shape, dtype and pass, in a process of its own.

    peak_bytes: the most bytes that a call of the pass held at once, beyond the operands and the incoming
        gradient. Results and gradients of operands count.
    forward_peak_bytes: the same for a forward call without a graph.
    saved_bytes: distinct storages that autograd saved for backward, without the operands.
    graph_bytes: everything held between forward and backward: results, and what no hook sees.
    left_bytes: still held after a second call, when its results are gone: a cache, or a leak.
    growth_exponent: the p of peak ∝ T^p, fitted to `peaks_bytes` over `lengths`.
    largest_T: the largest length that ran, within an eighth.
    predicted_largest_T: the largest length that fits by the fitted growth.

    The backend is verified at the shortest of these lengths only, because the oracle takes memory and time.
    """

    name: str
    section: Section
    fresh_process: bool

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        return (
            case
            for case in product(
                selection,
                self.name,
                passes=PASSES,
                dtypes=("float32",) if on_cpu else ("float32", "bfloat16"),
                cache="hot",
                shapes=longest if selection.scale.thinned else tuple,
                about=subjects(selection, families=False),
            )
            if selection.passes or case.pass_ == _widest_pass(case)
        )

    def measure(self, case: Case, context: Context) -> Record:
        lengths = measured_lengths(case, context)
        verdict, _ = Judging(at_length(case, lengths[0]), context).first()
        if verdict.status is not Status.OK:
            return context.record(case, verdict)
        values = [context.subject(at_length(case, T)).values(0, with_state=False) for T in lengths]
        traced = [_traced(case, context, held, case.pass_) for held in values]
        numbers: dict[str, Any] = {"verified_T": lengths[0], "peak_bytes": None}
        memories = [memory for memory, _ in traced if memory is not None]
        if len(memories) < len(traced):
            reason = next(reason for memory, reason in traced if memory is None)
            return context.record(case, verdict, **numbers, peak_bytes_reason=reason)
        peaks = [memory.peak_bytes for memory in memories]
        exponent = growth_exponent(lengths, peaks)
        operand_bytes = sum(_nbytes(tensor) for tensor in values[-1].tensors.values())
        numbers |= {
            "peak_bytes": peaks[-1],
            "left_bytes": memories[-1].left_bytes,
            "lengths": list(lengths),
            "peaks_bytes": peaks,
            "growth_exponent": exponent,
            "operand_bytes": operand_bytes,
            **_forward_and_graph(case, context, values[-1]),
        }
        del values  # the search for the largest length needs the room
        growth = None
        if exponent is not None:
            growth = Growth(lengths[-1], operand_bytes, peaks[-1], exponent)
        return context.record(case, verdict, **numbers, **largest_length(case, context, growth))


def longest(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take the shape of the largest T alone: it is measured at shorter lengths too."""
    return (max(shapes, key=lambda shape: shape["T"]),)


def measured_lengths(case: Case, context: Context) -> tuple[int, ...]:
    """List the case's length, and its half and quarter if the backend takes these lengths."""
    lengths = sorted({max(1, case.shape["T"] // divisor) for divisor in DIVISORS})
    refused = context.backend(case).lengths
    return tuple(T for T in lengths if case.shape["T"] == T or refused is None or refused(T) is None)


def growth_exponent(lengths: tuple[int, ...], peaks: list[int]) -> float | None:
    """Fit the slope of log peak over log T by least squares; None if the peaks do not determine it."""
    if len(lengths) < 2 or min(peaks) <= 0:
        return None
    x, y = ([math.log(value) for value in values] for values in (lengths, peaks))
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((value - mean_x) ** 2 for value in x)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def _widest_pass(case: Case) -> str:
    """Choose forward and backward, or forward alone for a backend that has no backward pass."""
    owner = case.model or case.recurrence
    if registry.import_problem(owner, case.backend):
        return PASSES[0]
    passes = registry.backend(owner, case.backend).passes
    return next((pass_ for pass_ in PASSES if pass_ in passes), PASSES[0])


def _traced(case: Case, context: Context, values: Values, pass_: str) -> tuple[Memory | None, str | None]:
    """Trace the memory of a second call of this pass: the first one fills the caches."""
    call = call_of(pass_, context.backend(case).function, values)
    call()
    return trace(call, context.device)


def _forward_and_graph(case: Case, context: Context, values: Values) -> dict[str, Any]:
    """Measure the memory that a forward call takes without a graph, and that one with a graph keeps."""
    forward, _ = _traced(case, context, values, "forward")
    numbers: dict[str, Any] = {"forward_peak_bytes": forward.peak_bytes if forward else None}
    if not case.gradients:
        return numbers
    leaves = {name: value.detach().requires_grad_() for name, value in values.tensors.items()}
    function = context.backend(case).function
    held: list[Any] = []
    graph, _ = trace(lambda: held.append(function(**{**values.operands, **leaves})), context.device)
    held.clear()
    numbers["graph_bytes"] = graph.left_bytes if graph else None
    numbers["saved_bytes"] = saved_bytes(
        lambda: function(**{**values.operands, **leaves}), values.tensors.values()
    )
    return numbers


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
