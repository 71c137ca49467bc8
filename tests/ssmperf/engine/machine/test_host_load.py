"""The load by others, from a fake /proc; our own processes are none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssmperf.engine.machine import activity, host_load
from ssmperf.engine.machine.host_load import HostLoad

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A fake machine of two cores, ours, among others: `pass_time` lets it work."""

    def __init__(self, folder: Path, numbers: tuple[int, ...] = (0, 1)) -> None:
        self.folder, self.numbers = folder, numbers
        self.now_s, self.own = 100.0, {1: 5.0}
        self.worked_s = dict.fromkeys(numbers, 1000.0)
        self.stolen_s, self.idle_s = 0.0, 1000.0
        self.write()

    def write(self) -> None:
        lines = [
            f"cpu{number} {round(seconds * TICKS)} 0 0 {round(self.idle_s * TICKS)} 50 0 0 "
            f"{round(self.stolen_s * TICKS)} 99 0"
            for number, seconds in self.worked_s.items()
        ]
        (self.folder / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 1 2 3", ""]))

    def pass_time(self, seconds: float, own: float = 0.0, others: float = 0.0, stolen: float = 0.0) -> None:
        """Let seconds pass, in which so many cores work for us and for others."""
        self.now_s += seconds
        self.idle_s += seconds
        self.own[1] += seconds * own
        for number in self.numbers:
            self.worked_s[number] += seconds * (own + others) / len(self.numbers)
        self.stolen_s += seconds * stolen / len(self.numbers)
        self.write()

    def load(self, cgroup: Path | None = None) -> HostLoad:
        return HostLoad(
            proc=self.folder,
            cgroup=cgroup or self.folder,
            own_s=lambda: dict(self.own),
            now=lambda: self.now_s,
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    yield Machine(tmp_path)


def test_our_own_work_is_no_load(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(1, own=2.0)
    assert load.busy_since(machine.now_s - 1) == []


def test_work_of_others_is_told(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(1, own=0.7, others=1.3)
    assert load.busy_since(machine.now_s - 1) == ["others used 1.3 of 2 cores"]
    machine.pass_time(1, own=1.7, others=0.1)  # the background of any machine
    assert load.busy_since(machine.now_s - 1) == []


def test_time_stolen_by_another_virtual_machine_counts(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(1, own=1.0, stolen=0.6)
    assert load.busy_since(machine.now_s - 1) == ["others used 0.6 of 2 cores"]


def test_a_short_window_is_compared_with_an_earlier_reading(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(5)
    load.read()
    machine.pass_time(0.3, others=1.5)
    assert load.busy_since(machine.now_s - 0.02) == ["others used 1.5 of 2 cores"]
    machine.pass_time(0.3)
    machine.pass_time(0.05, others=2.0)  # one of them worked in the last seventh of the time
    assert load.busy_since(machine.now_s - 0.05) == []


def test_a_long_window_is_not_diluted_by_what_was_before(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(60)
    load.read()
    machine.pass_time(1, others=1.0)
    assert load.busy_since(machine.now_s - 1) == ["others used 1.0 of 2 cores"]


def test_without_an_old_reading_nothing_is_said(machine: Machine) -> None:
    load = machine.load()
    machine.pass_time(0.05, others=2.0)
    assert load.busy_since(machine.now_s - 0.05) == []


def test_an_own_process_that_ends_or_starts_is_no_load(machine: Machine) -> None:
    machine.own[2] = 500.0
    load = machine.load()
    machine.pass_time(1, own=1.0)
    del machine.own[2]
    machine.own[3] = 0.9
    machine.own[1] -= 0.9
    assert load.busy_since(machine.now_s - 1) == []


def test_only_our_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5})
    machine = Machine(tmp_path, numbers=tuple(range(8)))
    load = machine.load()
    machine.worked_s[0] += 1.0  # a core that we may not use
    machine.pass_time(1)
    assert load.busy_since(machine.now_s - 1) == []
    machine.worked_s[4] += 0.9
    machine.pass_time(1)
    assert load.busy_since(machine.now_s - 1) == ["others used 0.9 of 2 cores"]


def test_all_cores_count_where_a_container_numbers_them_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {40, 41})
    machine = Machine(tmp_path)
    load = machine.load()
    machine.pass_time(1, others=1.0)
    assert load.busy_since(machine.now_s - 1) == ["others used 1.0 of 2 cores"]


def test_a_limit_of_the_container_is_told(machine: Machine, tmp_path: Path) -> None:
    for place in (tmp_path / "two", tmp_path / "one" / "cpu"):
        place.mkdir(parents=True)
        counts = place / "cpu.stat"
        counts.write_text("usage_usec 1\nnr_periods 10\nnr_throttled 3\n")
        load = machine.load(tmp_path / place.relative_to(tmp_path).parts[0])
        machine.pass_time(1, own=1.0)
        assert load.busy_since(machine.now_s - 1) == []
        counts.write_text("usage_usec 2\nnr_periods 20\nnr_throttled 5\n")
        machine.pass_time(1, own=1.0)
        assert load.busy_since(machine.now_s - 1) == ["the CPU limit of the container held it back"]


@pytest.mark.parametrize(
    "text", [None, "", "cpu  0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\n", "cpu0 x y z\n", "\0"]
)
def test_without_counts_nothing_is_said(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    load = HostLoad(proc=tmp_path, cgroup=tmp_path, own_s=lambda: {})
    load.read()
    assert load.readings == [] and load.busy_since(0.0) == []


def test_readings_do_not_pile_up(machine: Machine) -> None:
    load = machine.load()
    for _ in range(50):
        machine.pass_time(1)
        load.read()
        load.read()
    assert len(load.readings) == host_load.MOST_READINGS
    assert len({reading.at_s for reading in load.readings}) == host_load.MOST_READINGS


def test_this_machine_has_counts() -> None:
    load = HostLoad()
    assert load.readings and load.readings[0].own_s[os.getpid()] > 0


def test_the_family_of_a_driver_is_itself_and_its_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {os.getpid(), child.pid} <= activity.family()
        assert os.getppid() not in activity.family()
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize("side", [None, f"python -m {activity.SIDE}"])
def test_the_family_of_a_worker_starts_at_its_driver(
    monkeypatch: pytest.MonkeyPatch, side: str | None
) -> None:
    """Where two versions are compared, the other one's processes are of the same family."""
    commands = {os.getpid(): activity.NURSERY, 50: f"python -m {activity.NURSERY} {{}}"}
    commands |= {45: side or "ssmperf ab", 40: "pytest", 30: "sh"}
    parents = {os.getpid(): 50, 50: 45, 45: 40, 40: 30, 30: 1}
    below = {40: [45, 50, 60, 70, os.getpid()], 45: [50, 60, os.getpid()]}
    monkeypatch.setattr(activity, "_command", lambda pid: commands[pid])
    monkeypatch.setattr(activity, "_parent", lambda pid: parents[pid])
    monkeypatch.setattr(activity, "descendants", lambda pid: iter(below[pid]))
    driver = 40 if side else 45
    assert activity.family() == {driver, *below[driver]}
