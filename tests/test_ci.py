"""The scripts of ci/: what they print, and how they end."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.processes.quick_processes import command

from ci import counters, host_time, totals

ROOT = Path(__file__).parents[1]

STEP = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure>no</failure></testcase>
<testcase name="c"><skipped message="needs a CUDA device"/></testcase>
</testsuite></testsuites>"""

OTHER_SKIP = '<testcase name="a"><skipped message="needs g++"/></testcase>'


class TestTotals:
    def test_the_last_line_is_the_sum_of_the_steps(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("unit.xml", "gpu.xml"):
            (tmp_path / name).write_text(STEP)
        totals.main([str(tmp_path / "gpu.xml"), str(tmp_path / "unit.xml")])
        gpu, total = capsys.readouterr().out.splitlines()
        assert gpu == "GPU tests: 1 passed, 1 failed, 2 skipped (needs a CUDA device)"
        assert total == "tests: 2 passed, 2 failed, 2 skipped"

    def test_without_a_gpu_step_the_skipped_ones_are_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "unit.xml").write_text(STEP.replace('<testcase name="a"/>', OTHER_SKIP))
        totals.main([str(tmp_path / "unit.xml")])
        gpu, total = capsys.readouterr().out.splitlines()
        assert gpu == "GPU tests: 0 passed, 0 failed, 1 skipped (needs a CUDA device)"
        assert total == "tests: 0 passed, 1 failed, 2 skipped"


class TestCounters:
    """With a program in ncu's place, which prints the CSV that ncu prints, among other lines."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        names = [metric for metric, _ in counters.METRICS.values()]
        stalls = {counters.STALL.format(reason): place for place, reason in enumerate(counters.STALLS)}
        numbers = ["1,500", "80.5", "0.5", "25", "8", "123456789", "64", *stalls.values()]
        lines = [["ID", "Kernel Name", *names, *stalls], ["", "", *("%" for _ in numbers)]]
        lines += [["0", "selective_scan_forward(int)", *numbers]]
        table = "\n".join(",".join(f'"{each}"' for each in line) for line in lines)
        file = tmp_path / "ncu"
        failing = 'case "$*" in *rwkv4*) echo "==ERROR== no counters"; exit 1 ;; esac'
        file.write_text(f"#!/bin/bash\n{failing}\ncat <<'END'\n==PROF== Connected\n{table}\nEND\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(counters.torch.cuda, "get_device_name", lambda: "a GPU")
        return file

    def test_numbers_have_their_units_and_the_largest_stalls_come_first(
        self, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert counters.main(["--cases", "mamba B8*", "--out", str(tmp_path / "found.json")]) == 0
        found = json.loads((tmp_path / "found.json").read_text())
        assert found == json.loads(capsys.readouterr().out)
        (kernel,) = found["kernels"]
        assert kernel["case"] == "mamba B8 T8192" and kernel["kernel"] == "selective_scan_forward"
        assert kernel["time_us"] == 1.5 and kernel["memory_percent"] == 80.5 and kernel["registers"] == 64
        assert list(kernel["stalls"]) == list(counters.STALLS)[:-6:-1]

    def test_a_case_without_counters_is_told(self, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert counters.main(["--cases", "rwkv4*"]) == 3
        (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
        assert "no counters" in kernel["failed"] and shlex.split(kernel["command"])[0] == str(program)

    @pytest.mark.parametrize("arguments", [["--cases", "no such"], ["--cases", "mamba*"]])
    def test_refusals_end_with_2(self, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SystemExit) as stop:
            counters.main(arguments)
        assert stop.value.code == 2

    def test_a_dry_run_prints_the_commands(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert counters.main(["--dry-run"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == len(counters.CASES)


class TestHostTime:
    def test_without_a_device_it_ends_with_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        if host_time.torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
        assert host_time.main([]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_times_are_medians_beside_an_empty_function(self) -> None:
        found = {
            "call": {"us": 30.0, "fastest_us": 28.0, "drain": 0.1},
            "empty": {"us": 10.0, "fastest_us": 9.0, "drain": 0.0},
            "compute": {"us": 34.5, "fastest_us": 33.0, "drain": 0.2},
        }
        row = host_time.row(found)
        assert (row["call"], row["above"], row["compute above"], row["drain"]) == (30, 20, 24.5, 0.1)

    def test_every_subject_is_called_in_turn(self) -> None:
        called: list[str] = []
        calls = {name: lambda name=name: called.append(name) for name in ("call", "empty")}
        found = host_time.times(calls, "cpu", batches=2, count=3)
        assert called[6:] == ["call"] * 3 + ["empty"] * 3 + ["call"] * 3 + ["empty"] * 3
        assert all(each["us"] >= each["fastest_us"] > 0 for each in found.values())

    def test_the_empty_function_gives_results_and_gradients_of_the_same_shapes(self) -> None:
        x = host_time.torch.rand(2, 3, requires_grad=True)
        results = [host_time.torch.rand(4, 5).T, host_time.torch.rand(6)]
        outputs = host_time.Empty.apply(results, x)
        assert [(y.shape, y.stride()) for y in outputs] == [((5, 4), (1, 5)), ((6,), (1,))]
        (gradient,) = host_time.torch.autograd.grad(outputs, [x], results)
        assert gradient.shape == x.shape

    def test_a_case_that_fails_says_why(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def fail(place: host_time.Place) -> host_time.Given:
            raise RuntimeError("no such operands")

        monkeypatch.setattr(host_time, "CASES", {"broken": ("scan/sequential", fail)})
        out = tmp_path / "times.json"
        assert host_time.main(["--device", "cpu", "--out", str(out)]) == 3
        assert "no such operands" in capsys.readouterr().out
        assert json.loads(out.read_text())["rows"][0]["failed"]

    def test_forward_and_both_passes_are_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cases = {"x": ("scan/sequential", lambda place: host_time.scan(place, 1, 3, 2))}
        monkeypatch.setattr(host_time, "CASES", cases)
        place = host_time.Place("cpu", host_time.FLOAT)
        rows = host_time.measured("x", place, batches=1, count=1)
        assert [row["pass"] for row in rows] == ["forward", "both"]
        assert all(row["call"] > 0 and row["compute"] > 0 for row in rows)


@pytest.mark.parametrize(
    "script",
    [
        str(file.relative_to(ROOT))
        for folder in ("ci", "tests/proofs")
        for file in sorted((ROOT / folder).glob("*.py"))
        if "argparse" in file.read_text()
    ],
)
def test_each_script_explains_its_options(script: str) -> None:
    done = command("--help", program=str(ROOT / script))
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
