"""What tests fork instead of starting it behaves as if it had been started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import forks
from support.processes.quick_processes import command, shell_command

from ssmperf.engine.processes.nursery import Nursery

PROGRAM = """
import atexit, os, sys, threading, time

def end():
    time.sleep(0.05)
    print("the thread ends")

print(sys.argv, sys.path[0], __name__, os.getcwd(), os.environ["GIVEN"], sys.stdin.read())
print("told", file=sys.stderr)
atexit.register(print, "the program ends")
threading.Thread(target=end).start()
os.kill(os.getpid(), int(sys.argv[1])) if sys.argv[1] != "0" else sys.exit(7)
"""


@pytest.mark.parametrize("number", [0, signal.SIGINT, signal.SIGTERM])
def test_a_fork_ends_as_a_process_does(number: int, tmp_path: Path) -> None:
    """By itself, by an exception, or by a signal."""
    program, folder = tmp_path / "program.py", tmp_path / "folder"
    program.write_text(PROGRAM)
    folder.mkdir()
    started = subprocess.run(
        [sys.executable, program, str(number), "word"],
        cwd=folder, env={**os.environ, "GIVEN": "value"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, restore_signals=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    forked = command(number, "word", program=str(program), folder=folder, GIVEN="value")
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[0] == "told" and bool(forked.stderr[5:]) == bool(started.stderr[5:])


def heed_interrupts() -> None:
    """Undo that a shell lets its background jobs, and so their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_shell_hears_the_exit_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; print(sys.argv[1:]); sys.exit(5)")
    line = f"{shell_command(str(program))} 'two words'; echo $?"
    assert subprocess.run(line, shell=True, capture_output=True, text=True).stdout == "['two words']\n5\n"


@pytest.mark.slow
def test_a_nursery_is_forked_unless_a_variable_forbids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for value, kind in ((None, forks.Forked), ("x", subprocess.Popen)):
        if value:
            monkeypatch.setenv("TRITON_INTERPRET", value)
        nursery = Nursery(["torch"], tmp_path / "log")
        assert type(nursery.process) is kind and nursery.alive
        nursery.close()
        assert not nursery.alive
