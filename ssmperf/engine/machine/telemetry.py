"""Clocks, power, temperature and throttling of a GPU while it is being timed, as NVML reports them.

If NVML is missing or refuses, every number is None and `reason` says why.
"""

from __future__ import annotations

import importlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from ssmperf.engine.machine.activity import family

# Involuntary slowdowns by NVML's bit; idleness and clocks set by a user are not among them.
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
LEAST_CLOCK_SHARE = 0.9  # of the largest SM clock; a device below it is limited by something
OWN_CONTEXTS = 2  # on a device, at most: the worker's and the judge's
LEAST_ENERGY_STEPS = 20  # of the energy counter within a window: its resolution is then 5 % of the energy


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The device's state at one moment of the sampling clock; None where NVML has no answer."""

    at_s: float
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    throttles: tuple[str, ...] = ()


class Telemetry:
    """Reads the device at the beginning and end of a `with` block, and every `period_s` in between.

    Args:
        device: a torch device; only a GPU has telemetry.
        period_s: time between readings by a background thread; None starts no thread (see `read`).
        nvml: the module `pynvml`; None imports it when needed.
        now: the sampling clock, which also times the samples.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        period_s: float | None = 0.01,
        nvml: Any = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device, self.period_s, self.now = torch.device(device), period_s, now
        self.readings: list[DeviceReading] = []
        self.reason: str | None = None
        self.others = 0  # processes on the device that are not of this run
        self.largest_sm_clock_hz: float | None = None
        self._nvml, self._handle = nvml, None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Telemetry:
        self._open()
        self.read()
        self._count_others()
        if self.period_s is not None and self._handle is not None:
            self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
        if self._handle is not None:
            self.read()
            self._count_others()
            nvml = self._nvml
            self.largest_sm_clock_hz = _times(
                self._ask("nvmlDeviceGetMaxClockInfo", self._handle, nvml.NVML_CLOCK_SM), 1e6
            )
            nvml.nvmlShutdown()
            self._handle = None

    def read(self) -> None:
        """Take one reading now, if NVML is available."""
        if self._handle is None:
            return
        nvml, handle = self._nvml, self._handle
        bits = int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0)
        self.readings.append(
            DeviceReading(
                at_s=self.now(),
                sm_clock_hz=_times(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
                memory_clock_hz=_times(self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM), 1e6),
                power_w=_times(self._ask("nvmlDeviceGetPowerUsage", handle), 1e-3),
                temperature_c=_times(
                    self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU), 1.0
                ),
                energy_j=_times(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3),
                throttles=tuple(name for bit, name in THROTTLES.items() if bits & bit),
            )
        )

    def marks(self, taken_at_s: Sequence[tuple[float, float]]) -> list[bool]:
        """Mark the samples that were taken under a throttle; see `throttled`."""
        return throttled(taken_at_s, self.readings)

    def busy(self) -> list[str]:
        """List why the device was not ours alone or at full speed; call it after the block."""
        texts = []
        if self.others:
            texts.append(
                "1 other process uses the GPU"
                if self.others == 1
                else f"{self.others} other processes use the GPU"
            )
        throttles = {name: None for reading in self.readings for name in reading.throttles}
        if throttles:
            texts.append(f"throttled: {', '.join(throttles)}")
        # the first reading is of a device that has not begun to work
        clock_hz = _median(self.readings[1:], "sm_clock_hz")
        largest_hz = self.largest_sm_clock_hz
        if clock_hz is not None and largest_hz and clock_hz < LEAST_CLOCK_SHARE * largest_hz:
            texts.append(f"SM clock at {100 * clock_hz / largest_hz:.0f} % of its maximum")
        return texts

    def numbers(self) -> dict[str, Any]:
        """Sum up the readings as fields of a record: medians, extremes, energy, and reasons for gaps."""
        energy_j, energy_reason = energy(self.readings)
        seen = {name: None for reading in self.readings for name in reading.throttles}
        return {
            "sm_clock_hz": _median(self.readings, "sm_clock_hz"),
            "memory_clock_hz": _median(self.readings, "memory_clock_hz"),
            "power_w": _median(self.readings, "power_w"),
            "temperature_c": max(
                (r.temperature_c for r in self.readings if r.temperature_c is not None), default=None
            ),
            "throttles": list(seen),
            "window_energy_j": energy_j,
            "window_energy_reason": self.reason or energy_reason,
            "window_duration_s": self.readings[-1].at_s - self.readings[0].at_s if self.readings else None,
            "telemetry_reason": self.reason,
        }

    def _open(self) -> None:
        if self.device.type != "cuda":
            self.reason = f"no telemetry on {self.device.type}"
            return
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
        except self._nvml.NVMLError as error:
            self.reason = f"NVML refuses: {error}"

    def _count_others(self) -> None:
        """Count the processes on the device that are not of this run; keep the largest count.

        In a container NVML may list processes by ids of the host. Then none of them is this one, and as many
        as a run has on a device are taken for ours.
        """
        if self._handle is None:
            return
        listed: set[int] = set()
        for kind in ("Compute", "Graphics"):
            try:
                found = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses")(self._handle)
            except self._nvml.NVMLError:
                continue  # this device does not report them
            listed |= {int(process.pid) for process in found}
        own = family()
        count = len(listed - own) if listed & own else max(len(listed) - OWN_CONTEXTS, 0)
        self.others = max(self.others, count)

    def _watch(self) -> None:
        while not self._done.wait(self.period_s):
            self.read()

    def _ask(self, name: str, *arguments: Any) -> float | None:
        try:
            return float(getattr(self._nvml, name)(*arguments))
        except self._nvml.NVMLError:
            return None  # this device does not report it


def throttled(taken_at_s: Sequence[tuple[float, float]], readings: Sequence[DeviceReading]) -> list[bool]:
    """Mark the samples that a throttle may have slowed, given when each began and ended.

    Between two readings the device may have been in the state of either, so a throttled reading covers the
    time from the reading before it to the one after it.
    """
    bad = []
    for i, reading in enumerate(readings):
        if reading.throttles:
            bad.append((readings[max(i - 1, 0)].at_s, readings[min(i + 1, len(readings) - 1)].at_s))
    return [any(start <= last and first <= end for first, last in bad) for start, end in taken_at_s]


def energy(readings: Sequence[DeviceReading]) -> tuple[float | None, str | None]:
    """Compute the joules between the first and last reading by its counter, or None with the reason."""
    counts = [reading.energy_j for reading in readings]
    known = [count for count in counts if count is not None]
    if not known or len(known) < len(counts):
        return None, "no energy counter"
    steps = sum(after > before for before, after in itertools.pairwise(known))
    if steps < LEAST_ENERGY_STEPS:
        return None, f"the window is too short for the energy counter ({steps} steps of {LEAST_ENERGY_STEPS})"
    return known[-1] - known[0], None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _median(readings: Sequence[DeviceReading], name: str) -> float | None:
    values = [getattr(reading, name) for reading in readings]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
