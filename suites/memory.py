"""How much memory does each backend take, how does that grow with the length, and where does it end?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
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
    available_memory_bytes,
    call_of,
    is_out_of_memory,
    product,
    registry,
    saved_bytes,
    subjects,
    suite,
    trace,
)

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

LADDER = (4, 2, 1)  # lengths measured: fractions of the case's
SEARCH_S = 3.0  # for the largest length
GRID = 8  # the largest length is known to one part in so many
LONGEST = 2**26
PASSES = ("forward_backward", "forward")
ON_CPU = "not tried on a CPU, where memory that runs out takes the machine with it"


@suite("memory", section=SECTION, fresh_process=True)
class MemoryUse:
    """One case a shape, dtype and pass, in a process of its own.

    peak_bytes, forward_peak_bytes: of the case's pass, and of a forward call without a graph: most bytes
        held at once beyond the operands and the gradient that comes in; results and gradients count.
    saved_bytes: distinct storages that autograd saved for backward, operands not counted.
    graph_bytes: all that is held between forward and backward: results, and what no hook sees.
    left_bytes: still held after a second call and its results are gone: a cache, or a leak.
    growth_exponent: p of peak ∝ T^p, fitted over `lengths`, with their `peaks_bytes`.
    largest_T: the largest length that ran, within an eighth. predicted_largest_T: by the fitted growth.

    The backend is verified at the shortest of these lengths only, for the oracle takes memory and time.
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
                shapes=longest if selection.size.thinned else tuple,
                about=subjects(selection, families=False),
            )
            if selection.passes or case.pass_ == _widest_pass(case)
        )

    def measure(self, case: Case, context: Context) -> Record:
        lengths = ladder(case, context)
        verdict, _ = Judging(at(case, lengths[0]), context).first()
        if verdict.status is not Status.OK:
            return context.record(case, verdict)
        values = [context.subject(at(case, T)).values(0, with_state=False) for T in lengths]
        traced = [_traced(case, context, held, case.pass_) for held in values]
        numbers: dict[str, Any] = {"verified_T": lengths[0], "peak_bytes": None}
        memories = [memory for memory, _ in traced if memory is not None]
        if len(memories) < len(traced):
            reason = next(reason for memory, reason in traced if memory is None)
            return context.record(case, verdict, **numbers, peak_bytes_reason=reason)
        peaks = [memory.peak_bytes for memory in memories]
        numbers |= {
            "peak_bytes": peaks[-1],
            "left_bytes": memories[-1].left_bytes,
            "lengths": list(lengths),
            "peaks_bytes": peaks,
            "growth_exponent": growth_exponent(lengths, peaks),
            "operand_bytes": sum(_nbytes(tensor) for tensor in values[-1].tensors.values()),
            **_around(case, context, values[-1]),
        }
        del values
        return context.record(case, verdict, **numbers, **_largest(case, context, numbers))


