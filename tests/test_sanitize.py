"""`proofs/sanitize.py`: what it draws and calls, and how it reads what compute-sanitizer says."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from proofs import sanitize

from ssmperf.authors.fuzzing.configurations.space import Space
from ssmperf.engine.plan.selection import Device, Selection
from ssmperf.suitekit import registry

GPU = Path("/dev/nvidiactl").exists()

SANITIZER = """#!/bin/bash
echo "$@" >>{log}
echo "0: unsupported no such size"
case "$*" in
    *racecheck*"--run scan/triton --from 0"*)
        echo "========= Error: Race reported between Write access at scan_forward+0xe0 in a.py:15"
        echo "=========     and Read access at void at::native::sum<float>(float *)+0x40 in b.cu:3"
        echo "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)" ;;
    *racecheck*"--run linear_attention/triton"*)
        echo "========= Error: Race reported between Write access at la_walk+0x9f00 in gradients.py:80"
        echo "=========     and Write access at la_walk+0x9f00 in gradients.py:80 [237 hazards]"
        echo "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)" ;;
    *racecheck*"--run ratio_scan/triton --from 5"*)
        echo "========= Error: Race reported between Write access at scan+0x9f00 in gradients.py:80"
        echo "=========     and Write access at scan+0x9f00 in gradients.py:80 [1 hazards]"
        echo "========= Error: Race reported between Write access at scan+0x9f00 in gradients.py:80"
        echo "=========     and Read access at scan+0x9f00 in gradients.py:80 [1 hazards]"
        echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)" ;;
    *racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
    *"--run scan/cuda --from 5"*) echo "========= ERROR SUMMARY: 0 errors"; exit 1 ;;
    *delta_rule/cuda*) echo "Traceback" ;;
    *synccheck*) exec sleep 60 ;;
    *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for compute-sanitizer; it runs nothing."""
    file = tmp_path / "compute-sanitizer"
    file.write_text(SANITIZER.format(log=tmp_path / "log"))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return file


def examined(folder: Path, code: int, *arguments: str) -> list[dict[str, Any]]:
    summary = folder / "summary.json"
    assert sanitize.main([*arguments, "--out", str(summary)]) == code
    found: list[dict[str, Any]] = json.loads(summary.read_text())["runs"]
    return found


def test_reads_what_the_tools_count() -> None:
    assert sanitize.errors("========= ERROR SUMMARY: 12 errors\n") == 12
    assert sanitize.errors("x\n========= ERROR SUMMARY: 0 errors") == 0
    assert sanitize.errors("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)") == 2
    assert sanitize.errors("killed") is None


def test_a_dry_run_prints_the_commands_for_every_fused_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--dry-run"]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert all(sys.executable in line for line in lines)
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        counts[line[2], line[line.index("--run") + 1]] += int(line[line.index("--count") + 1])
    assert {backend for _, backend in counts} == {
        "delta_rule/cuda", "delta_rule/triton", "linear_attention/triton", "ratio_scan/triton",
        "scan/cuda", "scan/triton", "selective_scan/triton",
    }  # fmt: skip
    assert counts == {
        (tool, backend): 40 if tool == "memcheck" else 10
        for tool in sanitize.USUAL
        for backend in sanitize.fused()
    }


def test_clean_configurations(program: Path, tmp_path: Path) -> None:
    arguments = [
        "--backends",
        "selective_scan/*",
        "--tools",
        "memcheck,racecheck",
        "--configurations",
        "7",
    ]
    rows = examined(tmp_path, 0, *arguments, "--seed", "3")
    assert [(row["tool"], row["configurations"]) for row in rows] == [
        (tool, part) for tool in ("memcheck", "racecheck") for part in ("0-4", "5-6")
    ]
    assert {(row["status"], row["errors"], row["refused"]) for row in rows} == {("ok", 0, 1)}
    end = "--run selective_scan/triton --from 5 --count 2 --seed 3"
    assert all(row["command"].endswith(end) for row in rows if row["configurations"] == "5-6")


def test_equal_writes_of_a_tile_with_few_elements_are_counted_apart(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--tools", "racecheck", "--backends", "linear_attention/*", "--configurations", "5"]
    (row,) = examined(tmp_path, 0, *arguments)
    assert (row["status"], row["errors"], row["replicas"]) == ("ok", 0, 1) and row["kernels"] == ["la_walk"]
    assert "1 pairs of equal writes" in capsys.readouterr().err
    _, mixed = examined(tmp_path, 3, "--tools", "racecheck", "--backends", "ratio_scan/*")
    assert (mixed["status"], mixed["errors"], mixed["replicas"]) == ("errors", 1, 1)


@pytest.mark.parametrize(
    ("tool", "backend", "statuses"),
    [
        ("racecheck", "scan/triton", ["errors", "ok"]),
        ("memcheck", "scan/cuda", ["ok", "failed"]),
        ("memcheck", "delta_rule/cuda", ["failed", "failed"]),
        ("synccheck", "scan/cuda", ["timeout"]),
    ],
)
def test_errors_and_failures_end_it_with_3(
    program: Path, tmp_path: Path, tool: str, backend: str, statuses: list[str]
) -> None:
    limit_s = "2" if tool == "synccheck" else "600"
    arguments = ["--tools", tool, "--backends", backend, "--timeout", limit_s]
    rows = examined(tmp_path, 3, *arguments, "--configurations", str(5 * len(statuses)))
    assert [row["status"] for row in rows] == statuses
    assert all(("output" in row) == (row["status"] != "ok") for row in rows)
    assert all(row["kernels"] == ["at::native::sum", "scan_forward"] for row in rows if row["errors"])


def test_says_what_is_missing_or_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "sanitizer", lambda: None)
    assert sanitize.main([]) == 4
    assert "no compute-sanitizer on PATH" in capsys.readouterr().err
    for arguments, message in (
        (["--tools", "leakcheck"], "unknown tools: leakcheck"),
        (["--backends", "nothing"], "no fused backend is called 'nothing'"),
        (["--run", "scan/sequential"], "no fused backend is called 'scan/sequential'"),
    ):
        with pytest.raises(SystemExit) as ended:
            sanitize.main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow(but=("scan/cuda",))
@pytest.mark.parametrize("backend", sanitize.fused())
def test_draws_equal_configurations_without_those_that_the_tools_cannot_run(backend: str) -> None:
    owner, _, name = backend.partition("/")
    entry = registry.backend(owner, name)
    selection = Selection(Device("cuda", capability=(9, 0)), models=(owner,))
    space = Space(owner, entry, "cuda", sanitize.BUDGET)
    cases, again = (list(islice(sanitize.drawn(space, selection, 1), 20)) for _ in range(2))
    assert cases == again and len({case.id for case in cases}) == 20
    assert not any({"graph", "device"} & set(case.call.split()) for case in cases)
    assert max(case.shape["T"] for case in cases) > 32
    assert {case.gradients for case in cases} == {True, False}
    for case in cases:
        elements = math.prod(size for letter, size in case.shape.items() if letter != "G")
        assert elements <= sanitize.BUDGET.elements and case.shape["T"] <= sanitize.BUDGET.steps


@pytest.mark.skipif(GPU, reason="there is a GPU")
@pytest.mark.parametrize("backend", ["scan/cuda", "delta_rule/cuda"])
def test_a_backend_that_cannot_run_here_is_no_pass(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitize.main(["--run", backend]) == 4
    assert f"{backend} runs on cuda only" in capsys.readouterr().err


def test_a_call_that_breaks_its_contract_or_ends_with_an_exception_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = registry.backend("scan", "sequential")

    def cut(*operands: Any, **options: Any) -> Any:
        output, state = right.function(*operands, **options)
        return output[:, 1:], state

    def raising(*operands: Any, **options: Any) -> Any:
        raise RuntimeError("broken")

    assert sanitize.run("scan/sequential", 1, 2, 0) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1:", "1:", "2:", "2:"]
    assert lines[0].startswith("1: ssmperf.verify('scan', sequential, ")
    for function, status in ((cut, "wrong"), (raising, "crash")):
        monkeypatch.setattr(registry, "backend", lambda *names, f=function: replace(right, function=f))
        assert sanitize.run("scan/sequential", 1, 4, 0) == 1
        results = capsys.readouterr().out.splitlines()[1::2]
        assert any(line.split()[1] == status for line in results), results
