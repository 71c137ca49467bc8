"""The executor: whatever a backend does to its worker, only its own case is lost."""

from __future__ import annotations

import _thread
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.places import place

from ssmperf import Case, Record, Shape, Status
from ssmperf.engine.execute import executor, lane, worker, worker_process
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.execute.executor import LocalExecutor
from ssmperf.engine.execute.lane import Events, Groups
from ssmperf.engine.plan.parts.groups import loads_of, longest_first
from ssmperf.engine.plan.parts.household import Household
from ssmperf.engine.plan.run_options import RunOptions
from ssmperf.engine.processes import nursery
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.errors import WorkerFailed
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "hostile.py"
at = partial(place, PLUGIN)
EXPECTED = {
    "forks": ("ok", None),
    "dies_with_heir": (
        "crash",
        f"the worker was killed by SIGABRT {at('os.abort()  # beside an heir', 'dies_with_heir')}",
    ),
    "leaves_session": ("timeout", "no answer within 4 s"),
    "sets_dtype": ("ok", None),
    "sets_device": (None, None),
    "leaves_mode": ("wrong", "it leaves the process changed: torch's function mode Idle is on"),
    "leaves_thread": ("ok", None),
    "prints": ("ok", None),
    "curses": ("crash", f"ValueError: \ufffd bad \ufffd \ufffd[31m red {at('ValueError(', 'curses')}"),
    "exits": ("crash", "the worker exited with 7"),
    "writes_nonsense": ("crash", "the worker's answer cannot be read"),
}
RAISING = {
    "curses": EXPECTED["curses"],
    "is_silent": ("crash", f"AssertionError (no message) {at('raise AssertionError', 'is_silent')}"),
    "gives_no_reason": ("unsupported", "the backend gave no reason"),
    "refuses_values": ("unsupported", "too much decay"),
    "is_unspeakable": (
        "crash",
        f"Unspeakable: (its message raises ValueError) {at('raise Unspeakable', 'is_unspeakable')}",
    ),
}
TIMEOUT_S = 4.0


def case(name: str, T: int = 4) -> Case:
    return Case(
        suite="correctness",
        model="hgrn",
        recurrence="scan",
        backend=f"hostile_{name}",
        shape=Shape(B=1, T=T, C=2),
    )


