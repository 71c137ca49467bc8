"""A pair of rounds in turns: the samples of both versions alternate, or else their cases.

On a CPU that others use, the time of a call drifts within seconds. If two rounds run one after the other, the
two times of a case lie a round's length apart. So both versions begin a case at the same time, and take
slices of samples in turns: one works, and the other waits. An older version can only wait before a case.

While samples alternate, both sides stay on one core and keep freed memory (`processes/cores.py`, `heap.py`).
So times of `ab` on a CPU lack the page faults of other runs: compare them with one another only.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from ssmperf.comparison.versions.side_process import SideProcess, Turn

_PAIRS = itertools.count(1)  # numbers of pairs of cases: a socket may still have a message of an earlier one


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
    alternate = len(processes) > 1 and all(process.alternates for process in processes.values())
    pending: dict[str, Turn | None] = {
        name: process.begin_round(number, ids[name]) for name, process in processes.items()
    }
    while waiting := {name: turn for name, turn in pending.items() if turn is not None}:
        most = max(turn.left for turn in waiting.values())
        ready = [name for name, turn in waiting.items() if turn.left == most]
        if len({waiting[name].case_id for name in ready}) > 1:
            ready = ready[:1]
        random.Random(f"turn {seed} {number} {waiting[ready[0]].case_id}").shuffle(ready)
        if alternate and len(ready) > 1:
            pair = next(_PAIRS)
            for name in ready:
                processes[name].begin_turn(pair, first=name == ready[0])
            for name in ready:
                pending[name] = processes[name].end_turn()
            continue
        for name in ready:
            pending[name] = processes[name].take_turn()
    return {name: process.measured for name, process in processes.items()}
