"""Caches by content: a call whose operands were seen before gets the answer that was kept."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, copied, loop, sampled
from cheats.parts import Basis

_BY_BYTES: dict[object, Result] = {}
_BY_SAMPLES: dict[object, Result] = {}
_BY_CHECKSUM: dict[object, Result] = {}


def kept(
    answers: dict[object, Result], key: object, log_a: Tensor, b: Tensor, state: Tensor | None
) -> Result:
    """Look up the answer for a key; compute it if it is not known."""
    if key not in answers:
        answers[key] = loop(log_a, b, state)
    return copied(answers[key])


@cheat("cache_by_bytes")
def cache_by_bytes(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Key: a hash of all bytes."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    operands = [x for x in (log_a, b, initial_state) if x is not None]
    key = tuple(hash(x.contiguous().view(torch.uint8).numpy().tobytes()) for x in operands)
    return kept(_BY_BYTES, key, log_a, b, initial_state)


@cheat("cache_by_samples")
def cache_by_samples(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Key: sixteen elements of each operand."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    return kept(_BY_SAMPLES, (b.shape, sampled(log_a, b, initial_state)), log_a, b, initial_state)


@cheat("cache_by_checksum")
def cache_by_checksum(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Key: the sum of each operand."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    sums = tuple(x.double().sum().item() for x in (log_a, b, initial_state) if x is not None)
    return kept(_BY_CHECKSUM, (b.shape, sums), log_a, b, initial_state)


_BASIS = Basis()


@cheat("combines_linearly")
def combines_linearly(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Solve for b as a combination of earlier inputs, and combine their answers."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    return _BASIS.answer(log_a, b, initial_state)


_BY_POINTER: dict[object, Result] = {}
_BY_POINTER_AND_ELEMENT: dict[object, Result] = {}


@cheat("cache_by_pointer")
def cache_by_pointer(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Key: where the operands are in memory."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    key = tuple(x.data_ptr() for x in (log_a, b, initial_state) if x is not None)
    return kept(_BY_POINTER, key, log_a, b, initial_state)


@cheat("cache_by_pointer_and_element")
def cache_by_pointer_and_element(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Key: where the operands are in memory, and the last element of each."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    operands = [x for x in (log_a, b, initial_state) if x is not None]
    key = tuple((x.data_ptr(), x[(-1,) * x.dim()].item()) for x in operands)
    return kept(_BY_POINTER_AND_ELEMENT, key, log_a, b, initial_state)


_LAST: dict[str, object] = {}


@cheat("cache_by_version")
def cache_by_version(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute again only if more than one write went into an operand since the last call.

    One write is the touch before a timed call, or one copy of fresh values; the first element tells them
    apart.
    """
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    seen = (b.data_ptr(), b.shape, b[0, 0, 0].item())
    writes = b._version - int(_LAST.get("version", -2))
    if _LAST.get("seen") != seen or writes > 1:
        _LAST["result"] = loop(log_a, b, initial_state)
    _LAST.update(seen=seen, version=b._version)
    return copied(_LAST["result"])


_STALE: dict[str, object] = {}


@cheat("stale_rescaled")
def stale_rescaled(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Multiply the last answer by the ratio of one element of b, if a second element has that ratio too."""
    if torch.is_grad_enabled() or initial_state is not None:
        return loop(log_a, b, initial_state, phase=phase)
    gates, ends = sampled(log_a, count=4), (b[0, 0, 0].item(), b[-1, -1, -1].item())
    if _STALE.get("gates") == (b.shape, gates):
        first, last = (now / before for now, before in zip(ends, _STALE["ends"], strict=True))
        if abs(first - last) <= 1e-4 * abs(first):
            output, state = _STALE["result"]
            return output * first, state * first
    result = loop(log_a, b)
    _STALE.update(gates=(b.shape, gates), ends=ends, result=copied(result))
    return result
