"""The largest length and batch that fit into memory: predicted by growth, and found by running them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssmperf import Case, Unsupported
from ssmperf.suitekit import Context, Values, available_memory_bytes, call_of, is_out_of_memory

from .memory_growth import Growth, apart, growths

SEARCH_S = 1.0  # of the search along one dimension
PROBE = 0.25  # of that time, at most, for a call at a size between the last one and one that seems too slow
GRID = 8  # the largest size is known to one part in so many
LARGEST = 2**26
POWERS_AGREE, PREDICTIONS_AGREE = 1.25, 2.0  # if they are within these factors
ON_CPU = "not tried on a CPU, where memory that runs out takes the machine with it"


class SearchEnded(Exception):
    """A search cannot go on; its findings so far stand."""


def largest_fitting(
    bytes_of: Callable[[int], float], capacity_bytes: int, start: int, *, doubling: bool = False
) -> int | None:
    """Find the largest size whose predicted bytes fit; None if not even 1 does."""
    found, _ = search(lambda size: bytes_of(size) <= capacity_bytes, start, doubling=doubling)
    return found


def ranges(
    sizes: Sequence[int], inputs: Sequence[int], peaks: Sequence[int], capacity_bytes: int
) -> dict[str, float]:
    """Give the ends between which the power of T and the predicted T lie; nothing if the lengths agree.

    It is meant for operations: the parameters of a block make every power grow with T.
    """
    allowed = growths(sizes, inputs, peaks)
    found = [largest_fitting(each.predicted_bytes, capacity_bytes, sizes[-1]) or 1 for each in allowed]
    powers = apart([each.exponent for each in allowed[1:]], POWERS_AGREE)
    predicted = apart(found, PREDICTIONS_AGREE)
    if not powers or not predicted:
        return {}
    return {
        "growth_exponent_low": powers[0],
        "growth_exponent_high": powers[1],
        "predicted_largest_T_low": predicted[0],
        "predicted_largest_T_high": predicted[1],
    }


def search(
    fits: Callable[[int], bool],
    start: int,
    *,
    most: int = LARGEST,
    doubling: bool = False,
    near: bool = False,
) -> tuple[int | None, int | None]:
    """Find the largest size that fits and the least that does not: by growing steps, then bisection.

    fits: may raise SearchEnded to end the search with its findings so far.
    most: no size above it is tried.
    doubling: only start·2^n are legal sizes.
    near: whether `start` is expected to be near the largest, so that the first steps are small.
    """
    low: int | None = None
    high: int | None = None
    size = start
    ratio = 1 + 1 / GRID if near and not doubling else 2.0
    try:
        while size >= 1:
            if fits(size):
                low = size
            else:
                high = size
            if low is None:
                size, ratio = min(size - 1, int(size / ratio)), min(2.0, ratio**2)
            elif high is None:
                if low >= most or (doubling and 2 * low > most):
                    break
                longer = 2 * low if doubling else min(max(low + 1, int(low * ratio)), most)
                size, ratio = longer, min(2.0, ratio**2)
            elif doubling or high - low <= max(1, low // GRID):
                break
            else:
                size = (low + high) // 2
    except SearchEnded:
        return low, high
    return low, high


def at_size(case: Case, dimension: str, size: int) -> Case:
    """Copy a case with another size of one dimension."""
    return replace(case, shape=case.shape.with_(**{dimension: size}))


def free_bytes(device: str) -> int:
    """Find the memory of a device that is free, or of the host if it is a CPU."""
    if not device.startswith("cuda"):
        return available_memory_bytes()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


class Attempt:
    """Says whether a size fits, by running it.

    An instance raises SearchEnded if a call would outlast the search, judged by the time of the last one, or
    if a size fails for another reason than a lack of memory. Since a small call may take the host's time
    rather than the device's, sizes between are run before a large one is given up.

    run: runs a size and returns when the device has done it. budget_s: the time of the search.
    known: a size, and the seconds that its call took. exponent: power of the size by which the time grows.
    reason: why the search ended early, if it did. broken: whether an error may have damaged the process.
    """

    def __init__(
        self,
        run: Callable[[int], None],
        *,
        known: tuple[int, float],
        exponent: float = 1.0,
        budget_s: float = SEARCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._clock, self._exponent = run, clock, max(1.0, exponent)
        self._last, self._budget_s = known, budget_s
        self._end = clock() + budget_s
        self.reason: str | None = None
        self.broken = False

    def __call__(self, size: int) -> bool:
        while self._needs_s(size) > self._budget_s and (between := self._probe(size)):
            self._timed(between)
        needs_s = self._needs_s(size)
        if needs_s > self._budget_s:
            raise self._ended(f"not searched further: a call at {size} would take {needs_s:.2g} s")
        if self._clock() + needs_s > self._end:
            raise self._ended(f"the search ended after {self._budget_s:g} s")
        return self._timed(size)

    def _needs_s(self, size: int) -> float:
        before, took_s = self._last
        return took_s * float((size / before) ** self._exponent)

    def _probe(self, size: int) -> int | None:
        """Find the largest size, a power of two times the last one, that should take little; None if none."""
        before, between = self._last[0], self._last[0]
        while 2 * between < size and self._needs_s(2 * between) <= PROBE * self._budget_s:
            between *= 2
        return between if between > before else None

    def _timed(self, size: int) -> bool:
        begin = self._clock()
        fits = self._fits(size)
        self._last = (size, self._clock() - begin)
        return fits

    def _fits(self, size: int) -> bool:
        try:
            self._run(size)
        except Unsupported as error:
            raise self._ended(f"the backend refuses {size}: {error}") from error
        except Exception as error:
            if is_out_of_memory(error):
                return False
            self.broken = True
            what = str(error).partition("\n")[0]
            raise self._ended(f"{size} failed, but not for memory: {type(error).__name__}: {what}") from error
        return True

    def _ended(self, reason: str) -> SearchEnded:
        self.reason = reason
        return SearchEnded(reason)


def run_at(case: Case, context: Context, dimension: str, small: int) -> Callable[[int], None]:
    """Make a function that runs a case at any size of a dimension, on operands that repeat drawn ones.

    Drawing them at that size would take more time, and more memory than some backends: a model's operands
    come from text through its projections.

    small: the size at which operands are drawn.
    """
    source, larger = (
        context.subject(at_size(case, dimension, size)).values(0, with_state=False)
        for size in (small, 2 * small)
    )
    shapes = {name: tensor.shape for name, tensor in larger.tensors.items()}
    gradient_shape = larger.grad_output.shape
    del larger

    def run(size: int) -> None:
        operands = {
            name: _resized(value, shapes[name], small, size) if isinstance(value, Tensor) else value
            for name, value in source.operands.items()
        }
        gradient = source.grad_output
        if case.gradients:
            gradient = _resized(gradient, gradient_shape, small, size)
        function = context.function(at_size(case, dimension, size))
        try:
            call_of(case.pass_, function, Values(operands, gradient, None))()
        finally:
            if context.device.startswith("cuda"):
                torch.cuda.synchronize(context.device)

    return run


def _resized(tensor: Tensor, doubled: Sequence[int], small: int, size: int) -> Tensor:
    """Repeat a tensor along the axes whose size depends on a dimension, in the same order in memory.

    doubled: the tensor's shape at 2 · small of the dimension.
    """
    for axis, (before, after) in enumerate(zip(tensor.shape, doubled, strict=True)):
        if before != after:
            tensor = _repeated(tensor, axis, before + (after - before) * (size - small) // small)
    return tensor


def _repeated(tensor: Tensor, axis: int, count: int) -> Tensor:
    """Repeat a tensor along one axis until it has `count` entries there."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    sizes = [count if dim == axis else tensor.shape[dim] for dim in order]
    made = tensor.new_empty(sizes).permute([order.index(dim) for dim in range(tensor.dim())])
    filled = min(count, tensor.shape[axis])
    made.narrow(axis, 0, filled).copy_(tensor.narrow(axis, 0, filled))
    while filled < count:
        more = min(filled, count - filled)
        made.narrow(axis, filled, more).copy_(made.narrow(axis, 0, more))
        filled += more
    return made