def longest(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shape of the largest T alone: its ladder covers the others."""
    return (max(shapes, key=lambda shape: shape["T"]),)


def at(case: Case, T: int) -> Case:
    """The same case at another length."""
    return replace(case, shape=case.shape.with_(T=T))


def ladder(case: Case, context: Context) -> tuple[int, ...]:
    """The case's length and its half and quarter, as far as the backend takes them."""
    lengths = sorted({max(1, case.shape["T"] // part) for part in LADDER})
    refused = context.backend(case).lengths
    return tuple(T for T in lengths if case.shape["T"] == T or refused is None or refused(T) is None)


def growth_exponent(lengths: tuple[int, ...], peaks: list[int]) -> float | None:
    """The slope of log peak over log T, by least squares; None where there is none to tell."""
    if len(lengths) < 2 or min(peaks) <= 0:
        return None
    x, y = ([math.log(value) for value in values] for values in (lengths, peaks))
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    spread = math.fsum((value - mean_x) ** 2 for value in x)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def search(
    fits: Callable[[int], bool], start: int, *, most: int = LONGEST, doubling: bool = False
) -> tuple[int | None, int | None]:
    """The largest length seen to fit and the least seen not to, by doubling or halving, then bisection.

    fits: raises TimeoutError to end the search with what is known. doubling: only start·2^n are legal.
    """
    low: int | None = None
    high: int | None = None
    length = start
    try:
        while length >= 1:
            if fits(length):
                low = length
            else:
                high = length
            if low is None:
                length //= 2
            elif high is None:
                if low >= most:
                    break
                length = 2 * low if doubling else min(2 * low, most)
            elif doubling or high - low <= max(1, low // GRID):
                break
            else:
                length = (low + high) // 2
    except TimeoutError:
        return low, high
    return low, high


def _widest_pass(case: Case) -> str:
    """Forward and backward, and forward alone for a backend that has no other pass (or none at all here)."""
    owner = case.model or case.recurrence
    if registry.import_problem(owner, case.backend):
        return PASSES[0]
    passes = registry.backend(owner, case.backend).passes
    return next((pass_ for pass_ in PASSES if pass_ in passes), PASSES[0])


def _traced(case: Case, context: Context, values: Values, pass_: str) -> tuple[Memory | None, str | None]:
    """The memory of a call of this pass; the call before it fills the caches."""
    call = call_of(pass_, context.backend(case).function, values)
    call()
    return trace(call, context.device)


def _around(case: Case, context: Context, values: Values) -> dict[str, Any]:
    """What a forward call takes without a graph, and what one with a graph keeps."""
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


def _largest(case: Case, context: Context, numbers: dict[str, Any]) -> dict[str, Any]:
    """The largest length that fits: by the model of memory, and by running it where that is safe."""
    on_cuda = context.device.startswith("cuda")
    capacity = _free_bytes(context.device)
    T, exponent = case.shape["T"], numbers["growth_exponent"]
    doubling = context.backend(case).lengths is not None
    predicted = None
    if exponent is not None:

        def needed(length: int) -> float:
            longer = length / T
            return float(numbers["operand_bytes"] * longer + numbers["peak_bytes"] * longer**exponent)

        predicted, _ = search(lambda length: needed(length) <= capacity, T, doubling=doubling)
    found: dict[str, Any] = {"predicted_largest_T": predicted, "capacity_bytes": capacity}
    if not on_cuda:
        return {**found, "largest_T": None, "largest_T_reason": ON_CPU}
    attempt = _Attempt(case, context)
    start = T if predicted is None or doubling else predicted
    largest, failed = search(attempt, start, doubling=doubling)
    return {**found, "largest_T": largest, "least_failed_T": failed, "largest_T_reason": attempt.reason}


class _Attempt:
    """Whether a length really fits. TimeoutError where the next attempt would outlast the search."""

    def __init__(self, case: Case, context: Context) -> None:
        self.case, self.context = case, context
        self.reason: str | None = None
        self._end = time.monotonic() + SEARCH_S
        self._last: tuple[int, float] | None = None

    def __call__(self, T: int) -> bool:
        begin = time.monotonic()
        T_before, took_s = self._last or (T, 0.0)
        if begin + took_s * T / T_before > self._end:
            self.reason = f"the search ended after {SEARCH_S:g} s"
            raise TimeoutError(self.reason)
        fits = self._runs(T)
        torch.cuda.empty_cache()
        self._last = (T, time.monotonic() - begin)
        return fits

    def _runs(self, T: int) -> bool:
        case, context = at(self.case, T), self.context
        try:
            values = context.subject(case).values(0, with_state=False)
            call_of(case.pass_, context.backend(case).function, values)()
            torch.cuda.synchronize(context.device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return False
        return True


def _free_bytes(device: str) -> int:
    if not device.startswith("cuda"):
        return available_memory_bytes()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