def run(
    cases: list[Case],
    folder: Path,
    devices: tuple[str, ...] = ("cpu",),
    on_start: Callable[[], None] = lambda: None,
    records: list[Record] | None = None,
) -> list[Record]:
    """Run cases and return the records, which are also appended to `records` if that is passed."""
    records = [] if records is None else records
    quick = replace(PRESETS["smoke"], min_time_s=0.001, max_time_s=0.01)
    executor = LocalExecutor(devices, folder, quick, RunOptions(timeout=TIMEOUT_S), (str(PLUGIN),))
    events = Events(lambda *_: None, lambda *_: on_start(), records.append)
    executor.run(cases, events)
    return records


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for the traces that hostile backends leave."""
    monkeypatch.setenv("HOSTILE_FOLDER", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """Run each hostile backend with a correct one after it."""
    folder = tmp_path_factory.mktemp("hostile")
    cases = [made for i, name in enumerate(EXPECTED) for made in (case(name, 4 + i), case("right", 4 + i))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTILE_FOLDER", str(folder))
        patch.setattr(worker_process, "LOG_CHECK_S", 0.05)
        return folder, run(cases, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_each_has_its_own_record(hostile: tuple[Path, list[Record]], name: str) -> None:
    (record,) = [r for r in hostile[1] if r.case.backend == f"hostile_{name}"]
    status, reason = EXPECTED[name]
    assert status is None or record.status == status, record.reason
    assert reason is None or str(record.reason) == reason


@pytest.mark.parametrize(
    ("own", "judged", "ended", "serves_on"),
    [
        (Household(), "crash", "crash", True),
        (Household(guest="scan/a"), "wrong", "wrong", True),
        (Household(guest="scan/a"), "nan", "nan", True),
        (Household(guest="scan/a"), "ok", "wrong", False),
        (Household(guest="scan/a"), "crash", "crash", False),
        (Household(("a.py",), "scan/a"), "wrong", "wrong", False),
        (Household(None, "a"), "wrong", "wrong", False),
        (Household(("a.py",), "scan/a"), "ok", "ok", True),
    ],
)
def test_peers_alone_serve_on_after_wrong_results(
    own: Household, judged: str, ended: str, serves_on: bool
) -> None:
    assert lane.goes_on(own, Status(judged), Status(ended), lane.TRUSTED) is serves_on


@pytest.mark.parametrize("name", RAISING)
def test_whatever_is_raised_becomes_a_reason(own_registrations: None, name: str) -> None:
    registry.load_plugin(PLUGIN)
    record = worker.run_case(case(name), Context("cpu", "env", Settings(), ceilings=None))  # type: ignore[arg-type]
    assert (record.status, record.reason) == RAISING[name]
    assert record.numbers.get("refused_values", False) is (name == "refuses_values")


def test_the_cases_after_them_are_as_if_alone(hostile: tuple[Path, list[Record]]) -> None:
    records = [r for r in hostile[1] if r.case.backend == "hostile_right"]
    assert [(r.status, r.reason) for r in records] == [("ok", None)] * len(EXPECTED)


def test_each_record_says_how_long_its_case_took_of_the_run(hostile: tuple[Path, list[Record]]) -> None:
    spent = {(r.case.backend, r.status): r.numbers["spent_s"] for r in hostile[1]}
    assert all(seconds > 0 for seconds in spent.values())
    assert all(seconds >= TIMEOUT_S for (_, status), seconds in spent.items() if status is Status.TIMEOUT)


def test_nothing_that_a_worker_started_outlives_it(hostile: tuple[Path, list[Record]]) -> None:
    pid = (hostile[0] / "stray_pid").read_text()
    assert gone(int(pid))


def test_the_log_keeps_its_end_only(hostile: tuple[Path, list[Record]]) -> None:
    assert sum(log.stat().st_size for log in hostile[0].glob("worker-*.log")) < worker_process.LOG_LIMIT_BYTES


@pytest.mark.slow
def test_a_worker_that_does_not_restart_costs_a_case(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "RESTART_ATTEMPTS", 2)
    records = run([case("forbids_restart", 3), case("right", 5), case("right", 6)], folder)
    assert [r.status for r in records] == ["crash", "crash", "ok"]
    assert "could not start" in str(records[1].reason)
    assert "no second import" in str(records[1].reason)


@pytest.mark.slow
def test_a_first_worker_that_does_not_start_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "subprocess", subprocess)  # a forked nursery might be ready by then
    monkeypatch.setattr(worker_process, "START_TIMEOUT_S", 0.01)
    with pytest.raises(WorkerFailed, match=r"not ready within 0\.01 s"):
        run([case("right")], folder)
    monkeypatch.undo()
    monkeypatch.setenv("HOSTILE_FOLDER", str(folder))
    (folder / "refusals").write_bytes(b"x")
    with pytest.raises(WorkerFailed, match="no second import"):
        run([case("right")], folder)


@pytest.mark.slow
def test_the_reference_has_a_time_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "ORACLE_TIMEOUT_S", 0.0)
    (record,) = run([case("right")], folder)
    assert (record.status, record.reason) == ("timeout", "the oracle gave no answer within 0 s")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT raise, even if a shell started the tests in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_records_nothing_and_leaves_no_thread(folder: Path) -> None:
    started = threading.Semaphore(0)
    records: list[Record] = []
    cases = [case("hangs", T) for T in (4, 5, 6)]

    def on_start() -> None:
        started.release()
        if started._value == 2:
            _thread.interrupt_main()

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run(cases, folder, ("cpu", "cpu"), on_start, records)
    assert records == []
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


@pytest.mark.parametrize(("hard", "bound"), [(resource.RLIM_INFINITY, None), (1000, 1000)])
def test_the_memory_limit_keeps_a_hard_one(
    monkeypatch: pytest.MonkeyPatch, hard: int, bound: int | None
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    worker._limit_memory({"device": "cpu", "memory_limit_bytes": 1 << 30})
    ((soft, kept),) = asked
    assert kept == hard
    assert soft == bound if bound else soft > 1 << 30


def gone(pid: int) -> bool:
    """Wait for a process to end and tell whether it did; a zombie has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_every_device_compiles_a_part_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device has compiled is in the cache that all share, and each lane knows it."""
    cases = [Case("throughput", "scan", "blelloch", Shape(B=1, T=T, C=1), None) for T in range(1, 8)]
    monkeypatch.setattr(executor, "worth", list)
    asked: list[list[Case]] = []

    def compile_(part: Sequence[Case], on_progress: object) -> dict[str, float]:
        asked.append([*part])
        return {case.id: 1.0 for case in part}

    lanes: Any = [
        SimpleNamespace(start=SimpleNamespace(compile=compile_), first_calls_s={}) for _ in range(3)
    ]
    executor.Session(lanes).compile(cases, Events(lambda *_: None, lambda *_: None, lambda record: None))
    assert sorted(len(part) for part in asked) == [2, 2, 3]
    assert sorted(case.id for part in asked for case in part) == sorted(case.id for case in cases)
    assert all(lane.first_calls_s.keys() == {case.id for case in cases} for lane in lanes)


def test_several_devices_take_the_longest_cases_first() -> None:
    sizes = [Shape(B=1, T=T, C=1) for T in (8, 4096, 64)]
    cases = [Case("throughput", "scan", "sequential", size, operand_source="sigmoid/data") for size in sizes]
    assert [group[0].shape["T"] for group in longest_first([[case] for case in cases])] == [4096, 64, 8]


def test_a_device_goes_on_with_kernels_that_it_has_loaded_until_none_else_are_left() -> None:
    def case(C: int, T: int) -> Case:
        size = Shape(B=1, T=T, C=C)
        return Case("throughput", "scan", "sequential", size, operand_source="sigmoid/data")

    cases = [case(C, T) for C, T in ((1, 64), (1, 4096), (1, 8), (2, 32), (1, 16))]
    groups, taken = Groups(longest_first([[each] for each in cases]), loads_of), {0: [], 1: []}
    for own in (0, 1, 0, 1, 0):
        taken[own].append(groups.take(taken[own][-1:])[0])
    assert [[each.shape["C"] for each in found] for found in taken.values()] == [[1, 1, 1], [2, 1]]
    assert taken[0][0].shape["T"] == 4096 and not groups.take(taken[1])
