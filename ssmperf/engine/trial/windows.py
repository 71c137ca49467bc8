"""The driver's own clock: windows of calls that a worker makes between two messages.

Everything here runs in the driver. Two windows of n and 3n calls take the same time around their calls, so
that the slope between them is the time of a call. It is measured twice. Calls on the same values find caches
warm: a timed call takes at least as long. In windows with 3n writes of fresh values, nothing is kept from an
earlier call. A write may take longer behind a call than behind a write; the time of two writes is taken off.

On a GPU, calls in a row wait for the host if that takes longer to issue them, while a timed call is issued
behind a spin of the device. So that spin is allowed: as long as the worker says that the host needs, but no
longer than the suite spins. A call that can be captured is replayed, too, which does not wait for the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ssmperf.engine.measure.device_clocks import MOST_LEAD_S

LEAST_S = 3e-3  # of a window: messages take a hundredth of it
LONG_S = 0.02  # a call that alone is a window
MOST_CALLS = 1 << 12
SLOPES = 3  # of each kind, of which the least counts: other processes make some longer
REPLAY_S = 1e-5  # that the host may take for the replay of a graph
ROW, REPLAYS = "calls in a row", "replays"  # kinds of calls in windows
MOST_BELOW = 0.3  # by which a median may be below the bound


def least_call_s(make: Callable[[int, int], None], now: Callable[[], float]) -> float:
    """Measure the least seconds that a call takes.

    make: lets the worker make so many calls, each of the first ones behind a write of fresh values; it takes
        both numbers, and returns when the worker says that it has. now: the driver's clock.
    """

    def window_s(calls: int, writes: int) -> float:
        began_s = now()
        make(calls, writes)
        return now() - began_s

    def on_fresh_values_s(calls: int) -> float:
        few_s, many_s = (window_s(count, 3 * calls) for count in (calls, 3 * calls))
        slope_s = (many_s - few_s) / (2 * calls)
        return slope_s - 2 * max(few_s / calls - slope_s, 0.0) / 3

    def on_the_same_values_s(calls: int) -> float:
        few_s, many_s = (window_s(count, 0) for count in (calls, 3 * calls))
        return (many_s - few_s) / (2 * calls)

    calls = 1
    while (seconds := window_s(calls, calls)) < LEAST_S and calls < MOST_CALLS:
        calls *= 2
    if seconds / calls > LONG_S:
        return max(seconds - 3 * window_s(0, calls) - LEAST_S, 0.0) / calls
    slopes = (min(slope(calls) for _ in range(SLOPES)) for slope in (on_fresh_values_s, on_the_same_values_s))
    return max(0.0, *slopes)


def clock_of(pid: int, device: str) -> Callable[[], float]:
    """Choose the clock for the windows of a worker.

    On a CPU it is the time that the kernel has given to the worker's main thread, the same on a busy machine.
    On a GPU, and where the kernel does not count it, it is the wall clock.
    """
    file = Path(f"/proc/{pid}/schedstat")
    if device.startswith("cuda") or not file.exists():
        return time.monotonic
    return lambda: int(file.read_text().split()[0]) / 1e9


def too_fast(median_s: float | None, issue_s: float | None, least_s: Mapping[str, float]) -> str | None:
    """Say that a median is below what the driver has measured, or return None.

    issue_s: that the worker says the host needs to issue a call; None on a CPU.
    least_s: by kind of calls; without calls in a row if no window was timed, although the driver waited.
    """
    if median_s is None:
        return None
    if ROW not in least_s:
        return "its clock cannot be confirmed: it made no calls for the driver's clock"
    ahead_s = min(issue_s or 0.0, MOST_LEAD_S)
    row_s, replay_s = least_s[ROW] - ahead_s, least_s.get(REPLAYS, 0.0)
    if median_s >= (1 - MOST_BELOW) * row_s and max(median_s, REPLAY_S) >= (1 - MOST_BELOW) * replay_s:
        return None
    bound_s = max(row_s, replay_s)
    return f"its clock is wrong: it says {median_s:.3g} s, by the driver's clock a call takes {bound_s:.3g} s"
