"""The nursery: children are forked from a prepared process, and nothing that they start outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssmperf.engine.processes.nursery import Child, Nursery, NurseryEnded

CHILDREN = """
import os, sys, time

PREPARED = []

def prepare():
    PREPARED.append(os.getpid())

def main(config):
    print("prepared by", PREPARED[0], "in", os.getpid(), flush=True)
    what = config["what"]
    if what == "exits":
        sys.exit(7)
    if what == "raises":
        raise ValueError("planted")
    if what == "answers":
        os.write(config["pipe"], config["text"].encode())
    if what == "leaves":
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(config["pipe"], str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        os.waitpid(child, 0)
    if what == "hangs":
        time.sleep(600)
"""


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    (tmp_path / "planted_children.py").write_text(CHILDREN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    made = Nursery(["planted_children:prepare"], tmp_path / "nursery.log")
    yield made
    made.close()


def start(nursery: Nursery, tmp_path: Path, what: str, pipe: int | None = None, text: str = "") -> Child:
    inherited = {} if pipe is None else {"pipe": pipe}
    with (tmp_path / "log").open("ab") as log:
        return nursery.start("planted_children", {"what": what, "text": text}, log.fileno(), inherited)


def test_a_child_is_forked_from_the_prepared_process(nursery: Nursery, tmp_path: Path) -> None:
    child = start(nursery, tmp_path, "nothing")
    assert child.exit_code() == 0
    words = (tmp_path / "log").read_text().split()
    assert int(words[2]) == nursery.process.pid
    assert int(words[4]) == child.pid
    child.close()


@pytest.mark.parametrize(("what", "code"), [("exits", 7), ("raises", 1), ("nothing", 0)])
def test_an_exit_code_is_told(nursery: Nursery, tmp_path: Path, what: str, code: int) -> None:
    child = start(nursery, tmp_path, what)
    assert child.exit_code() == code
    assert what != "raises" or "ValueError: planted" in (tmp_path / "log").read_text()
    child.close()


def test_a_child_inherits_descriptors_by_name(nursery: Nursery, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = start(nursery, tmp_path, "answers", writing, "hello")
    os.close(writing)
    assert os.read(reading, 100) == b"hello"
    os.close(reading)
    child.close()


def test_a_killed_child_has_ended(nursery: Nursery, tmp_path: Path) -> None:
    child = start(nursery, tmp_path, "hangs")
    assert not child.ended(0.05)
    child.kill()
    assert child.ended(5)
    assert child.exit_code() == -signal.SIGKILL
    child.close()


def test_what_a_child_leaves_behind_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    other = start(nursery, tmp_path, "hangs")
    child = start(nursery, tmp_path, "leaves", writing)
    os.close(writing)
    stray = int(os.read(reading, 100))
    os.close(reading)
    assert child.exit_code() == 0
    assert Path(f"/proc/{stray}").exists()
    child.close()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{stray}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{stray}").exists()
    assert not other.ended(), "another child is not swept away"
    other.close()


def test_a_dead_nursery_is_an_error(nursery: Nursery, tmp_path: Path) -> None:
    nursery.process.kill()
    nursery.process.wait()
    with pytest.raises(NurseryEnded):
        start(nursery, tmp_path, "nothing")


def test_a_nursery_that_ends_at_once_says_its_last_line(tmp_path: Path) -> None:
    nursery = Nursery(["no_module_of_this_name"], tmp_path / "nursery.log")
    with pytest.raises(
        NurseryEnded, match="its last line: ModuleNotFoundError: No module named 'no_module_of"
    ):
        nursery.wait_until_ready(60)
    nursery.close()


def test_a_folder_of_the_same_name_in_the_current_one_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssmperf").mkdir()  # a clone
    monkeypatch.chdir(tmp_path)
    nursery = Nursery(["ssmperf.suitekit"], tmp_path / "nursery.log")
    nursery.wait_until_ready(60)
    nursery.close()


def test_a_nursery_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    made: list[Nursery] = []

    def make() -> None:
        made.append(Nursery([], tmp_path / "nursery.log"))
        made[0].wait_until_ready(60)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    try:
        time.sleep(0.1)
        made[0].sweep()
        assert made[0].alive
    finally:
        made[0].close()


DRIVER = """
import pathlib, sys, time
from ssmperf.engine.processes.nursery import Nursery
nursery = Nursery([], pathlib.Path(sys.argv[1]))
nursery.wait_until_ready(60)
print(nursery.process.pid, flush=True)
time.sleep(600)
"""


def test_a_nursery_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "nursery.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        driver.kill()
    status, deadline = Path(f"/proc/{pid}/stat"), time.monotonic() + 10
    while status.exists() and status.read_text().split(") ")[1][0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not status.exists() or status.read_text().split(") ")[1][0] == "Z"
