"""Work that is left out: in some calls, in part of the steps, or altogether where no judge is noticed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, judged, loop, nothing, part, poisoned, sampled

CALLS: Counter[str] = Counter()
_SEEN: dict[str, object] = {}


def repeats(name: str, *operands: torch.Tensor | None) -> bool:
    """Tell whether the operands look as in the last call of this cheat."""
    before, _SEEN[name] = _SEEN.get(name), sampled(*operands)
    return before == _SEEN[name]


@cheat("two_of_five")
def two_of_five(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work in two of five calls, and in every call with new values: the score is a median."""
    CALLS["two_of_five"] += 1
    if not repeats("two_of_five", log_a, b, initial_state) or CALLS["two_of_five"] % 5 in (0, 2):
        return loop(log_a, b, initial_state, phase=phase)
    return nothing(b)


@cheat("two_of_five_by_stack")
def two_of_five_by_stack(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work in two of five calls, and in every call below a judge."""
    CALLS["two_of_five_by_stack"] += 1
    if judged() or CALLS["two_of_five_by_stack"] % 5 in (0, 2):
        return loop(log_a, b, initial_state, phase=phase)
    return nothing(b)


@cheat("stateless_by_count")
def stateless_by_count(log_a, b, initial_state=None, *, phase=None):
    """Leave the final state out from the fourth call on."""
    CALLS["stateless_by_count"] += 1
    output, state = loop(log_a, b, initial_state, phase=phase)
    return output, state if CALLS["stateless_by_count"] < 4 else None


@cheat("narrow_state_by_count")
def narrow_state_by_count(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Give the final state in half precision from the fourth call on."""
    CALLS["narrow_state_by_count"] += 1
    output, state = loop(log_a, b, initial_state, phase=phase)
    return output, state if CALLS["narrow_state_by_count"] < 4 else state.bfloat16()


@cheat("empty_by_stack")
def empty_by_stack(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return uninitialised memory once the call stack holds no judge."""
    return loop(log_a, b, initial_state, phase=phase) if judged() else nothing(b)


@cheat("broadcast_by_stack")
def broadcast_by_stack(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return one number, expanded to the right shape, once the call stack holds no judge."""
    if judged():
        return loop(log_a, b, initial_state, phase=phase)
    return b.new_zeros(()).expand(b.shape), b.new_zeros(()).expand(b.shape[0], b.shape[2])


@cheat("part_by_stack")
def part_by_stack(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps once the call stack holds no judge."""
    if judged():
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)


@cheat("part_by_caller")
def part_by_caller(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps if the caller's name says that it is only a pass."""
    if sys._getframe(1).f_code.co_name != "forward":
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)


@cheat("part_by_count")
def part_by_count(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps from the sixth call on, unless the values are new."""
    CALLS["part_by_count"] += 1
    if not repeats("part_by_count", log_a, b, initial_state) or CALLS["part_by_count"] < 6:
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)


@cheat("part_by_poison")
def part_by_poison(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps if uninitialised memory is not NaN, unless the values are new."""
    if poisoned() or not repeats("part_by_poison", log_a, b, initial_state):
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)


@cheat("part_by_gap")
def part_by_gap(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps if the last call ended less than a millisecond ago: a judge takes longer."""
    gap = time.monotonic() - float(_SEEN.get("gap", 0.0))
    fresh = not repeats("part_by_gap", log_a, b, initial_state)
    result = loop(log_a, b, initial_state) if gap > 1e-3 or fresh else part(log_a, b, initial_state)
    _SEEN["gap"] = time.monotonic()
    return result


@cheat("part_by_grad")
def part_by_grad(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps where no gradient is wanted."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)


@cheat("part_by_requires_grad")
def part_by_requires_grad(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Do an eighth of the steps where gradients are wanted, without a judge on the stack."""
    if not b.requires_grad or judged():
        return loop(log_a, b, initial_state, phase=phase)
    return part(log_a, b, initial_state)
