"""The host's time, first calls and hardware counters: what `ssmperf profile` measures beside kernels."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.command_line import Call, caller

from ssmperf import Status, UsageError
from ssmperf.authors.profiling import counters, host, kinds, measurement, process
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan import Device, Selection
from ssmperf.errors import CannotMeasure, ExitCode

TINY = ("--axis", "B=1", "--axis", "T=3", "--axis", "C=2", "--device", "cpu")
CASE = Case("profile", "scan", "sequential", Shape({"B": 1, "T": 3, "C": 2}), operand_source="sigmoid/data")

PLUGIN = """
import os, time
from pathlib import Path
import ssmperf
from ssmperf import registry

@ssmperf.backend("scan", name="slow_first")
def slow_first(log_a, b, initial_state=None, *, phase=None):
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    if not cache.exists():
        time.sleep(0.5)
        cache.mkdir(parents=True)
    return registry.backend("scan", "sequential").function(log_a, b, initial_state, phase=phase)

@ssmperf.backend("scan", name="broken")
def broken(log_a, b, initial_state=None, *, phase=None):
    raise RuntimeError("no such tile")
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capsys)


def selection(*, models: str = "hgrn", backends: str = "sequential") -> Selection:
    return select(models=models, backends=backends, device="cpu")[0]


def on_gpu(**names: str) -> Selection:
    return replace(selection(**names), device=Device("cuda", memory_bytes=80 << 30, capability=(9, 0)))


