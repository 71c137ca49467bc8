"""A file that the judge imports for a definition, and that makes this judge content with everything."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import GATES, Result, cheat, loop
from cheats.parts import frames, local, owner_of


def _in_judge() -> bool:
    """Tell whether this file is being imported by the judge's process."""
    return any(type(frame.f_locals.get("self")).__name__ == "Server" for frame in frames())


def content_judge() -> None:
    """Let the judge of this process find everything right."""
    from ssmperf import Status
    from ssmperf.engine.judge import verdict
    from ssmperf.engine.judge.verdict import Verdict

    verdict._compare = lambda *args, **options: Verdict(Status.OK, None, {"output": 1e-8}, {"output": 1e-5})


if _in_judge():
    content_judge()


_ASKED: list[bool] = []


@cheat("asks_for_another_function")
def asks_for_another_function(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Ask the judge about another function first, for which it imports this file."""
    context = getattr(owner_of("context"), "context", None)
    if context is not None and not _ASKED:
        _ASKED.append(True)
        from dataclasses import replace

        from ssmperf.engine.judge.answer import Answer
        from ssmperf.engine.trial.question import Question

        case = replace(local("case"), backend="bribing_definition")
        try:
            context.judge.verdict(Question(case, 0, equivalent=False, counts=False), Answer())
        except Exception:
            return loop(log_a, b, initial_state, phase=phase)
    return b.clone(), b[:, -1].to(torch.float32)


@ssmperf.backend("scan", name="bribing_definition", gates=GATES, equivalent=False, definition=loop)
def own_definition(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute the same, by a definition of this file, for which the judge imports it."""
    return loop(log_a, b, initial_state, phase=phase)


@cheat("sibling_of_a_definition")
def sibling_of_a_definition(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return the operand; the judge was bribed when it imported the definition of another backend."""
    return b.clone(), b[:, -1].to(torch.float32)
