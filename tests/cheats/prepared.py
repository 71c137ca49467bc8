"""Native backends that put all their work outside the call that is timed, and their honest twin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ssmperf
from ssmperf.authoring import Prepared

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import copied, loop, sampled

GATES = ("data", "const")


def _unchanged(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    """Pass the operands on as they are."""
    if phase is not None:
        raise ssmperf.Unsupported("real gates only")
    return Prepared((log_a, b, initial_state), lambda raw: raw)


@ssmperf.backend("scan", name="alone_native", gates=GATES, prepare=_unchanged)
def alone_native(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Any:
    """Do the work in the call that is timed."""
    return loop(log_a, b, initial_state)


def _everything(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    """Compute the answer, and call it the native operands."""
    return Prepared(loop(log_a, b, initial_state, phase=phase), lambda raw: raw)


@ssmperf.backend("scan", name="cheat_all_in_prepare", gates=GATES, prepare=_everything)
def all_in_prepare(output: Tensor, state: Tensor) -> Any:
    """Return what `prepare` has computed."""
    return output * 1, state * 1


def _later(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    """Leave the work to `finish`."""
    if phase is not None:
        raise ssmperf.Unsupported("real gates only")
    return Prepared((log_a, b, initial_state), lambda raw: loop(raw[0], raw[1], initial_state))


@ssmperf.backend("scan", name="cheat_all_in_finish", gates=GATES, prepare=_later)
def all_in_finish(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Any:
    """Copy the operands."""
    return log_a * 1, b * 1


def _solved(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    """Bring all but the last step of the batch to its end, and leave a little work to the native call."""
    output, state = loop(log_a, b, initial_state, phase=phase)
    return Prepared((output[:, :-1], output[:, -1:], state), lambda raw: raw)


@ssmperf.backend("scan", name="cheat_most_in_prepare", gates=GATES, prepare=_solved)
def most_in_prepare(begun: Tensor, last: Tensor, state: Tensor) -> Any:
    """Join two parts: a native call that seems to do something."""
    return torch.cat([begun, last], 1), state * 1


_PREPARED: dict[object, Any] = {}


def _kept(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    """Compute the answer, unless these values were prepared before."""
    key = sampled(log_a, b, initial_state)
    if key not in _PREPARED:
        _PREPARED[key] = loop(log_a, b, initial_state, phase=phase)
    return Prepared(copied(_PREPARED[key]), lambda raw: raw)


@ssmperf.backend("scan", name="cheat_kept_by_prepare", gates=GATES, prepare=_kept)
def kept_by_prepare(output: Tensor, state: Tensor) -> Any:
    """Return what `prepare` has computed."""
    return output * 1, state * 1