def largest_sizes(
    case: Case,
    context: Context,
    dimension: str,
    growth: Growth | None,
    declared_bytes: Callable[[int], float] | None,
    *,
    capacity_bytes: int,
    small: int,
    call_s: float,
    work_exponent: float = 1.0,
    untried: str | None = None,
) -> dict[str, Any]:
    """Find the largest size of a dimension that fits: by growth, by declarations, and by running it.

    declared_bytes: the memory that a size needs by the backend's declarations; None if it declares none.
    small: a size at which operands are drawn to be repeated. call_s: how long the case's call took.
    work_exponent: the power of the size by which the work of a call grows.
    untried: why no size is run; on a CPU none is.
    """
    own = case.shape[dimension]
    doubling = dimension == "T" and context.backend(case).lengths is not None
    predicted = declared = None
    if growth is not None:
        predicted = largest_fitting(growth.predicted_bytes, capacity_bytes, own, doubling=doubling)
    if declared_bytes is not None:
        declared = largest_fitting(declared_bytes, capacity_bytes, own, doubling=doubling)
    found: dict[str, Any] = {
        f"predicted_largest_{dimension}": predicted,
        f"declared_largest_{dimension}": declared,
        f"largest_{dimension}": None,
    }
    if not context.device.startswith("cuda"):
        return {**found, f"largest_{dimension}_reason": ON_CPU}
    if untried:
        return {**found, f"largest_{dimension}_reason": f"not tried: {untried}"}
    if context.spoiled:
        return {**found, f"largest_{dimension}_reason": "not tried: an earlier call may have left errors"}
    try:
        run = run_at(case, context, dimension, small)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {**found, f"largest_{dimension}_reason": "not tried: no memory for operands to repeat"}
    exponent = work_exponent if growth is None else max(work_exponent, growth.exponent)
    attempt = Attempt(_emptying(run), known=(own, call_s), exponent=exponent)
    # a step below, which should fit; the next one is then the predicted size itself, and the last
    start = own if predicted is None or doubling else max(1, predicted * GRID // (GRID + 1))
    largest, failed = search(attempt, start, doubling=doubling, near=predicted is not None)
    context.spoiled |= attempt.broken
    if largest is not None and failed is None and attempt.reason is None:
        attempt.reason = f"no size above {LARGEST:,} is tried"
    return {
        **found,
        f"largest_{dimension}": largest,
        f"least_failed_{dimension}": failed,
        f"largest_{dimension}_reason": attempt.reason,
    }


def _emptying(run: Callable[[int], None]) -> Callable[[int], None]:
    """Return the caching allocator's free memory to the device before each run, since sizes differ."""

    def emptied(size: int) -> None:
        torch.cuda.empty_cache()
        run(size)

    return emptied
