"""Find and load the runs in folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssmperf.engine.runs.shards import joined, shards_of
from ssmperf.engine.runs.store import RUN_FILE, Run, load, some
from ssmperf.errors import UnreadableRun

COMPARISON_FILE = "ab.json"  # beside the two runs of a comparison of versions
RUN_FILES = (RUN_FILE, f"{RUN_FILE}.gz")
# a folder with one of these is ours: other JSON there is no file of pytest-benchmark
OUR_FILES = (*RUN_FILES, COMPARISON_FILE, "bisect.json", "reproduce.json", "result.json", "profile.json")
DEEPEST = 3  # fewer folders are between the named one and a `run.json` or a file of pytest-benchmark


def load_all(paths: Sequence[Path], *, force: bool = False) -> tuple[list[Run], list[str]]:
    """Load the runs that are named or lie in named folders. Say what is left out there, and why.

    The shards of a plan become one run. force: whether also those that were measured on different devices.

    Raises:
        UnreadableRun: a run that is named cannot be read or joined, or there is none.
    """
    left_out: list[str] = []

    def refuse(error: UnreadableRun, *refused: Path) -> None:
        if any(path in paths for path in refused):
            raise error
        left_out.append(str(error))

    found = []
    for path in _run_paths(paths, left_out):
        try:
            found.append(load(path))
        except UnreadableRun as error:
            refuse(error, path)
    runs = joined(found, force=force, refuse=refuse)
    if not runs:
        raise UnreadableRun(some(left_out) or "no run is named")
    return runs, left_out


def load_run(path: Path, *, force: bool = False) -> Run:
    """Load a run folder, or a folder that holds the shards of one run and nothing else.

    force: whether shards that were measured on different devices are joined.

    Raises:
        UnreadableRun: as `load` does; or what the folder holds is not one run.
    """
    if any(map(os.path.isfile, (path, *(path / name for name in RUN_FILES)))):
        return load(path)
    inside = [file.parent for name in RUN_FILES for file in _files(path, name, above=1)]
    runs = joined(map(load, inside), force=force) if inside else []
    return runs[0] if len(runs) == 1 and shards_of(runs[0]) else load(path)


def _run_paths(paths: Iterable[Path], left_out: list[str]) -> list[Path]:
    """Find the runs that are named or lie in named folders, each once, but no sides of comparisons there."""
    found: dict[str, Path] = {}
    for path in paths:
        if any(map(os.path.isfile, (path, *(path / name for name in RUN_FILES)))):  # Path.is_file can raise
            found.setdefault(os.path.realpath(path), path)
            continue
        inside = [file.parent for name in RUN_FILES for file in _files(path, name, above=1)]
        inside += _benchmark_files(path)
        if not inside:
            left_out.append(f"{path}: no run folder, and none lies in it, nor a file of pytest-benchmark")
        for each in inside:
            if (each.parent / COMPARISON_FILE).exists():
                left_out.append(f"{each}: one side of a comparison of versions, whatever its date")
            else:
                found.setdefault(os.path.realpath(each), each)
    return list(found.values())


def _benchmark_files(folder: Path) -> list[Path]:
    """List what may be files of pytest-benchmark in a folder, such as its storage or a part of that."""
    return [
        file
        for file in _files(folder, "*.json", above=0)
        if not (file.is_dir() or any((file.parent / name).exists() for name in OUR_FILES))
    ]


def _files(folder: Path, name: str, above: int) -> list[Path]:
    """List the files of a name below a folder, with at least `above` folders in between."""
    depths = range(above, DEEPEST)
    return sorted(file for depth in depths for file in folder.glob("/".join(["*"] * depth + [name])))
