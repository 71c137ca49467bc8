"""Snapshots of a process: each change that a backend could leave is named, and one that is undone is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.processes.process_changes import CHANGES, HONEST
from support.processes.quick_processes import command

from ssmperf.engine.machine.process_settings import name_triton_cache

# Runs each script in a fork of its own, and prints: [name, [differences after each statement]].
DRIVER = """
import collections, concurrent.futures, gc, io, json, locale, os, resource, signal
import subprocess, sys, threading, time, types
import torch
from ssmperf import registry
from ssmperf.engine.execute.process_state import Snapshot

def noop(*_, **__):
    return None

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
            lines.append(before.difference(Snapshot.take()))
        print(json.dumps([name, lines]), file=out, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

Found = dict[str, list[list[str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Make every change and undo it, each in a process of its own, and collect the differences."""
    scripts = {name: [each.change, each.restore] for name, each in CHANGES.items()}
    scripts |= {f"honest {name}": [script] for name, script in HONEST.items()}
    return collected(scripts, tmp_path_factory.mktemp("driver"))


def collected(scripts: dict[str, list[str]], folder: Path) -> Found:
    driver, asked = folder / "driver.py", folder / "scripts.json"
    driver.write_text(DRIVER)
    asked.write_text(json.dumps(scripts))
    done = command(asked, program=str(driver))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(scripts), done.stderr[-3000:]
    return dict(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_named_and_undone_is_not(found: Found, name: str) -> None:
    changed, restored = found[name]
    assert any(text.startswith(CHANGES[name].words) for text in changed), changed
    assert restored == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_libraries_leave_no_difference(found: Found, name: str) -> None:
    assert found[f"honest {name}"] == [[]]


def test_the_cache_of_triton_keeps_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    default = knobs.cache.dir
    name_triton_cache()
    assert Path(os.environ["TRITON_CACHE_DIR"]) == Path(default)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name_triton_cache()
    assert knobs.cache.dir == str(tmp_path)
