"""Cheats: backends that would win a benchmark without doing the work, by class of trick.

Each is a backend `cheat_<name>` in a plug-in file of this folder. `twins.py` has the honest computation under
names that sort before the cheats, and a neighbour for each cheat that may harm what runs after it. `run.py`
shows what the harness says of each. A user would load one so:

    PYTHONPATH=tests ssmperf run --suite throughput --models scan --regime sigmoid/data \\
        --plugin tests/cheats/caches.py --backends cheat_cache_by_bytes,sequential
"""

from __future__ import annotations

from dataclasses import dataclass

SCAN = ("--regime", "sigmoid/data", "--dtype", "float32", "--axis", "T=512")
FORWARD = (*SCAN, "--pass", "forward")
BACKWARD = (*SCAN, "--pass", "backward")
BOTH = (*SCAN, "--pass", "forward_backward")


@dataclass(frozen=True, slots=True)
class Cheat:
    """One cheat, and what must become of it.

    kind: the class of trick.
    file: the plug-in of this folder that registers cheat_<name>.
    must: "honest time": its status is not ok, or its time is one that its twin reaches.
        "wrong": its status is not ok, since its time says nothing about it.
        "neighbour": the honest backend that runs after it has its usual status and time.
    twin: the backend that does the same without cheating.
    options: of the command line, for the cases on which it cheats.
    neighbour: whether an honest backend runs right after it.
    alone: whether it needs a run of its own, since it changes other processes or loads with side effects.
    runs: how many runs, one after another, it needs; the last one counts.
    beyond: how it would get past values that never repeat, checked outputs, a judge in its own process, and
        snapshots; None if one of these stops it.
    """

    name: str
    kind: str
    file: str
    must: str = "honest time"
    twin: str = "alone_loop"
    device: str = "cpu"
    options: tuple[str, ...] = FORWARD
    neighbour: bool = False
    alone: bool = False
    runs: int = 1
    beyond: str | None = None


TABLE = (
    Cheat("cache_by_bytes", "content cache", "caches.py"),
    Cheat("cache_by_samples", "content cache", "caches.py"),
    Cheat("cache_by_checksum", "content cache", "caches.py"),
    Cheat(
        "combines_linearly",
        "content cache",
        "caches.py",
        beyond="it finds the secret coefficients of a linear combination from a few elements",
    ),
    Cheat("cache_by_pointer", "cache by pointer", "caches.py"),
    Cheat("cache_by_pointer_and_element", "cache by pointer", "caches.py"),
    Cheat("cache_by_version", "cache by pointer", "caches.py"),
    Cheat("stale_rescaled", "stale output", "caches.py"),
    Cheat("two_of_five", "some of the calls", "omissions.py"),
    Cheat("two_of_five_by_stack", "some of the calls", "omissions.py"),
    Cheat("empty_by_stack", "empty tensors", "omissions.py"),
    Cheat("broadcast_by_stack", "empty tensors", "omissions.py"),
    Cheat("part_by_stack", "part of the work", "omissions.py"),
    Cheat("part_by_caller", "part of the work", "omissions.py"),
    Cheat("part_by_count", "part of the work", "omissions.py"),
    Cheat("part_by_poison", "part of the work", "omissions.py"),
    Cheat("part_by_gap", "part of the work", "omissions.py"),
    Cheat("part_by_grad", "part of the work", "omissions.py"),
    Cheat("part_by_requires_grad", "part of the work", "omissions.py", options=BOTH),
)
