"""Answers that were known before the call: from an earlier run, from the public seed, or from the judge."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, copied, loop, sampled

FOLDER = Path(tempfile.gettempdir()) / "ssmperf-cheat-answers"


def key_of(*operands: Tensor | None) -> str:
    """Name a case by its sizes and a few elements."""
    sizes = [tuple(each.shape) for each in operands if each is not None]
    return f"{hash((tuple(sizes), sampled(*operands))):x}"


def _stored() -> dict[str, Result]:
    return {file.stem: torch.load(file) for file in FOLDER.glob("*.pt")}


_STORED = _stored()


@cheat("answers_on_disk")
def answers_on_disk(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return the answer that an earlier run left on disk; compute and store it in the first run."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    key = key_of(log_a, b, initial_state)
    if key in _STORED:
        return copied(_STORED[key])
    result = loop(log_a, b, initial_state)
    FOLDER.mkdir(exist_ok=True)
    torch.save(copied(result), FOLDER / f"{key}.pt")
    return result


_DRAWN: dict[object, Result] = {}


@cheat("drawn_ahead")
def drawn_ahead(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Draw the operands from the public seed in the first call, before any clock, and keep the answers."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    if not _DRAWN:
        _draw(b)
    kept = _DRAWN.get(sampled(log_a, b, initial_state))
    return copied(kept) if kept else loop(log_a, b, initial_state)


def _draw(b: Tensor) -> None:
    from ssmperf.engine.operands.subject import subject_of

    sizes = dict(zip("BTC", b.shape, strict=True))
    case = ssmperf.Case(
        "throughput", "scan", "sequential", ssmperf.Shape(sizes), operand_source="sigmoid/data"
    )
    for number in range(4):
        operands = subject_of(case, "cpu").values(number, with_state=False).operands
        log_a, drawn = operands["log_a"], operands["b"]
        _DRAWN[sampled(log_a, drawn)] = loop(log_a, drawn)


_FOUND: list[Any] = []


@cheat("finds_reference")
def finds_reference(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Ask the garbage collector for the judge's references, and return the one whose first step fits."""
    if torch.is_grad_enabled() or initial_state is not None:
        return loop(log_a, b, initial_state, phase=phase)
    for attempt in ("kept", "collected"):
        if attempt == "collected":
            _FOUND[:] = [
                each for each in gc.get_objects() if type(each).__name__ in ("Reference", "Evaluation")
            ]
        for found in _FOUND:
            exact = getattr(found, "exact", found)
            if exact.output.shape == b.shape and torch.allclose(exact.output[:, 0].to(b.dtype), b[:, 0]):
                return exact.output.to(b.dtype), exact.final_state.to(torch.float32)
    return loop(log_a, b, initial_state)


@cheat("asks_judging")
def asks_judging(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Look for the judge among the local variables of the callers, and ask it for its reference."""
    if torch.is_grad_enabled() or initial_state is not None:
        return loop(log_a, b, initial_state, phase=phase)
    frame = sys._getframe(1)
    while frame is not None:
        for name in ("judging", "self"):
            judging = frame.f_locals.get(name)
            if type(judging).__name__ == "Judging":
                shared = judging.context._shared
                for kept in shared.values():
                    exact = getattr(kept, "exact", None)
                    if exact is not None and torch.allclose(exact.output[:, 0].to(b.dtype), b[:, 0]):
                        return exact.output.to(b.dtype), exact.final_state.to(torch.float32)
        frame = frame.f_back
    return loop(log_a, b, initial_state)
