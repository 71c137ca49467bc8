"""Search for the configurations with which one call is fastest, one key of one table at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmperf.cases.record import one_line
from ssmperf.tune.tables import Place, label_of, named, using

LEAST_GAIN = 0.01  # of the time, below which a candidate is no better


class Refused(Exception):
    """A candidate does not give the right answer; the message says where."""


@dataclass
class Found:
    """What a search found.

    rows: the winners where they are not what was in force.
    tried: by `table:key`, what was in force and then each candidate: its fields, and `latency_s` in seconds,
        or None with the `reason`.
    """

    rows: dict[Place, Any] = field(default_factory=dict)
    tried: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        """For the record of the case."""
        return {
            "autotuned": bool(self.tried),
            "candidates_tried": sum(len(rows) - 1 for rows in self.tried.values()),
            "candidates": self.tried or None,
        }


def search(
    consulted: Mapping[Place, Any],
    measure: Callable[[], float],
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    healthy: Callable[[], bool] = lambda: True,
) -> Found:
    """Try the candidates of all that a call consulted.

    A candidate replaces what is in force where it is faster by LEAST_GAIN, and is so a second time: the least
    of many noisy times is smaller than its call is fast.

    Args:
        consulted: what is in force, by (table name, key).
        measure: judges the call with what is in force then, and gives its seconds. Raises `Refused` where
            its answer is not right, and anything where it does not compile or does not run.
        on_progress: told what is tried.
        healthy: asked after a failure whether the device still works.

    Raises:
        RuntimeError: a candidate left the device unusable.
    """
    found = Found()
    for place in consulted:
        with using(found.rows):
            table = named(place[0])
            candidates, label = table.others(place[1]), label_of(place)
            if not candidates:
                continue
            on_progress(f"{label}: what is in force")
            before, current = measure(), table.row(place[1])
        tried = found.tried[label] = [_as_tried(current, before, None)]
        seconds: dict[Any, float] = {}
        for number, candidate in enumerate(candidates, start=1):
            on_progress(f"{label}: candidate {number} of {len(candidates)}")
            reason = None
            try:
                with using({**found.rows, place: candidate}):
                    seconds[candidate] = measure()
            except Exception as error:
                reason = one_line(f"{type(error).__name__}: {error}")[:200]
                if not healthy():
                    raise RuntimeError(f"{label} {candidate} broke the device: {reason}") from error
            tried.append(_as_tried(candidate, seconds.get(candidate), reason))
        best = min(seconds, key=seconds.__getitem__, default=None)
        if best is not None and _gains(seconds[best], before):
            with using(found.rows):
                before = measure()
            with using({**found.rows, place: best}):
                after = measure()
            if _gains(after, before):
                found.rows[place] = best
    return found


def _gains(seconds: float, before: float) -> bool:
    return seconds < (1 - LEAST_GAIN) * before


def _as_tried(configuration: Any, seconds: float | None, reason: str | None) -> dict[str, Any]:
    return {**dataclasses.asdict(configuration), "latency_s": seconds, "reason": reason}
