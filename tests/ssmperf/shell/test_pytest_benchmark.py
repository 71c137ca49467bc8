"""`ssmperf_benchmark`: pytest-benchmark's numbers are the samples of our clocks, also of a simulated GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import own_tests
from support.without_gpu.simulated_gpu import Simulated

import ssmperf
from ssmperf.engine.machine import devices
from ssmperf.engine.measure.clocks import HostClock, IssueClock
from ssmperf.engine.measure.device_clocks import EventClock
from ssmperf.engine.measure.stopwatch import Around, Stopwatch
from ssmperf.shell.pytest_plugin import benchmark
from ssmperf.shell.pytest_plugin.benchmark import Replay

pytest_plugins = ["pytester"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    own_tests.prepare()


class Work:
    """A plug-in with a fixture `gpu`, on which tests launch kernels."""

    def __init__(self, gpu: Simulated) -> None:
        self.gpu_ = gpu

    @pytest.fixture
    def gpu(self) -> Simulated:
        return self.gpu_


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    """A simulated GPU on which clocks are made, and whose flushes of the cache take 50 µs."""
    gpu = Simulated()

    def stopwatch(device: str, cache: str, *, graphs: bool) -> Stopwatch:
        assert not graphs
        make: Any = {"cuda": gpu, "now": gpu.now}
        around = Around((lambda: gpu.launch(50e-6, "flush")) if cache == "cold" else None)
        both = around.before, around.after
        first, host = EventClock("cuda", *both, **make), HostClock("cuda", *both, **make)
        return Stopwatch("cuda", around, first, None, host, IssueClock("cuda", around.before, **make))

    monkeypatch.setattr(Stopwatch, "of", stopwatch)
    monkeypatch.setattr(devices, "cuda_count", lambda: 1)
    monkeypatch.setattr("ssmperf.engine.machine.environment.gpu", lambda device: {"name": "Simulated"})
    return gpu


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run a test file in this process, and return what pytest-benchmark wrote, by name of the benchmark."""

    def run(code: str, *options: Any, gpu: Simulated | None = None, **outcomes: int) -> dict[str, Any]:
        pytester.makepyfile(test_own=code)
        plugins = (Work(gpu),) if gpu else ()
        words = ("-W", "error", "--benchmark-json", "out.json", *options)
        own_tests.run(pytester, *words, plugins=plugins).assert_outcomes(**outcomes or {"passed": 1})
        file = pytester.path / "out.json"
        text = file.read_text() if file.exists() else ""
        return json.loads(text) if text else {"benchmarks": []}

    return run


KERNELS = """
import pytest

@pytest.mark.ssmperf_clock(device="cuda")
@pytest.mark.benchmark(group="adds", max_time=0.05)
def test_it(ssmperf_benchmark, gpu):
    assert ssmperf_benchmark(lambda x: gpu.call(20, 1e-6)() or 2 * x, 21) == 42
"""


def test_device_time_of_a_gpu_has_no_launch_latency(run: Run, gpu: Simulated) -> None:
    """Twenty kernels of 1 µs take 20 µs of the device, though the host needs 100 µs to launch them."""
    found = run(KERNELS, gpu=gpu)
    (each,) = found["benchmarks"]
    assert each["name"] == "test_it" and each["group"] == "adds"
    assert each["stats"]["median"] == pytest.approx(20e-6, rel=1e-3)
    assert each["stats"]["rounds"] == len(each["stats"]["data"]) >= 6
    assert gpu.log.count("flush") > each["stats"]["rounds"]  # the cache was cold
    own = each["extra_info"]["ssmperf"]
    assert (own["device"], own["cache"], own["clock"]) == ("cuda:0", "cold", "event")
    assert own["host_latency_s"] >= 100e-6 and own["issue_s"] >= 95e-6 and own["converged"]
    assert found["machine_info"]["ssmperf"]["hardware"]["gpu"] == {"name": "Simulated"}
    assert each["options"]["timer"] == "ssmperf"


