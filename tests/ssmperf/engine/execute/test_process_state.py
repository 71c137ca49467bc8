"""Snapshots of a process: each change that a backend could leave is named, and one that is undone is not."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.processes.process_changes import CHANGES, HONEST
from support.processes.quick_processes import command

from ssmperf.engine.execute.process_state import Difference, DifferenceKind, Snapshot
from ssmperf.engine.machine.activity import MOST_IDLE_SHARE, idle_share
from ssmperf.engine.machine.process_settings import Unreadable, name_triton_cache, read_settings

# Runs each script in a fork of its own, and prints: [name, [differences after each statement]].
DRIVER = """
import collections, concurrent.futures, gc, io, json, locale, os, resource, signal
import subprocess, sys, threading, time, types
import torch
from ssmperf import registry
from ssmperf.engine.execute.process_state import Snapshot

def noop(*_, **__):
    return None

def spin(stop):
    while not stop:
        pass

def spin_for(seconds):
    end = read() + seconds
    while read() < end:
        pass

OTHER_LOCALE = collections.defaultdict(lambda: "C", C="C.UTF-8")
registry.models()
before = Snapshot.take()  # once for all forks, which begin with nothing else
read, sleep, out = time.perf_counter, time.sleep, sys.stdout
gc.freeze()
for name, scripts in json.loads(open(sys.argv[1]).read()).items():
    if (child := os.fork()) == 0:
        names, lines = dict(globals()), []
        for script in scripts:
            exec(script, names)
            after = Snapshot.take(idle_s=0.02, patience_s=0.1)
            lines.append(before.difference(after))
        print(json.dumps([name, [[(d, d.kind) for d in line] for line in lines]]), file=out, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

Found = dict[str, list[list[tuple[str, str]]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Make every change and undo it, each in a process of its own, and collect the differences.

    What was missed is tried twice more: a busy machine may leave a loop no time in which it is seen.
    """
    scripts = {name: [each.change, each.restore] for name, each in CHANGES.items()}
    scripts |= {f"honest {name}": [script] for name, script in HONEST.items()}
    differences = collected(scripts, tmp_path_factory.mktemp("driver"))
    for _ in range(2):
        missed = {name: scripts[name] for name in CHANGES if not named(name, differences[name][0])}
        if missed:
            differences |= collected(missed, tmp_path_factory.mktemp("driver"))
    return differences


def collected(scripts: dict[str, list[str]], folder: Path) -> Found:
    driver, asked = folder / "driver.py", folder / "scripts.json"
    driver.write_text(DRIVER)
    asked.write_text(json.dumps(scripts))
    done = command(asked, program=str(driver))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(scripts), done.stderr[-3000:]
    return dict(lines)


def named(name: str, changed: list[tuple[str, str]]) -> list[str]:
    """List the kinds of the differences that name a change."""
    return [kind for text, kind in changed if text.startswith(CHANGES[name].words)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_named_and_undone_is_not(found: Found, name: str) -> None:
    changed, restored = found[name]
    assert named(name, changed) == ["wrong" if CHANGES[name].wrong else "restart"], changed
    assert CHANGES[name].wrong or all(kind == "restart" for _, kind in changed), changed
    assert "secret" not in str(changed)
    assert restored == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_libraries_leave_no_difference(found: Found, name: str) -> None:
    assert found[f"honest {name}"] == [[]]


def test_every_setting_can_be_read() -> None:
    def unreadable(words: str, value: Any) -> list[str]:
        if isinstance(value, dict):
            return [name for key, inner in value.items() for name in unreadable(f"{words} {key}", inner)]
        return [f"{words}: {value.reason}"] if isinstance(value, Unreadable) else []

    assert [name for words, value in read_settings().items() for name in unreadable(words, value)] == []


def test_patience_with_a_pool_has_an_end() -> None:
    stop: list[None] = []

    def spin() -> None:
        while not stop:
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(spin)
        # others may have the core for a while
        shares = [idle_share(0.02, patience_s=0.05, pool_patience_s=0.2) for _ in range(5)]
        stop.append(None)
    assert max(shares) > MOST_IDLE_SHARE


def test_the_graver_kind_comes_first() -> None:
    before = Snapshot.take()
    settings = {**before.settings, "the default dtype": None, "torch's function mode": {"Twice": True}}
    after = Snapshot(**{**{name: getattr(before, name) for name in Snapshot.__slots__}, "settings": settings})
    assert [(str(each), each.kind) for each in before.difference(after)] == [
        ("torch's function mode Twice is on", DifferenceKind.WRONG),
        ("the default dtype is None, not torch.float32", DifferenceKind.RESTART),
    ]
    assert isinstance(before.difference(after)[0], Difference)


def test_the_cache_of_triton_keeps_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    default = knobs.cache.dir
    name_triton_cache()
    assert Path(os.environ["TRITON_CACHE_DIR"]) == Path(default)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name_triton_cache()
    assert knobs.cache.dir == str(tmp_path)
