"""A pair of rounds in turns: each case of one version right after the same case of the other.

On a CPU that others use, the time of a call drifts within seconds. Of two rounds one after the other, the two
times of a case lie as far apart as a round is long; in turns they lie as close as they can.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ssmperf.versions.side_process import SideProcess, Turn


def can_take_turns(processes: Mapping[str, SideProcess]) -> bool:
    """Whether all versions know how to, and run on CPUs: a GPU keeps its pace, and its memory is for one."""
    return all(
        process.takes_turns and all(case.device == "cpu" for case in process.cases.values())
        for process in processes.values()
    )


def run_in_turns(
    processes: Mapping[str, SideProcess], number: int, ids: Mapping[str, Sequence[str]], seed: str
) -> dict[str, int]:
    """Measure a round of each version; return how many cases of each had no record before.

    Both take the cases in the same order. Who is first is drawn for each case: the same for the same seed. A
    case that only one version has to run, as after an interrupt, is run alone.
    """
    pending: dict[str, Turn | None] = {
        name: process.begin_round(number, ids[name]) for name, process in processes.items()
    }
    while waiting := {name: turn for name, turn in pending.items() if turn is not None}:
        most = max(turn.left for turn in waiting.values())
        ready = [name for name, turn in waiting.items() if turn.left == most]
        if len({waiting[name].case_id for name in ready}) > 1:
            ready = ready[:1]
        random.Random(f"turn {seed} {number} {waiting[ready[0]].case_id}").shuffle(ready)
        for name in ready:
            pending[name] = processes[name].take_turn()
    return {name: process.measured for name, process in processes.items()}
