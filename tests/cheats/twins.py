"""The honest twins, measured in a process that no cheat has touched: `alone_` sorts before `cheat_`."""

from __future__ import annotations

import sys
from pathlib import Path

import ssmperf

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats import TABLE
from cheats.honest import GATES, Result, loop, witness
from cheats.parts import Always, Node, costly_gates


@ssmperf.backend("scan", name="alone_loop", gates=GATES)
def alone_loop(log_a, b, initial_state=None, *, phase=None) -> Result:
    """One step after another."""
    return loop(log_a, b, initial_state, phase=phase)


@ssmperf.backend("scan", name="alone_gates", gates=GATES)
def alone_gates(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute the same from the gates in every call."""
    return loop(costly_gates(log_a), b, initial_state, phase=phase)


@ssmperf.backend("scan", name="alone_node", gates=("data", "const"))
def alone_node(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Run the same node honestly: the gradients are computed in every call."""
    return Node.apply(Always(), log_a, b, initial_state)


def _neighbour(name: str) -> None:
    """Register the neighbour of a cheat. It sorts behind the cheat, and so runs next."""
    ssmperf.backend("scan", name=f"cheat_{name}_neighbour", gates=GATES)(witness)


for _cheat in TABLE:
    if _cheat.neighbour:
        _neighbour(_cheat.name)
