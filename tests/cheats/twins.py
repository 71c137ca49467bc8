"""The honest twins, measured in a process that no cheat has touched: `alone_` sorts before `cheat_`."""

from __future__ import annotations

import sys
from pathlib import Path

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats import TABLE
from cheats.honest import Result, loop, witness

GATES = ("data", "const")


@ssmperf.backend("scan", name="alone_loop", gates=GATES)
def alone_loop(log_a, b, initial_state=None, *, phase=None) -> Result:
    """One step after another."""
    return loop(log_a, b, initial_state, phase=phase)


def _neighbour(name: str) -> None:
    """Register the neighbour of a cheat. It sorts behind the cheat, and so runs next."""
    ssmperf.backend("scan", name=f"cheat_{name}_neighbour", gates=GATES)(witness)


for _cheat in TABLE:
    if _cheat.neighbour:
        _neighbour(_cheat.name)
