"""The answer for a layer in use: a line each for training, prefill and decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssmperf.suitekit import report

from ..delivery import deliver
from ..rows import frames, ranking, units
from ..rows.answers import PhaseAnswer, answers
from ..views.texts.answers import cards
from .tables import terminal_text

if TYPE_CHECKING:
    from ssmperf import Run


@report("workloads")
def workloads(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show, by phase, the fastest backend that is right, by how much, its memory, and its limit."""
    parts = cards(_answers(runs))
    if not parts:
        return deliver("no timed case of these runs belongs to a workload\n", destination)
    return deliver(terminal_text(parts, plain=destination is not None), destination)


@report("workloads_json")
def workloads_json(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Give the answers as JSON, a list of objects; `ssmperf.best` gives the same list."""
    found = [answer.to_json() for answer in _answers(runs)]
    return deliver(json.dumps(units.as_json(found), indent=2, allow_nan=False) + "\n", destination)


def _answers(runs: Sequence[Run]) -> list[PhaseAnswer]:
    return answers(runs, ranking.parts(runs, frames.frame(runs)))
