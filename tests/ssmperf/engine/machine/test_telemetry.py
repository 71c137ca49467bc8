"""Telemetry from a fake NVML: readings, marks of throttled samples, energy, reasons for missing numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssmperf.engine.machine import telemetry
from ssmperf.engine.machine.telemetry import DeviceReading, Telemetry
from ssmperf.engine.measure.sampling import Samples


class FakeNvml:
    """Replaces `pynvml`: one device, whose state a test sets."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        self.refuses, self.throttle_bits, self.energy_mj, self.open = refuses, 0, 0, 0
        self.uuids: list[str] = []
        self.compute: list[int] = []  # ids of processes
        self.graphics: list[int] = []
        self.sm_clock_mhz = 1980

    def answer(self, name: str, value: Any) -> Any:
        if name in self.refuses:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlInit(self) -> None:
        self.answer("init", None)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.uuids.append(uuid)
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return {self.NVML_CLOCK_SM: self.sm_clock_mhz, self.NVML_CLOCK_MEM: 3201}[which]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, which: int) -> int:
        return self.answer("maximum", {self.NVML_CLOCK_SM: 1980}[which])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return self.answer("processes", [SimpleNamespace(pid=pid) for pid in self.compute])

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return self.answer("processes", [SimpleNamespace(pid=pid) for pid in self.graphics])

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self.answer("power", 650_000)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self.answer("energy", self.energy_mj)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.throttle_bits


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"), raising=True
    )


def watch(nvml: FakeNvml, throttle: range = range(0), steps: int = 10, energy_mj: int = 0) -> Telemetry:
    """Take one reading per second from 0 to steps, some of them under a throttle."""
    clock = SimpleNamespace(now_s=0)
    telemeter = Telemetry("cuda:0", period_s=None, nvml=nvml, now=lambda: float(clock.now_s))
    with telemeter:
        for second in range(1, steps):
            clock.now_s = second
            nvml.throttle_bits = 0x40 if second in throttle else 0x01  # idle is no throttle
            nvml.energy_mj += energy_mj
            telemeter.read()
        clock.now_s = steps
    return telemeter


def test_an_injected_throttle_marks_just_those_samples(gpu: None) -> None:
    telemeter = watch(FakeNvml(), throttle=range(4, 6))
    spans = [(0.2 * i, 0.2 * i + 0.1) for i in range(50)]
    marks = telemeter.marks(spans)
    assert [span for span, marked in zip(spans, marks, strict=True) if marked] == [
        span for span in spans if span[1] >= 3 and span[0] <= 6
    ]
    samples = Samples(tuple(2.0 if marked else 1.0 for marked in marks), tuple(spans), (), 0.01)
    kept = samples.excluding(marks)
    assert set(kept.samples_s) == {1.0} and kept.summary.n == 50 - sum(marks)
    assert telemeter.numbers()["throttles"] == ["hardware thermal"]


def test_without_a_throttle_nothing_is_marked(gpu: None) -> None:
    telemeter = watch(FakeNvml())
    assert telemeter.marks([(0.0, 10.0)]) == [False]
    assert telemeter.numbers()["throttles"] == []


def test_a_throttle_at_the_edges_and_a_span_across_it() -> None:
    readings = [DeviceReading(0.0, throttles=("power cap",)), DeviceReading(1.0), DeviceReading(2.0)]
    assert telemetry.throttled([(0.1, 0.2), (1.2, 1.9), (-1.0, 3.0)], readings) == [True, False, True]


def test_readings_are_in_si_units_and_nvml_is_closed(gpu: None) -> None:
    nvml = FakeNvml()
    telemeter = watch(nvml)
    numbers = telemeter.numbers()
    assert (numbers["sm_clock_hz"], numbers["memory_clock_hz"]) == (1980e6, 3201e6)
    assert (numbers["power_w"], numbers["temperature_c"]) == (650.0, 61.0)
    assert numbers["window_duration_s"] == 10 and numbers["telemetry_reason"] is None
    assert nvml.open == 0 and nvml.uuids == ["GPU-12-34"]
    assert len(telemeter.readings) == 11