def test_the_cache_may_stay_hot(run: Run, gpu: Simulated) -> None:
    found = run(KERNELS.replace('device="cuda"', 'device="cuda", cache="hot"'), gpu=gpu)
    assert found["benchmarks"][0]["extra_info"]["ssmperf"]["cache"] == "hot"
    assert "flush" not in gpu.log


def test_no_device_time_is_an_error(run: Run, gpu: Simulated) -> None:
    code = KERNELS.replace("gpu.call(20, 1e-6)()", "None")
    assert run(code, gpu=gpu, failed=1)["benchmarks"] == []


def test_samples_are_handed_on_exactly() -> None:
    replay = Replay()
    for sample_s in (1e-6 / 3, 0.1, 123456.789, 2.0**-40):
        start = replay()
        replay.advance(sample_s)
        assert replay() - start == sample_s


ON_CPU = """
import gc, pytest, torch

calls = []

def work(x, *, more=1):
    calls.append(gc.isenabled())
    return x + more

@pytest.mark.benchmark(max_time=0.02, min_rounds=30, disable_gc=True)
def test_it(ssmperf_benchmark):
    assert ssmperf_benchmark(work, torch.ones(()), more=2) == 3
    assert ssmperf_benchmark.benchmark.stats.stats.rounds >= 30
    assert not all(calls) and gc.isenabled()
"""


def test_a_cpu_is_timed_by_the_wall_clock(run: Run) -> None:
    (each,) = run(ON_CPU)["benchmarks"]
    own = each["extra_info"]["ssmperf"]
    assert (own["device"], own["cache"], own["clock"]) == ("cpu", "hot", "wall")
    assert own["latency_low_s"] <= each["stats"]["median"] <= own["latency_high_s"]


@pytest.mark.slow
def test_a_short_call_is_timed_many_times_per_sample(run: Run) -> None:
    """As `WallClock` does: a sample is long against the timer's resolution."""
    run("""
import pytest
from ssmperf.engine.measure import clocks

calls = [0]
clocks.RESOLUTION = 1e-5  # a sample takes 100,000 ticks of the timer or more

def count():
    calls[0] += 1

@pytest.mark.ssmperf_clock(device="cpu")
@pytest.mark.benchmark(max_time=0.02)
def test_it(ssmperf_benchmark):
    ssmperf_benchmark(count)
    assert calls[0] > 20 * ssmperf_benchmark.benchmark.stats.stats.rounds
""")


def test_disabled_benchmarks_call_once(run: Run) -> None:
    code = ON_CPU.replace(
        "    assert ssmperf_benchmark.benchmark", "    assert len(calls) == 1\n    return\n    _"
    )
    assert run(code, "--benchmark-disable")["benchmarks"] == []


def test_a_profile_is_of_the_function(run: Run) -> None:
    (each,) = run(ON_CPU, "--benchmark-cprofile=tottime")["benchmarks"]
    assert any("work" in row["function_name"] for row in each["cprofile"])


