"""Files of a run folder are anybody's: no verb waits for them, runs out of memory or crowns what they say."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller
from support.results import pairs

from ssmperf import UnreadableRun
from ssmperf.comparison.attempts import FILE
from ssmperf.engine.cases import reading
from ssmperf.engine.runs.store import RECORDS_FILE, RUN_FILE, Writer, load

VERBS: dict[str, Callable[[Path, Path], tuple[str | Path, ...]]] = {
    "check": lambda new, base: ("check", new, "--baseline", base),
    "compare": lambda new, base: ("compare", base, new),
    "report": lambda new, base: ("report", new),
    "best": lambda new, base: ("best", new),
    "history": lambda new, base: ("history", new),
}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.setenv("SSMPERF_CALIBRATION", str(tmp_path / "none"))
    return caller(monkeypatch, capsys)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    return Path(shutil.copytree(pairs.FOLDER / "ok", tmp_path / "pair"))


def refused(call: Call, pair: Path, verb: str) -> str:
    """Run a verb on the new run; it must end with exit code 2 and one line, which is returned."""
    code, out, err = call(*VERBS[verb](pair / "new", pair / "base"))
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    return err


def change(file: Path, **fields: Any) -> None:
    """Change the first record of a run."""
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(first), **fields}), *others]) + "\n")


# ---------------------------------------------------------------- what is opened


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)
    os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = {"a pipe": pipe, "a folder": Path.mkdir, "a socket": listening, "a device": endless}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [RECORDS_FILE, RUN_FILE, f"{RECORDS_FILE}.gz", f"{RUN_FILE}.gz"])
def test_only_regular_files_are_opened(name: str, kind: str, pair: Path) -> None:
    (pair / "new" / name.removesuffix(".gz")).unlink()
    ODD[kind](pair / "new" / name)
    with pytest.raises(UnreadableRun, match=f"it is {kind}, no regular file"):
        load(pair / "new")


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_waits_for_a_pipe(verb: str, call: Call, pair: Path) -> None:
    (pair / "new" / RECORDS_FILE).unlink()
    pipe(pair / "new" / RECORDS_FILE)
    assert "it is a pipe" in refused(call, pair, verb)


def test_a_file_that_becomes_a_pipe_is_not_read(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pair / "new" / RECORDS_FILE
    opened = os.open

    def swapped(path: Any, *rest: Any) -> int:
        if path == file:
            file.unlink()
            pipe(file)
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(UnreadableRun, match="it is a pipe"):
        load(pair / "new")


def test_a_run_is_not_continued_in_a_pipe(pair: Path) -> None:
    (pair / "new" / RECORDS_FILE).unlink()
    pipe(pair / "new" / RECORDS_FILE)
    with pytest.raises(Exception, match="cannot write the run folder"):
        Writer.resume(pair / "new", {})


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_checks_are_counted_in_a_regular_file_alone(kind: str, call: Call, pair: Path) -> None:
    file, other = pair / "new" / FILE, pair / "other"
    if kind == "pipe":
        pipe(file)
    else:
        file.symlink_to(other)
    code, out, _ = call(*VERBS["check"](pair / "new", pair / "base"))
    assert code == 0 and f"it is a {kind}" in " ".join(out.split()) and not other.exists()


# ---------------------------------------------------------------- how much is read


def packed(folder: Path, name: str, content: bytes, times: int = 1) -> int:
    """Put an archive, whose parts have the same content, in the place of a file; return its size."""
    (folder / name).unlink()
    parts = times * gzip.compress(content)
    (folder / f"{name}.gz").write_bytes(parts)
    return len(parts)


LIMITED = """
import resource, sys
from ssmperf.engine.runs.store import load
from ssmperf.errors import UnreadableRun

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20),) * 2)
try:
    load(sys.argv[1])
except UnreadableRun as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow(but=("one line-run.json",))
@pytest.mark.parametrize("name", [RECORDS_FILE, RUN_FILE])
@pytest.mark.parametrize("content", ["one line", "empty lines", "records"])
def test_an_archive_is_not_unpacked_without_end(name: str, content: str, pair: Path) -> None:
    """A few MB that unpack to 1.2 GB, with 160 MiB to spare."""
    first = (pair / "new" / RECORDS_FILE).read_bytes().splitlines(keepends=True)[0]
    block = {"one line": b" ", "empty lines": b"\n", "records": first}[content]
    size = packed(pair / "new", name, block * ((2 << 20) // len(block)), times=600)
    assert 150 * size < 1200 << 20
    command = [sys.executable, "-c", LIMITED, str(pair / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(rf"{name}.gz unpacks to more than 100 times its size", done.stdout), done.stderr


def test_small_archives_may_unpack_to_more(pair: Path) -> None:
    records = (pair / "new" / RECORDS_FILE).read_bytes()
    size = packed(pair / "new", RECORDS_FILE, 200 * records)
    assert 100 * size < 200 * len(records) < reading.SMALL
    assert len(load(pair / "new").records) == 6 and load(pair / "new").warnings == []


@pytest.mark.parametrize("name", [RECORDS_FILE, RUN_FILE])
def test_what_is_read_at_once_has_a_limit(name: str, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (pair / "new" / name).open("r+b") as file:
        file.truncate(1 << 40)  # of which the disk keeps nothing
    with pytest.raises(UnreadableRun, match="a line is longer than 64 MiB"):
        load(pair / "new")


def test_a_file_that_is_read_whole_has_a_limit(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST", 2000)
    with pytest.raises(UnreadableRun, match="larger than"):
        load(pair / "new")


# ---------------------------------------------------------------- what is shown

IMPOSSIBLE = (5e-324, 1e-300, -1e-3, 0, 1e300)


@pytest.mark.parametrize("seconds", IMPOSSIBLE)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_crowns_a_time_that_no_machine_takes(
    verb: str, seconds: float, call: Call, pair: Path
) -> None:
    change(pair / "new" / RECORDS_FILE, latency_s=seconds, samples_s=[seconds] * 9, tokens_per_s=1e300)
    code, out, err = call(*VERBS[verb](pair / "new", pair / "base"))
    assert code == (3 if verb in ("check", "compare") else 0), err
    assert "contradicts itself" in err or "contradicts itself" in " ".join(out.split())
    assert "gla chunkwise" in err + out and "Traceback" not in err
    assert not re.search(r"\d{12}", out)
    if verb == "best":
        (row,) = [line for line in out.splitlines() if "gla" in line and "×" in line]
        assert "sequential" in row and "chunkwise" not in row


@pytest.mark.parametrize("form", ["markdown", "csv"])
def test_no_format_marks_such_a_time_as_the_fastest(form: str, call: Call, pair: Path) -> None:
    change(pair / "new" / RECORDS_FILE, latency_s=1e-300, samples_s=[1e-300] * 9)
    html = pair / "page.html"
    code, out, _ = call("report", pair / "new", "--format", form, "--html", html)
    assert code == 0 and "1e-300 is less than any machine gives" in out
    assert not re.search(r"\d{40}|e\+?29\d|e\+?30\d", out + html.read_text())
