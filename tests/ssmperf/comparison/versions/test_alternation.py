"""Samples of two processes alternate slice by slice, with no wait in a time, whatever either comes to."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssmperf.comparison.versions import serve
from ssmperf.comparison.versions.serve import Telling
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute import context as context_module
from ssmperf.engine.execute import worker_process
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.worker_process import WorkerProcess
from ssmperf.engine.measure.sampling import BRIEF_SHARE, SLICE_S, Alternation, Samples, sample
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.registry.cost import Ceilings

AWAY_S = 0.3  # for which the other process works
CASE = Case("throughput", "scan", "sequential", Shape(B=1, T=8, C=2))


@dataclass
class Bench:
    """A call of a known length, another process that works in between, and their clock.

    slices: the samples of each slice. warm_ups: at which times the call was made untimed.
    there: for how many turns the other process is there.
    """

    call_s: float
    there: float = math.inf
    now_s: float = 50.0
    slices: list[list[float]] = field(default_factory=list)
    warm_ups: list[float] = field(default_factory=list)
    finished: int = 0

    def take(self) -> float:
        self.slices[-1].append(self.now_s)
        self.now_s += self.call_s
        return self.call_s

    def warm_up(self) -> None:
        self.warm_ups.append(self.now_s)
        self.now_s += self.call_s

    def hand_over(self, *, finished: bool) -> bool:
        self.finished += finished
        if self.there > 0:
            self.there -= 1
            self.now_s += AWAY_S
            self.slices.append([])
            return True
        self.slices = self.slices or [[]]
        return False

    def sample(self, **settings: Any) -> Samples:
        alternation = Alternation(self.take, self.hand_over, self.warm_up, lambda: self.now_s)
        found = sample(alternation, now=alternation.now, **{"max_time_s": 1.0, "min_time_s": 1.0, **settings})
        alternation.finish()
        return found


@pytest.mark.parametrize("call_s", [0.0009, 0.007, 0.02, 0.1])
def test_samples_come_in_slices_and_no_wait_is_in_a_time(call_s: float) -> None:
    bench = Bench(call_s)
    found = bench.sample()
    alone = Bench(call_s, there=0)
    assert found.samples_s == alone.sample().samples_s  # as many, and as long
    *slices, last = bench.slices[:-1]  # one more begins when all samples are taken
    fits = math.ceil(SLICE_S / call_s)
    assert {len(each) for each in slices} == {fits} and 1 <= len(last) <= fits
    assert len(slices) >= 5 and bench.finished == 1


def test_a_slice_of_brief_calls_begins_with_an_untimed_one() -> None:
    brief, long = Bench(0.9 * BRIEF_SHARE * SLICE_S), Bench(1.1 * BRIEF_SHARE * SLICE_S)
    for bench in (brief, long):
        bench.sample()
    own = brief.slices[1:-1]  # how long a call takes is not known before the first one
    assert [each[0] for each in own] == pytest.approx([at + brief.call_s for at in brief.warm_ups])
    assert long.warm_ups == []


def test_a_process_whose_partner_has_gone_makes_no_untimed_calls() -> None:
    bench = Bench(0.001, there=3)
    bench.sample()
    assert len(bench.warm_ups) == 2 and len(bench.slices) == 3


class Machine:
    """The log of two tasks that must never work at once."""

    def __init__(self) -> None:
        self.working = threading.Lock()
        self.log: list[tuple[str, str]] = []

    def work(self, name: str, what: str) -> None:
        assert self.working.acquire(blocking=False), "both work at once"
        self.log.append((name, what))
        self.working.release()


def task(
    partner: Partner, machine: Machine, name: str, pair: int, steps: list[int], *, first: bool, dies: bool
) -> None:
    """Do a task: timings of so many slices each, with something before and after them.

    dies: whether the process ends within the last timing; then another one that knows the pair ends the task.
    """
    partner.begin(pair, first=first)
    worker = Partner(partner.descriptor)
    worker.join(partner.pair)
    for number, slices in enumerate(steps):
        machine.work(name, "set-up")
        for _ in range(slices):
            worker.hand_over(finished=False)
            machine.work(name, f"slice {number}")
        if dies and number == len(steps) - 1:
            break
        worker.hand_over(finished=True)
    else:
        machine.work(name, "rest")
    partner.end()


def together(*calls: Any) -> None:
    """Make calls at the same time; fail if one does not end."""
    errors: list[BaseException] = []

    def run(call: Any) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors and not any(thread.is_alive() for thread in threads), errors


@pytest.fixture
def ends() -> Iterator[dict[str, socket.socket]]:
    sockets = dict(zip(("base", "new"), socket.socketpair(), strict=True))
    yield sockets
    for end in sockets.values():
        end.close()


def test_two_tasks_never_work_at_once_and_their_slices_alternate(ends: dict[str, socket.socket]) -> None:
    """Over one socket: whoever is first, whatever either has to time, and wherever it dies."""
    draw = random.Random(1)
    partners = {name: Partner(end.fileno()) for name, end in ends.items()}
    for pair in range(1, 200):
        machine = Machine()
        jobs = []
        plans = {name: [draw.randrange(1, 9) for _ in range(draw.choice((0, 1, 1, 1, 2)))] for name in ends}
        dies = {name: draw.random() < 0.2 for name in ends}
        first = draw.choice(list(ends))
        for name, partner in partners.items():
            job = partial(task, partner, machine, name, pair, plans[name])
            jobs.append(partial(job, first=name == first, dies=dies[name]))
        together(*jobs)
        for name, plan in plans.items():
            own = [what for who, what in machine.log if who == name]
            assert own.count("slice 0") == (plan[0] if plan else 0)
            assert ("rest" in own) != (dies[name] and plan != [])
        if all(plans.values()):
            slices = [who for who, what in machine.log if what == "slice 0"]
            at = machine.log.index((first, "slice 0"))  # who has all slices waits for the other's
            assert {what for _, what in machine.log[at : at + len(slices)]} == {"slice 0"}, machine.log
            both = 2 * min(plan[0] for plan in plans.values())
            assert slices[:both] == [first, *({*ends} - {first})] * (both // 2), machine.log
        assert machine.log[0][0] == first


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_side_that_is_gone_leaves_the_other_alone(ends: dict[str, socket.socket], turns: int) -> None:
    stays, goes = Partner(ends["base"].fileno()), Partner(ends["new"].fileno())
    slices: list[bool] = []

    def stay() -> None:
        stays.begin(7, first=False)
        while len(slices) < 9:
            slices.append(stays.hand_over(finished=False))
        assert not stays.hand_over(finished=True)
        stays.end()

    def go() -> None:
        goes.begin(7, first=True)
        for _ in range(turns):
            goes.hand_over(finished=False)
        ends["new"].close()

    together(stay, go)
    assert slices == [True] * turns + [False] * (9 - turns)


def test_what_an_earlier_pair_has_left_is_dropped(ends: dict[str, socket.socket]) -> None:
    base, new = (Partner(end.fileno()) for end in ends.values())
    for partner in (base, new):
        partner.join(1)
        partner.end()  # read by nobody
    order = []

    def work(partner: Partner, name: str) -> None:
        partner.begin(2, first=name == "base")
        order.append(name)
        partner.end()

    together(lambda: work(new, "new"), lambda: work(base, "base"))
    assert order == ["base", "new"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 10.0

    def monotonic(self) -> float:
        return self.now_s


def worker(messages: list[tuple[float, dict[str, Any]]], clock: Clock, limits: list[float]) -> Any:
    """Make the driver's end of a worker that says each message so many seconds after the one before."""
    made = WorkerProcess.__new__(WorkerProcess)
    left = iter(messages)

    def receive(ends_s: float) -> dict[str, Any]:
        limits.append(ends_s - clock.now_s)
        after_s, message = next(left)
        if after_s > limits[-1]:
            raise TimeoutError
        clock.now_s += after_s
        return {**message, "number": "n"}

    made.__dict__.update(
        _receive=receive, _partner=None, _words=(), log=Path(__file__), env_id="e", _buffer=b""
    )
    made.__dict__.update(_requests=-1, _more=lambda: False)
    return made


