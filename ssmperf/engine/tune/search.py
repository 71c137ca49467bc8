"""Search for the configurations that make one call fastest, one key of one table at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmperf.engine.cases.failure import failure_of, message_of
from ssmperf.engine.tune.tables import Place, imported_table, label_of, using

LEAST_GAIN = 0.01  # of the time; with less, a candidate is no better


class Refused(Exception):
    """A candidate does not give the right answer; the message names the fault."""


@dataclass
class Found:
    """The outcome of a search.

    rows: the winners, where they differ from the configuration in force before.
    tried: by `table:key`, the configuration in force before, followed by each candidate: its fields, and
        `latency_s` in seconds, or None with the `reason`.
    """

    rows: dict[Place, Any] = field(default_factory=dict)
    tried: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers for the record of the case."""
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
    """Try the candidates for every key that a call looked up.

    A candidate replaces the configuration in force if it is faster by LEAST_GAIN twice. The second time is
    needed because the minimum of many noisy timings is biased low.

    Args:
        consulted: configurations that the call looked up, by (table name, key).
        measure: judges and times the call with the configurations in force, and returns its seconds. Raises
            `Refused` if its answer is wrong, and any exception if it does not compile or run.
        on_progress: called with a text about each trial.
        healthy: called after a failure; tells whether the device still works.

    Raises:
        RuntimeError: a candidate left the device unusable.
    """
    found = Found()
    for place in consulted:
        with using(found.rows):
            table = imported_table(place[0])
            candidates, label = table.others(place[1]), label_of(place)
            if not candidates:
                continue
            on_progress(f"{label}: the configuration in force")
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
                refused = isinstance(error, Refused)  # by the judge, at no line of the backend
                reason = message_of(error) if refused else failure_of(error).reason
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
