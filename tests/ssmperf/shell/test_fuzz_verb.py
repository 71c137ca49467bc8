"""`ssmperf fuzz`: its exit codes and lines, how it goes on, and what a report of its run shows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller

PLUGIN = Path(__file__).parents[2] / "support" / "plugins" / "fuzzed.py"
OF = ("fuzz", "linear_attention", "--plugin", str(PLUGIN), "--device", "cpu", "--seed", "1", "--backends")


@pytest.fixture
def call(
    own_registrations: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Call:
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capsys)


def records(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "records.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_right_backend_ends_with_0_and_its_run_goes_on(call: Call) -> None:
    code, out, err = call(*OF, "fuzzed_right", "--examples", "20", "--out", "run")
    assert code == 0, err
    assert "20 examples" in out and "0 faults" in out and "seed 1; run" in out.splitlines()[-1]
    before = records("run")
    code, out, err = call(*OF, "fuzzed_right", "--examples", "20", "--out", "run", "--resume")
    assert code == 0, err
    after = records("run")
    assert after[: len(before)] == before and len(after) > len(before)
    assert len({record["case_id"] for record in after}) == len(after)
    code, out, err = call("report", "run")
    assert code == 0, err
    lines = {line.split("  ")[0].strip() for line in out.splitlines()}
    assert {"dtype", "layout", "packing", "call", "T", "K"} <= lines


def test_a_fault_has_a_line_its_command_and_exit_code_3(call: Call) -> None:
    code, out, err = call(*OF, "fuzzed_narrow", "--examples", "20", "--out", "run")
    assert code == 3, err
    fault, command, *_ = out.splitlines()
    assert "wrong: output" in fault and "3 of 3" in fault
    assert command.strip().startswith("ssmperf run --suite fuzz --models linear_attention")
    kept = Path("runs", "fuzz-failures.jsonl").read_text().splitlines()
    assert json.loads(kept[0])["backend"] == "fuzzed_narrow"
    code, out, err = call("report", "run")
    assert "wrong)" in next(line for line in out.splitlines() if line.strip().startswith("K "))
    # what failed before is judged first
    code, *_ = call(*OF, "fuzzed_narrow", "--examples", "1", "--out", "again")
    assert code == 3
    assert any(
        record["case_id"] in {each["case_id"] for each in records("run")} for record in records("again")
    )


def test_without_hypothesis_one_line_says_how_to_install_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "hypothesis" else find(name, *rest)
    )
    code, out, err = call(*OF, "fuzzed_right", "--examples", "1")
    assert code == 2 and out == ""
    assert err.strip().splitlines() == [err.strip()] and "pip install hypothesis" in err
