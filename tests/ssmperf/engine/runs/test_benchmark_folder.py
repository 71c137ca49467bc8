"""Folders of files of pytest-benchmark, such as its storage, have a history; other files there are named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller
from support.results.benchmarks import benchmark, document, write
from support.results.histories import write_run

import ssmperf
from ssmperf import Status
from ssmperf.engine.runs.store import load

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


def test_files_of_many_days_have_a_history(tmp_path: Path) -> None:
    files = []
    for day in range(12):
        seconds = 1e-3 * (1.2 if day >= 7 else 1.0) * (1 + 1e-3 * (day % 3))
        given = document(benchmark("test_a", seconds), benchmark("test_b", 1e-3 * (1 + 1e-3 * (day % 2))))
        given |= {"datetime": f"2026-01-{day + 1:02}T00:00:00", "commit_info": {"id": f"{day:x}" * 40}}
        files.append(write(tmp_path / f"{day}.json", given))
    found = ssmperf.history(files)
    (step,) = found.steps
    assert step.case.backend == "test_it.py::test_a" and step.after.commit == "7" * 40
    assert not found.left_out and len(found.cases) == 2


STORED: dict[str, Change] = {
    "as it is": lambda d: None,
    "no machine": lambda d: d.update(machine_info=None),
    "nothing of the machine": lambda d: d.update(machine_info={}),
    "no count": lambda d: d["machine_info"].update(cpu={"brand_raw": "A CPU"}),
    "null": lambda d: d["machine_info"].update(cpu={"brand_raw": "A CPU", "count": None}),
    "odd count": lambda d: d["machine_info"].update(cpu={"brand_raw": "A CPU", "count": "8"}),
    "odd names": lambda d: d["machine_info"].update(cpu=None, machine={}, processor=[1]),
    "no commit": lambda d: d.update(commit_info=None),
    "odd commit": lambda d: d.update(commit_info={"id": None, "dirty": "?"}),
    "no extra": lambda d: [each.pop(name) for each in d["benchmarks"] for name in ("extra_info", "options")],
    "no version": lambda d: d.pop("version"),
    "no samples": lambda d: [each["stats"].pop("data") for each in d["benchmarks"]],
}


@pytest.mark.slow(but=("as it is",))
@pytest.mark.parametrize("name", STORED)
def test_the_storage_of_pytest_benchmark_has_a_history(name: str, tmp_path: Path, call: Call) -> None:
    """Its folder, the machine's folder in it, and what lies around it, whatever optional fields are there."""
    inner = tmp_path / ".benchmarks" / "Linux-CPython-3.11-64bit"
    inner.mkdir(parents=True)
    for day in range(1, 10):
        data = document(benchmark("test_a", 1e-3)) | {"datetime": f"2026-01-{day:02}T00:00:00"}
        STORED[name](data)
        write(inner / f"{day:04}_abc.json", data)
    for folder in (tmp_path, inner.parent, inner):
        code, out, err = call("history", folder)
        assert code == 0 and "1 case over 9 runs" in out and not err
        assert "None" not in out and "left out" not in out
    for words in (("report", inner / "0001_abc.json"), ("history", inner, "--html", tmp_path / "p.html")):
        code, out, err = call(*words)
        assert code == 0 and "None cores" not in out + err
    assert "None" not in repr(load(inner / "0001_abc.json"))


def test_what_else_lies_in_a_folder_is_named_and_our_own_files_are_not(tmp_path: Path) -> None:
    write(tmp_path / "0001_a.json", document(benchmark("test_a", 1e-3)))
    odd = {
        "package.json": b"{}",
        "torn.json": b'{"benchmarks": [',
        "empty.json": b"",
        "bytes.json": b"\xff\xfe",
    }
    odd |= {"deep.json": b"[" * 10**5, "list.json": b"[1]"}
    for name, content in odd.items():
        (tmp_path / name).write_bytes(content)
    write(tmp_path / "undated.json", document(benchmark("test_a", 1e-3)) | {"datetime": None})
    (tmp_path / "folder.json").mkdir()
    search = tmp_path / "a-bisect"
    search.mkdir()
    (search / "bisect.json").write_text("{}")
    found = ssmperf.history(tmp_path)
    assert len(found.runs) == 1 and len(found.left_out) == len(odd) + 1
    assert all(sum(name in text for text in found.left_out) == 1 for name in (*odd, "undated.json"))
    assert all(len(text.splitlines()) == 1 for text in found.left_out)


def test_a_whole_number_of_many_digits_harms_no_other_benchmark(tmp_path: Path) -> None:
    """Python refuses to read it; it is no number of anything."""
    text = json.dumps(document(benchmark("test_a", 1e-3), benchmark("test_b", 1e-3)))
    file = tmp_path / "digits.json"
    file.write_text(
        text.replace('"rounds": 21', f'"rounds": {"9" * 10**4}', 1).replace("4096}", "9" * 5000 + "}")
    )
    assert [record.status for record in load(file).records] == [Status.OK, Status.OK]


def test_numbers_that_no_ratio_can_hold_are_left_out(tmp_path: Path) -> None:
    """Of runs of ours, too, which anybody may have written."""
    for number in range(8):
        write_run(tmp_path / f"run-{number}", number, [0.0, math.log(1e-320 if number % 2 else 1e300)])
    found = ssmperf.history(tmp_path)
    assert [len(each.points) for each in found.cases] == [8]
    assert len(found.left_out) == 8 and all("than any machine gives" in text for text in found.left_out)