REFUSED: dict[str, tuple[str, str, str]] = {
    "device": ('@pytest.mark.ssmperf_clock(device="tpu")', "x", "unknown device 'tpu'"),
    "cache": ('@pytest.mark.ssmperf_clock(cache="warm")', "x", "cold or hot"),
    "cold CPU": ('@pytest.mark.ssmperf_clock(cache="cold")', "x", "always measured with a hot cache"),
    "unknown": ("@pytest.mark.ssmperf_clock(stream=1)", "x", "takes device and cache"),
    "by place": ('@pytest.mark.ssmperf_clock("cuda")', "x", "takes device and cache"),
    "timer": ("@pytest.mark.benchmark(timer=max)", "x", "has a timer of its own"),
    "rounds": ("@pytest.mark.benchmark(min_rounds=10**6)", "x", "between 1 and 4000"),
    "raises": ("@pytest.mark.skipif(False, reason='')", "1 / 0", "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_timed_fails_the_test(name: str, pytester: pytest.Pytester) -> None:
    marker, call, text = REFUSED[name]
    pytester.makepyfile(f"""
import pytest, torch

{marker}
def test_it(ssmperf_benchmark):
    ssmperf_benchmark(lambda x: {call}, torch.ones(1))
""")
    result = own_tests.run(pytester, "-W", "error")
    outcome = result.parseoutcomes()
    assert outcome.get("failed", 0) + outcome.get("errors", 0) == 1 and "passed" not in outcome
    assert text in result.stdout.str()


def test_a_function_without_tensors_needs_a_device_where_there_is_a_gpu(
    run: Run, gpu: Simulated, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    code = "def test_it(ssmperf_benchmark): ssmperf_benchmark(lambda: 3)"
    run(code, gpu=gpu, failed=1)
    pytester.makepyfile(test_own=f"import pytest\n@pytest.mark.ssmperf_clock(device='cpu')\n{code}")
    own_tests.run(pytester, "--benchmark-max-time", "0.01").assert_outcomes(passed=1)


def test_tensors_are_found_wherever_they_are() -> None:
    module = torch.nn.BatchNorm1d(2)
    nested = {"a": [torch.ones(1), (torch.ones(2), 3)], "b": module}
    assert len(list(benchmark._tensors(nested))) == 2 + len(list(module.parameters())) + 3
    assert list(benchmark._tensors("text")) == []


def test_without_pytest_benchmark_the_fixture_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(ssmperf_benchmark): pass")
    result = own_tests.run(pytester, "-p", "no:benchmark")
    result.assert_outcomes(errors=1)
    assert "pip install pytest-benchmark" in result.stdout.str()


def test_other_benchmarks_keep_their_timer(run: Run) -> None:
    code = ON_CPU + "\ndef test_other(benchmark):\n    benchmark(sum, (1, 2))\n"
    found = {each["name"]: each for each in run(code, "--benchmark-max-time", "0.01", passed=2)["benchmarks"]}
    assert found["test_other"]["options"]["timer"] == "perf_counter"
    assert "ssmperf" not in found["test_other"]["extra_info"]


def test_the_file_is_read_with_device_and_clock(run: Run, gpu: Simulated, pytester: pytest.Pytester) -> None:
    run(KERNELS, gpu=gpu)
    read = ssmperf.load(pytester.path / "out.json")
    (record,) = read.records
    assert (record.case.device, record.case.cache, record.case.timing) == ("cuda", "cold", "ssmperf")
    assert record.case.model == "adds" and record.numbers["clock"] == "event"
    assert record.numbers["issue_s"] >= 95e-6
    (environment,) = read.environments.values()
    assert environment["hardware"]["gpu"] == {"name": "Simulated"}
    assert torch.__version__.startswith(environment["versions"]["torch"])  # which may lack the build


@pytest.fixture
def own_stream() -> Iterator[None]:
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


# In a process of its own: pytest-benchmark 5.2.3 leaves its file open, which fails a later test.
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stream", ["default", "own"])
def test_spins_on_a_gpu_are_recovered(
    stream: str, pytester: pytest.Pytester, request: pytest.FixtureRequest
) -> None:
    """One spin and four of its length: the difference is three spins by an event's own reading."""
    if stream == "own":
        request.getfixturevalue("own_stream")
    pytester.makepyfile(
        test_own="""
import pytest, torch

CYCLES = 500_000

@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.ssmperf_clock(device="cuda")
def test_spins(ssmperf_benchmark, count):
    ssmperf_benchmark(lambda: [torch.cuda._sleep(CYCLES) for _ in range(count)])

def test_tensors(ssmperf_benchmark):
    x = torch.ones(10**6, device="cuda")
    assert float(ssmperf_benchmark(torch.add, x, 1)[0]) == 2
"""
    )
    result = pytester.runpytest_subprocess("--benchmark-json", "out.json")
    result.assert_outcomes(passed=3)
    found = json.loads(Path("out.json").read_text())["benchmarks"]
    medians = [each["stats"]["median"] for each in found]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    end.synchronize()
    spin_s = start.elapsed_time(end) / 1e3 / 100
    assert medians[0] == pytest.approx(spin_s, rel=0.03, abs=2e-6)
    assert medians[1] - medians[0] == pytest.approx(3 * spin_s, rel=0.03, abs=6e-6)
    assert found[2]["extra_info"]["ssmperf"]["device"] == "cuda:0"