def test_waiting_counts_neither_for_the_limit_nor_as_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, limits = Clock(), []
    monkeypatch.setattr(worker_process, "time", clock)
    monkeypatch.setattr(worker_process, "os", SimpleNamespace(write=lambda *ignored: None))
    ended = {"record": Record(CASE, Status.OK, None, "e").to_json(), "healthy": True, "forked": False}
    said: list[tuple[float, dict[str, Any]]] = [(1.0, {"phase": "timing"})]
    said += [(2.0, {"phase": "waiting"}), (500.0, {"phase": "timing"})] * 4
    tested = worker([*said, (1.0, {"phase": "backend"}), (3.0, ended)], clock, limits)
    record, _ = tested.run(CASE, "n", 10.0)
    assert record.status is Status.OK and tested.timing_s == 9.0 and tested.waited_s == 2000.0
    assert limits == [10, 10, math.inf, 8, math.inf, 6, math.inf, 4, math.inf, 2, 10]
    slow = worker([*said, (2.5, {"phase": "backend"})], clock, limits)
    record, _ = slow.run(CASE, "n", 10.0)
    assert record.status is Status.TIMEOUT  # 10.5 s of timing, though no part of it took long


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_tells_its_driver_when_it_waits_and_leaves_that_out(
    ends: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    phases: list[str] = []
    partner = Partner(ends["base"].fileno())
    ceilings = Ceilings(1e15, {"float32": 1e18}, 1e15, 1e18, 0)
    context = Context("cpu", "e", Settings(0.0, 0.02), ceilings, on_phase=phases.append, partner=partner)
    clock = Clock()
    monkeypatch.setattr(context_module, "time", clock)
    other = Partner(ends["new"].fileno())

    def wait() -> None:
        other.begin(3, first=False)
        for turn in range(3):
            clock.now_s += 500
            other.hand_over(finished=turn == 2)
        other.end()

    cores: list[set[int]] = []

    def call() -> None:
        cores.append(os.sched_getaffinity(0))

    def measure() -> None:
        partner.begin(3, first=True)
        clock.now_s += 1
        call()
        timing = context.time(CASE, call, touched=(), peak_bytes=None)
        partner.end()
        call()
        assert timing.window_s == 0.0  # without 1,500 seconds of waiting

    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    together(wait, measure)
    assert cores[0] == cores[-1]
    one = {sorted(cores[0])[3 % len(cores[0])]} if threads == 1 else cores[0]
    assert all(each == one for each in cores[2:-1])  # the partner, with the same number, is there as well
    assert clock.now_s == 1511.0
    assert phases[0] == "timing" and phases[-1] == "backend" and phases.count("waiting") >= 2
    assert phases[1:-1] == ["waiting", "timing"] * phases.count("waiting")


@pytest.mark.parametrize("status", [Status.CRASH, Status.UNSUPPORTED, Status.OK])
def test_a_case_that_has_ended_in_whatever_way_lets_the_other_side_go_on(
    ends: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """Its worker may be dead, with the token; the process above it says so."""
    go = {"go": True, "pair": 4, "first": True}
    monkeypatch.setattr(serve, "sys", SimpleNamespace(stdin=io.StringIO(json.dumps(go) + "\n")))
    telling = Telling(io.StringIO(), Partner(ends["base"].fileno()))
    telling.left = 1
    other = Partner(ends["new"].fileno())

    def fail() -> None:
        telling.start(CASE, "cpu")
        telling.finish(Record(CASE, status, "because", "e"))

    together(fail, lambda: other.begin(4, first=False))
    assert other.pair is None and telling.partner is not None and telling.partner.pair is None


FAULTS = """
import ctypes, resource, sys
from ssmperf.engine.processes.heap import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if "keep" in sys.argv:
    keep_freed_memory()

def call():
    blocks = [libc.malloc(24 << 20) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, 24 << 20)
    for block in blocks:
        libc.free(block)

call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_call_gets_the_memory_of_the_call_before() -> None:
    found = {
        word: int(
            subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, check=True).stdout
        )
        for word in ("keep", "adapt")
    }
    assert found["keep"] < 20 < found["adapt"], found  # 72 MiB are 36 huge pages, or 18,432 others
