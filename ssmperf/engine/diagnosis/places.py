"""Places: where along time and the other axes an object is wrong, as data and as words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from ssmperf.engine.diagnosis.profile import ErrorProfile
from ssmperf.engine.operands.contract import TIME

JUMP = 10.0  # by which an error grows in one step where a fault begins; rounding that accumulates does not
CHUNKS = (64, 32, 16, 128, 256, 8)  # usual lengths of chunks and tiles, as words name them
PIECES = 48  # of an envelope
MOST_LISTED = 16  # indices in a record
MOST_NAMED = 4  # indices in a sentence
ONE = {"batch": "batch item", "heads": "head", "channels": "channel", "keys": "key", "values": "value"}
MANY = {"batch": "batch items", "state": "places of the state"}


@dataclass(frozen=True, slots=True)
class Steps:
    """The wrong steps of an object with T steps.

    first, last, count: of the wrong steps. begins, ends: whether the error jumps between the first or last
        of them and the right step beside it; true where there is no such step.
    period: distance between stretches that begin, or end, at multiples of it plus a constant; None if there
        is no such distance. starts: whether the beginnings have this distance.
    clear: whether the largest error is far above those of the right steps, not only above the tolerance.
    """

    T: int
    first: int
    last: int
    count: int
    begins: bool
    ends: bool
    period: int | None
    starts: bool
    clear: bool

    @property
    def whole(self) -> bool:
        """Whether all steps are wrong."""
        return self.count == self.T

    @property
    def solid(self) -> bool:
        """Whether the wrong steps are one stretch."""
        return self.count == self.last - self.first + 1


def steps_of(profile: ErrorProfile) -> Steps | None:
    """Find the wrong steps; None for an object without time, or where no element is beyond its limit."""
    errors = profile.over_time
    if errors is None or len(profile.indices[TIME]) != profile.shape[TIME]:
        return None
    wrong = profile.wrong_at(TIME)
    if not wrong:
        return None
    flags = profile.wrong[TIME].tolist()
    values: list[float] = errors.tolist()
    edges = _edges(values, flags)
    clear = _clear(errors, profile.wrong[TIME])
    begins, ends = (
        not 0 <= right < len(values) or values[at] > JUMP * values[right]
        for at, right in ((wrong[0], wrong[0] - 1), (wrong[-1], wrong[-1] + 1))
    )
    period, starts = _period(edges[0]), True
    if period is None:
        period, starts = _period(edges[1]), False
    return Steps(len(values), wrong[0], wrong[-1], len(wrong), begins, ends, period, starts, clear)


def _clear(errors: Tensor, wrong: Tensor) -> bool:
    """Tell whether the errors at wrong indices are far above those at right ones, not only above a limit."""
    return float(errors[wrong].max()) > JUMP * max(errors[~wrong].tolist(), default=0.0)


def _edges(values: Sequence[float], flags: Sequence[bool]) -> tuple[list[int], list[int]]:
    """List the steps at which the error jumps up, and those behind which it jumps down.

    An error that is large enough to jump is far above that of every right step.
    """
    right = JUMP * max((each for each, wrong in zip(values, flags, strict=True) if not wrong), default=0.0)
    large = [wrong and each > right for each, wrong in zip(values, flags, strict=True)]
    up = [t for t in range(1, len(values)) if large[t] and values[t] > JUMP * values[t - 1]]
    down = [t + 1 for t in range(len(values) - 1) if large[t] and values[t] > JUMP * values[t + 1]]
    return up, down


def _period(edges: Sequence[int]) -> int | None:
    """Find the common distance of three or more edges, or of two that lie on its multiples; None if none."""
    if len(edges) < 2:
        return None
    gaps = [later - earlier for earlier, later in itertools.pairwise(edges)]
    distance = math.gcd(*gaps)
    if distance < 2 or gaps.count(distance) * 2 <= len(gaps):
        return None
    return distance if len(edges) > 2 or edges[0] % distance == 0 else None


def in_words(steps: Steps | None) -> str:
    """Say at which steps an object is wrong; empty if at all of them."""
    if steps is None or steps.whole:
        return ""
    T = steps.T
    if not steps.clear:
        return f"at {steps.count} of {T} steps, where the error passes the tolerance"
    if steps.count == 1:
        return f"at step {steps.first} alone"
    if steps.period is not None and steps.count < T:
        where = f"at {steps.count} of {T} steps"
        return f"{where}, in stretches that {'begin' if steps.starts else 'end'} every {steps.period} steps"
    if steps.last == T - 1:
        if not steps.begins:
            return f"from step {steps.first} on, where a growing error passes the tolerance"
        tail = next((P for P in CHUNKS if T % P and steps.first == T // P * P), None)
        if steps.solid and tail is not None:
            return f"in the last {T - steps.first} of {T} steps alone, behind the last whole {tail}"
        if steps.solid:
            return f"from step {steps.first}{_multiple(steps.first)} on"
    elif steps.first == 0:
        if not steps.ends:
            return f"up to step {steps.last}, where a falling error passes the tolerance"
        if steps.solid:
            right = steps.last + 1
            return (
                f"everywhere but in the last {T - right} of {T} steps, from step {right}{_multiple(right)} on"
            )
    elif steps.solid:
        end = f"to step {steps.last}" if steps.ends else f"on, fading by step {steps.last}"
        begin = f"step {steps.first}{_multiple(steps.first) if steps.begins else ''}"
        return f"from {begin} {end}"
    return f"at {steps.count} of {T} steps, from step {steps.first} on"


def _multiple(step: int) -> str:
    chunk = next((P for P in CHUNKS if step and step % P == 0), None)
    return "" if chunk is None else f" ({step // chunk} × {chunk})"


def chunks_before(steps: Steps | None) -> list[int]:
    """List lengths of chunks at whose borders the wrong steps begin or end, the longest first."""
    if steps is None:
        return [64]
    edges = [edge for edge in (steps.first, steps.last + 1) if 0 < edge < steps.T]
    found = {P for edge in edges for P in (8, 16, 32, 64, 128, 256, 512) if edge % P == 0}
    found |= set(edges)
    found |= {steps.period} if steps.period else set()
    return sorted((P for P in found if 1 < P < steps.T), reverse=True)[:6]


def parts_of(profile: ErrorProfile) -> dict[str, dict[str, Any]]:
    """Give the wrong indices of each axis but time, by its name, if they stand out from right ones."""
    found: dict[str, dict[str, Any]] = {}
    for axis, name in enumerate(profile.axes):
        if profile.time and axis == TIME:
            continue
        wrong = profile.wrong_at(axis)
        some = 0 < len(wrong) < len(profile.indices[axis])
        if some and _clear(profile.along[axis], profile.wrong[axis]):
            count = len(profile.indices[axis])
            found[name] = {"wrong": wrong[:MOST_LISTED], "count": len(wrong), "of": count}
    return found


def parts_in_words(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Say in which heads, channels and batch items an object is wrong; empty if in all."""
    texts = []
    for name, part in parts.items():
        one, many = ONE.get(name, name), MANY.get(name, name)
        along = ""
        if name.startswith("axis"):  # of an operand whose axes have no names
            one, many, along = "place", "places", f" along {name}"
        wrong, count, of = part["wrong"], part["count"], part["of"]
        if count == 1:
            text = f"{one} {wrong[0]} of {of}"
        elif wrong == list(range(wrong[0], wrong[0] + count)):
            text = f"{many} {wrong[0]} to {wrong[-1]} of {of}"
        elif count <= MOST_NAMED:
            text = f"{many} {', '.join(map(str, wrong))} of {of}"
        else:
            text = f"{count} of {of} {many}, {wrong[0]} the first"
        texts.append(text + along)
    return f"in {' and '.join(texts)}" if texts else ""


def envelope_of(errors: Tensor | None) -> list[float]:
    """Give the largest error of each of up to 48 pieces of time; empty for an object without time."""
    if errors is None or errors.numel() == 0:
        return []
    return [float(f"{float(piece.max()):.3g}") for piece in errors.tensor_split(min(PIECES, len(errors)))]


def as_json(steps: Steps | None) -> dict[str, Any] | None:
    return None if steps is None else asdict(steps)
