"""The largest length that fits into memory: predicted by fitted growth, and found by running it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ssmperf import Case, Context, available_memory_bytes, call_of, is_out_of_memory

SEARCH_S = 3.0
GRID = 8  # the largest length is known to one part in so many
LONGEST = 2**26
ON_CPU = "not tried on a CPU, where memory that runs out takes the machine with it"


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory at length T, and the exponent by which the peak grows."""

    T: int
    operand_bytes: int
    peak_bytes: int
    exponent: float

    def predicted_bytes(self, length: int) -> float:
        """Predict the memory that a length needs, operands included."""
        longer = length / self.T
        return self.operand_bytes * longer + self.peak_bytes * float(longer**self.exponent)


def largest_length(case: Case, context: Context, growth: Growth | None) -> dict[str, Any]:
    """Find the largest length that fits: by the growth of memory, if it is known, and by running it.

    On a CPU nothing is run.
    """
    T = case.shape["T"]
    capacity = _free_bytes(context.device)
    doubling = context.backend(case).lengths is not None
    predicted = None
    if growth is not None:
        predicted, _ = search(lambda length: growth.predicted_bytes(length) <= capacity, T, doubling=doubling)
    found: dict[str, Any] = {"predicted_largest_T": predicted, "capacity_bytes": capacity}
    if not context.device.startswith("cuda"):
        return {**found, "largest_T": None, "largest_T_reason": ON_CPU}
    attempt = _Attempt(case, context)
    start = T if predicted is None or doubling else predicted
    largest, failed = search(attempt, start, doubling=doubling)
    return {**found, "largest_T": largest, "least_failed_T": failed, "largest_T_reason": attempt.reason}


def search(
    fits: Callable[[int], bool], start: int, *, most: int = LONGEST, doubling: bool = False
) -> tuple[int | None, int | None]:
    """Find the largest length that fits and the least that does not: by doubling or halving, then bisection.

    fits: may raise TimeoutError to end the search with what is known.
    most: no length above it is tried.
    doubling: only start·2^n are legal lengths.
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


def at_length(case: Case, T: int) -> Case:
    """Copy a case with another length."""
    return replace(case, shape=case.shape.with_(T=T))


class _Attempt:
    """Says whether a length fits, by running the case at it.

    A call raises TimeoutError if it would outlast the search, judged by the time of the last call.
    reason: why the search ended early, if it did.
    """

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
        case, context = at_length(self.case, T), self.context
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
