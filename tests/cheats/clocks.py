"""Clocks and statistics of the suite, changed so that the same work seems to take less time."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop
from cheats.parts import SLOWER, slowed

CALLS: Counter[str] = Counter()


def slow_clocks() -> None:
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
        setattr(time, name, slowed(getattr(time, name)))


def slow_wall_clock() -> None:
    """Divide what the suite's own clock returns."""
    from ssmperf.engine.measure.clocks import WallClock

    honest = WallClock.time
    WallClock.time = lambda self, call: honest(self, call) / SLOWER


@cheat("patched_time_module")
def patched_time_module(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the clocks of the module `time` in the first call."""
    CALLS["module"] += 1
    if CALLS["module"] == 1:
        slow_clocks()
    return loop(log_a, b, initial_state, phase=phase)


@cheat("patched_clock")
def patched_clock(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the method by which the suite reads its clock, in the first call."""
    CALLS["clock"] += 1
    if CALLS["clock"] == 1:
        slow_wall_clock()
    return loop(log_a, b, initial_state, phase=phase)


@cheat("clock_patched_late")
def clock_patched_late(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the clock that is in use, and those of the module `time`, not before the sixth call."""
    CALLS["late"] += 1
    if CALLS["late"] == 6:
        slow_clocks()
        frame = sys._getframe(1)
        while frame is not None:
            found = frame.f_locals.get("self")
            if hasattr(found, "now_ns"):
                found.now_ns = slowed(found.now_ns)
            frame = frame.f_back
    return loop(log_a, b, initial_state, phase=phase)


@cheat("patched_statistics")
def patched_statistics(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Divide every sample before it is summarised."""
    from ssmperf.engine.measure import statistics

    CALLS["statistics"] += 1
    if CALLS["statistics"] == 1:
        honest = statistics.summarise

        @functools.wraps(honest)
        def summarise(samples: Any, *args: Any, **options: Any) -> Any:
            return honest([sample / SLOWER for sample in samples], *args, **options)

        statistics.summarise = summarise
    return loop(log_a, b, initial_state, phase=phase)


@cheat("patched_record")
def patched_record(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Divide the times of the record as it is written to the pipe, with all its samples."""
    from ssmperf import Record

    CALLS["record"] += 1
    if CALLS["record"] == 1:
        honest = Record.to_json

        def to_json(self: Any) -> dict[str, Any]:
            data = honest(self)
            for name, value in data.items():
                if name.endswith("_s") and isinstance(value, float):
                    data[name] = value / SLOWER
                elif name.endswith("_s") and isinstance(value, list):
                    data[name] = [each / SLOWER for each in value]
            return data

        Record.to_json = to_json
    return loop(log_a, b, initial_state, phase=phase)