def test_energy_needs_a_window_of_many_counter_steps(gpu: None) -> None:
    short = watch(FakeNvml(), steps=10, energy_mj=500).numbers()
    assert short["window_energy_j"] is None and "too short" in short["window_energy_reason"]
    long = watch(FakeNvml(), steps=31, energy_mj=500).numbers()
    assert long["window_energy_j"] == pytest.approx(15.0) and long["window_energy_reason"] is None


def test_what_a_device_does_not_tell_is_none(gpu: None) -> None:
    numbers = watch(FakeNvml(refuses=("power", "energy"))).numbers()
    assert numbers["power_w"] is None and numbers["sm_clock_hz"] is not None
    assert numbers["window_energy_j"] is None and numbers["window_energy_reason"] == "no energy counter"


def test_refused_or_no_gpu_is_none_with_a_reason(gpu: None) -> None:
    refused = watch(FakeNvml(refuses=("init",)))
    assert refused.numbers()["power_w"] is None and refused.reason == "NVML refuses: Not Supported"
    assert refused.marks([(0.0, 1.0)]) == [False]
    with Telemetry("cpu") as telemeter:
        telemeter.read()
    assert telemeter.readings == [] and telemeter.numbers()["telemetry_reason"] == "no telemetry on cpu"


def test_missing_package_is_a_reason(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with Telemetry("cuda:0") as telemeter:
        pass
    assert telemeter.reason == "nvidia-ml-py is not installed"


def test_the_thread_ends_with_the_block(gpu: None) -> None:
    with Telemetry("cuda:0", period_s=0.001, nvml=FakeNvml()) as telemeter:
        thread = telemeter._thread
        assert thread is not None and thread.is_alive()
    assert not thread.is_alive() and len(telemeter.readings) >= 2


def test_an_idle_machine_is_not_busy(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "family", lambda: {100, 101})
    nvml = FakeNvml()
    nvml.compute = [100, 101]
    assert watch(nvml).busy() == []


@pytest.mark.parametrize(
    ("compute", "graphics", "text"),
    [
        ([100, 101, 7], [], "1 other process uses the GPU"),
        ([100, 7], [8, 7], "2 other processes use the GPU"),
        ([7, 8], [], None),  # ids of another namespace: these two may be the worker and the judge
        ([7, 8, 9], [], "1 other process uses the GPU"),
    ],
)
def test_other_processes_on_the_device_are_counted(
    gpu: None,
    monkeypatch: pytest.MonkeyPatch,
    compute: list[int],
    graphics: list[int],
    text: str | None,
) -> None:
    monkeypatch.setattr(telemetry, "family", lambda: {100, 101})
    nvml = FakeNvml()
    nvml.compute, nvml.graphics = compute, graphics
    assert watch(nvml).busy() == ([text] if text else [])


def test_a_process_that_comes_during_the_window_is_counted(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "family", lambda: {100})
    nvml = FakeNvml()
    nvml.compute = [100]
    with Telemetry("cuda:0", period_s=None, nvml=nvml) as telemeter:
        nvml.compute = [100, 7]
    assert telemeter.busy() == ["1 other process uses the GPU"]


def test_throttles_and_slow_clocks_make_it_busy(gpu: None) -> None:
    nvml = FakeNvml()
    nvml.sm_clock_mhz = 1208
    assert watch(nvml, throttle=range(4, 6)).busy() == [
        "throttled: hardware thermal",
        "SM clock at 61 % of its maximum",
    ]
    nvml.sm_clock_mhz = 1900  # 96 %
    assert watch(nvml).busy() == []


def test_the_clock_before_the_work_begins_does_not_count(gpu: None) -> None:
    nvml = FakeNvml()
    nvml.sm_clock_mhz = 345
    with Telemetry("cuda:0", period_s=None, nvml=nvml) as telemeter:
        nvml.sm_clock_mhz = 1980
        telemeter.read()
    assert telemeter.busy() == []


def test_what_nvml_does_not_tell_makes_nothing_busy(gpu: None) -> None:
    nvml = FakeNvml(refuses=("processes", "maximum"))
    nvml.compute, nvml.sm_clock_mhz = [7, 8, 9], 300
    assert watch(nvml).busy() == []
    assert watch(FakeNvml(refuses=("init",))).busy() == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_device_answers() -> None:
    with Telemetry("cuda") as telemeter:
        torch.cuda.synchronize()
    assert telemeter.reason is None and telemeter.numbers()["sm_clock_hz"] > 1e8