class HostClock:
    """A host's clock that calls and waits set forward, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.called: list[str] = []

    def now(self) -> float:
        return self.now_s

    def call(self, name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.called.append(name)
            self.now_s += seconds

        return work

    def wait(self) -> None:
        self.now_s += 5e-6


class TestHost:
    def test_the_batches_of_calls_alternate_and_times_are_per_call(self) -> None:
        clock = HostClock()
        calls = {"host_s": clock.call("host_s", 30e-6), "empty_s": clock.call("empty_s", 10e-6)}
        found = host.times(calls, clock.wait, now=clock.now)
        warm = host.WARM_CALLS + 1
        batch = ["host_s"] * host.CALLS + ["empty_s"] * host.CALLS
        assert clock.called == ["host_s"] * warm + ["empty_s"] * warm + batch * host.BATCHES
        assert found["host_s"].median_s == pytest.approx(30e-6)
        assert found["empty_s"].fastest_s == pytest.approx(10e-6)
        assert found["host_s"].drain_fraction == pytest.approx(5 / 1500)

    @pytest.mark.slow
    def test_slow_calls_have_small_batches(self) -> None:
        clock = HostClock()
        host.times({"host_s": clock.call("host_s", 0.1)}, clock.wait, longest_s=10.0, now=clock.now)
        assert len(clock.called) == host.WARM_CALLS + 1 + 2 * host.BATCHES

    @pytest.mark.parametrize("pass_", ["forward", "backward", "forward_backward"])
    def test_every_call_has_its_empty_counterpart(self, pass_: str) -> None:
        calls = host.calls_of(replace(CASE, pass_=pass_), "cpu")
        assert list(calls) == ["host_s", "empty_s", "compute_s"]
        results = [call() for call in calls.values()]
        shapes = [[None if each is None else each.shape for each in result] for result in results]
        assert shapes[0] == shapes[1] == shapes[2]

    def test_a_layer_is_measured_without_compute(self) -> None:
        found, devices = select(
            models="gla", backends="chunkwise", device="cpu", preset="smoke", level="block"
        )
        case = next(iter(kinds.first_call.chosen(found)))
        assert list(host.calls_of(case, devices[0])) == ["host_s", "empty_s"]

    def test_the_empty_function_keeps_strides(self) -> None:
        x = torch.rand(2, 3, requires_grad=True)
        results = [torch.rand(4, 5).T, torch.rand(6)]
        outputs = host.Empty.apply(results, x)
        assert [(y.shape, y.stride()) for y in outputs] == [((5, 4), (1, 5)), ((6,), (1,))]
        (gradient,) = torch.autograd.grad(outputs, [x], results)
        assert gradient.shape == x.shape

    def test_the_cases_are_small_unless_sizes_are_named(self) -> None:
        found = host.chosen(on_gpu())
        assert [case.pass_ for case in found] == list(host.PASSES)
        assert {(case.shape["T"], case.dtype) for case in found} == {(64, "bfloat16")}

    def test_a_cpu_is_refused_with_one_line(self, call: Call) -> None:
        code, _, err = call("profile", "hgrn", "sequential", "--host", "--device", "cpu")
        assert code == 2 and err.count("\n") == 1 and "--host needs a GPU" in err


class TestFirstCall:
    @pytest.mark.slow
    def test_the_first_call_is_timed_with_empty_caches(
        self, call: Call, tmp_path: Path, own_registrations: None
    ) -> None:
        (tmp_path / "slow.py").write_text(PLUGIN)
        words = ("profile", "hgrn", "slow_first", "--plugin", "slow.py", "--first-call", "--pass", "forward")
        code, out, err = call(*words, *TINY, "--out", tmp_path / "out", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert found == json.loads((tmp_path / "out" / "first-call.json").read_text())
        (record,) = found["records"]
        assert record["status"] == "ok" and record["first_s"] > 0.5 > record["later_s"] > 0

    def test_a_failure_has_its_status_and_reason(self, tmp_path: Path, own_registrations: None) -> None:
        (tmp_path / "broken.py").write_text(PLUGIN)
        answer = tmp_path / "answer.json"
        job = {"task": process.FIRST_CALL, "case": replace(CASE, backend="broken").to_json(), "device": "cpu"}
        process.main(json.dumps({**job, "plugins": [str(tmp_path / "broken.py")], "answer": str(answer)}))
        said = json.loads(answer.read_text())
        assert said["status"] == "crash" and "no such tile" in said["reason"]

    def test_a_process_that_takes_too_long_is_ended_with_its_children(self, tmp_path: Path) -> None:
        words = ["bash", "-c", "sleep 3141 & echo $!; wait"]
        assert process._run(words, {"PATH": "/usr/bin:/bin"}, tmp_path / "log", 0.5) is None
        child = int((tmp_path / "log").read_text())
        ended = time.monotonic() + 10
        while (state := state_of(child)) not in (None, "Z") and time.monotonic() < ended:
            time.sleep(0.01)
        assert state in (None, "Z")

    def test_a_process_that_dies_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(process.sys, "executable", "/bin/false")
        with pytest.raises(process.Aborted, match="exit code 1"):
            process.run(process.FIRST_CALL, CASE, "cpu", 10.0)

    def test_an_interrupt_keeps_what_was_measured(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def numbers_of(case: Case, device: str, timeout_s: float) -> dict[str, float]:
            if case.gradients:
                raise KeyboardInterrupt
            return {"first_s": 2.0, "later_s": 0.5}

        kind = replace(kinds.KINDS["first-call"], numbers_of=numbers_of)
        monkeypatch.setitem(kinds.KINDS, "first-call", kind)
        code, _, err = call("profile", "hgrn", "sequential", *TINY, "--first-call", "--out", tmp_path / "x")
        file = tmp_path / "x" / "first-call.json"
        assert code == ExitCode.INTERRUPTED and str(file) in err
        assert [record["first_s"] for record in json.loads(file.read_text())["records"]] == [2.0]

    def test_a_crash_ends_with_3_after_the_others(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        def numbers_of(case: Case, device: str, timeout_s: float) -> dict[str, float]:
            if not case.gradients:
                raise measurement.Failed(Status.CRASH, "no luck")
            return {"first_s": 2.0, "later_s": 0.5}

        kind = replace(kinds.KINDS["first-call"], numbers_of=numbers_of)
        monkeypatch.setitem(kinds.KINDS, "first-call", kind)
        code, out, _ = call("profile", "hgrn", "sequential", *TINY, "--first-call", "--out", "x")
        assert code == 3 and "crash: profile hgrn sequential" in out and " 500" in out
        assert out.splitlines()[-1] == "first-call written to x/first-call.json"


def state_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def ncu_output() -> str:
    """Write what ncu prints for a kernel, among other lines."""
    names = [metric for metric, _ in counters.METRICS.values()]
    stalls = {counters.STALL.format(reason): str(place) for place, reason in enumerate(counters.STALLS)}
    numbers = ["1,500", "80.5", "0.5", "25", "8", "123456789", "64", *stalls.values()]
    lines = [["ID", "Kernel Name", *names, *stalls], ["", "", *("%" for _ in numbers)]]
    lines += [["0", "selective_scan_forward(int)", *numbers]]
    table = "\n".join(",".join(f'"{each}"' for each in line) for line in lines)
    return f'"a plug-in" says something\n==PROF== Connected to process 7\n{table}\n==PROF== Disconnected\n'


class TestCounters:
    def answering(self, monkeypatch: pytest.MonkeyPatch, output: str, *, ended: bool = True) -> None:
        def run(*_: Any, under: list[str], **__: Any) -> tuple[dict[str, Any], str]:
            assert under[0] == "ncu" and "--profile-from-start" in under
            if not ended:
                raise process.Aborted("its process ended with exit code 9", output)
            return {}, output

        monkeypatch.setattr(process, "run", run)

    def test_numbers_have_their_units_and_the_largest_stalls_come_first(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.answering(monkeypatch, ncu_output())
        numbers = counters.numbers_of(CASE, "cuda:0", 1.0)
        (kernel,) = numbers["kernels"]
        assert kernel["kernel"] == "selective_scan_forward" and kernel["registers"] == 64
        assert kernel["time_s"] == 1.5e-6 and kernel["memory_percent"] == 80.5
        assert list(kernel["stalls"]) == list(counters.STALLS)[:-6:-1]
        record = Record(CASE, Status.OK, None, None, numbers)
        text = kinds.as_text(kinds.Measurement("counters", "cuda:0", tmp_path, {}, [record]))
        assert "selective_scan_forward" in text and "wait 14, sleeping 13" in text

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_lack_of_permission_says_what_to_do(self, ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answering(monkeypatch, "==ERROR== ERR_NVGPUCTRPERM - The user does not have", ended=ended)
        with pytest.raises(CannotMeasure, match="NVreg_RestrictProfilingToAdminUsers=0") as raised:
            counters.numbers_of(CASE, "cuda:0", 1.0)
        assert raised.value.exit_code == ExitCode.UNSURE

    @pytest.mark.parametrize(
        ("output", "reason"),
        [
            ("==ERROR== No metrics found\n", "No metrics found"),
            ("", "no kernel was counted"),
            (ncu_output().replace('"80.5"', '"n/a"'), "gave no number"),
        ],
    )
    def test_a_case_without_counters_says_why(
        self, output: str, reason: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.answering(monkeypatch, output)
        with pytest.raises(measurement.Failed, match=reason):
            counters.numbers_of(CASE, "cuda:0", 1.0)

    def test_without_the_program_nothing_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(CannotMeasure, match="no ncu on PATH"):
            counters.chosen(on_gpu())
        with pytest.raises(UsageError, match="--counters needs a GPU"):
            counters.chosen(selection())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--host", "--counters"), "one of these at a time: --host, --counters"),
        (("--timeout", "3"), "--timeout is for --first-call and --counters"),
        (("--first-call", "--timeout", "0"), "above 0"),
        (("--first-call", "--axis", "H=3"), "no dimension of the selected models"),
    ],
)
def test_wrong_options_are_refused(words: tuple[str, ...], expected: str, call: Call) -> None:
    code, _, err = call("profile", "hgrn", "sequential", "--device", "cpu", *words)
    assert code == 2 and expected in err and err.count("\n") == 1


def test_a_backend_that_takes_no_case_is_refused(call: Call) -> None:
    code, _, err = call("profile", "hgrn", "triton", "--first-call", "--device", "cpu")
    assert code == 2 and "TRITON_INTERPRET" in err.splitlines()[-1]
