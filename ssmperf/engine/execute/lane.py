"""A lane: one device, its judge, the worker that runs its cases, and the loop that feeds it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import SPENT, Record, Status
from ssmperf.engine.execute.worker_process import START_TIMEOUT_S, WorkerProcess
from ssmperf.engine.plan.parts.groups import needs_fresh_process
from ssmperf.engine.plan.parts.household import Household, household
from ssmperf.engine.processes.nursery import NurseryEnded
from ssmperf.engine.trial.process import JudgeProcess
from ssmperf.engine.trial.question import CaseFacts
from ssmperf.engine.trial.windows import too_fast
from ssmperf.errors import UnknownName, WorkerFailed

RESTART_ATTEMPTS = 3
REPEATS = 3  # of a case whose time is below what the driver has measured
TRUSTED = (Status.OK, Status.UNSUPPORTED)  # endings of a foreign backend's case whose process goes on
REFERENCE = "reference_s"  # of a record: how long its values and their references were made
FIRST_CALL = "first_call_s"  # of a record: with compilation, which may have been before the case
# How much longer or shorter than by the driver's clock a worker may say that it has timed: messages and a
# busy machine delay the driver, but not by more than this.
WINDOW_SHARE, WINDOW_S = 0.25, 0.5


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks of an executor. Each is called in the thread of the device concerned.

    They are called as on_environment(env_id, environment), on_start(case, device), on_record(record) and,
    during a search for configurations, on_progress(case, text).
    """

    on_environment: Callable[[str, Mapping[str, Any]], None]
    on_start: Callable[[Case, str], None]
    on_record: Callable[[Record], None]
    on_progress: Callable[[Case, str], None] = lambda case, text: None


def goes_on(own: Household, judged: Status, ended: Status, trusted: Sequence[Status]) -> bool:
    """Tell whether a process serves on after a case, if it has found no change in itself.

    Foreign code may have changed it unless its case ended well. A peer is a package that users chose,
    behind an adapter of this one, and a fresh process would import and compile it again: it serves on after
    results that are wrong, unless the driver contradicts the record.

    judged: the status of the worker's record. ended: the status by which the driver enters it.
    """
    if own == Household() or ended in trusted:
        return True
    peer = own == Household(guest=own.guest)
    return peer and judged is ended and ended in (Status.WRONG, Status.NAN)


def facts_of(case: Case, *, searches: bool) -> CaseFacts:
    """Collect what the driver knows of a case, for its judge. searches: whether configurations are."""
    try:
        backend = registry.backend(case.owner, case.backend)
    except UnknownName:  # in this process; it is judged as any other
        return CaseFacts(case, searches=searches)
    sizes = getattr(registry.suite(case.suite), "judged_sizes", ())
    return CaseFacts(case, backend.equivalent, backend.error_bound is not None, searches, sizes)


@dataclass(slots=True)
class DeviceState:
    """The environment and the ceilings of a device, which its lanes share.

    started: whether a worker was ready. lock: held while the first judge measures the ceilings.
    """

    device: str
    env_id: str | None = None
    environment: Mapping[str, Any] | None = None
    started: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ceilings(self) -> Mapping[str, Any] | None:
        return None if self.environment is None else self.environment["ceilings"]


class CaseSource(Protocol):
    """Hands out groups of cases to lanes, from their threads."""

    def take(self, last: Sequence[Case] = ()) -> Sequence[Case]:
        """Take the group after `last`, which the lane has run; empty if none is left."""
        ...


class Groups:
    """Groups of cases, which the lanes take one by one: in their order, or by the kernels that they need.

    kernels: names those that a group needs. A lane goes on with what it has compiled, or else begins what no
        other lane has begun. By default all need the same.
    """

    def __init__(
        self, groups: Iterable[Sequence[Case]], kernels: Callable[[Case], Hashable] = lambda case: None
    ) -> None:
        self._kernels, self._lock = kernels, threading.Lock()
        self._left: dict[Hashable, deque[Sequence[Case]]] = {}
        self._begun: set[Hashable] = set()
        for group in groups:
            self._left.setdefault(kernels(group[0]), deque()).append(group)

    def take(self, last: Sequence[Case] = ()) -> Sequence[Case]:
        """Take the group after `last`, which the lane has run; empty if none is left."""
        with self._lock:
            own = [self._kernels(last[0])] if last else []
            fresh = [kernels for kernels in self._left if kernels not in self._begun]
            chosen = next((each for each in (*own, *fresh, *self._left) if each in self._left), None)
            if chosen not in self._left:
                return ()
            self._begun.add(chosen)
            found = self._left[chosen].popleft()
            if not self._left[chosen]:
                del self._left[chosen]
            return found


class LaneStarter(Protocol):
    """Starts the processes of a lane."""

    def judge(
        self, ceilings: Mapping[str, Any] | None, plugins: tuple[str, ...] | None = None
    ) -> JudgeProcess:
        """Start a judge that loads these plug-ins (None: a clean one). ceilings: None if they are unknown."""
        ...

    def worker(
        self, state: DeviceState, plugins: tuple[str, ...] | None, judge: JudgeProcess
    ) -> WorkerProcess:
        """Start a worker that loads these plug-ins (None: all)."""
        ...

    def prepare(self) -> None:
        """Start what the next workers share, and wait until it is ready."""
        ...

    def compile(self, cases: Sequence[Case], on_progress: Callable[[Case, str], None]) -> Mapping[str, float]:
        """Compile the kernels of cases beside each other; see `compile_ahead`."""
        ...

    def end_round(self) -> None:
        """End what the workers of a round share; the judge stays."""
        ...

    def close(self) -> None:
        """End what is left of all of them."""
        ...


class Lane:
    """Takes groups of cases from a queue until it is empty, round after round; starts workers for them."""

    def __init__(
        self,
        start: LaneStarter,
        state: DeviceState,
        timeout_s: float,
        *,
        searches: bool = False,
    ) -> None:
        self.start, self.state, self.timeout_s, self.searches = start, state, timeout_s, searches
        self.stop = threading.Event()
        self.worker: WorkerProcess | None = None
        self.judge: JudgeProcess | None = None
        self.own_judge: JudgeProcess | None = None  # of the household; it has loaded plug-ins
        self.household = Household()
        self.first_calls_s: Mapping[str, float] = {}  # by id, of cases compiled before the first one ran
        self.trusted: tuple[Status, ...] = TRUSTED
        self.attempts = RESTART_ATTEMPTS
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def guarded_run(self, groups: CaseSource, events: Events, stop: threading.Event) -> None:
        try:
            self.run(groups, events, stop)
        except BaseException as error:
            if not stop.is_set():  # otherwise the error comes from killing the worker
                self.error = error
            stop.set()
        finally:
            self.finished.set()

    def run(self, groups: CaseSource, events: Events, stop: threading.Event) -> None:
        """Run one round of cases, in workers that end with it; the judge stays."""
        self.events, self.stop = events, stop
        group: Sequence[Case] = ()
        try:
            while not stop.is_set():
                group = groups.take(group)
                if not group:
                    return
                for case in group:
                    if stop.is_set():
                        return
                    self._run_case(case)
        finally:
            self.close()
            self.start.end_round()

    def end(self) -> None:
        """End the judge and all other processes of the lane."""
        self.close()
        if self.judge is not None:
            self.judge.close()
            self.judge = None
        self.start.close()

    def kill(self) -> None:
        """Kill the worker's process, from another thread; the lane then notices and cleans up."""
        worker = self.worker
        if worker is not None:
            worker.child.kill()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None
        if self.own_judge is not None:
            self.own_judge.close()
            self.own_judge = None

    def _run_case(self, case: Case) -> None:
        """Run a case. Its time includes that of a worker that had to start for it, and of the judge."""
        began_s = time.monotonic()
        own = household(case)
        if self.judge is not None and not self.judge.alive:
            self.judge.close()
            self.judge = None
            self.close()
        if self.own_judge is not None and not self.own_judge.alive:
            self.close()
        if self.worker is not None and self.worker.child.ended():
            self.close()  # it died after its last answer, which is not the fault of this case
        if self.worker is not None and self.worker.used and needs_fresh_process(case):
            self.close()
        if self.household != own:
            self.close()
            self.household = own
        try:
            worker = self.worker or self._start_patiently()
        except WorkerFailed as error:
            if not self.state.started or self.stop.is_set():
                raise
            self.events.on_start(case, self.state.device)
            self._enter(Record(case, Status.CRASH, str(error), self.state.env_id), began_s)
            return
        ready_s = time.monotonic()
        self.events.on_start(case, self.state.device)
        began_s += time.monotonic() - ready_s  # it may have waited for its turn
        record, healthy, number = self._measured(case, worker)
        for _ in range(REPEATS):
            if not (healthy and self._is_too_fast(record, worker)):
                break  # else it may be chance: other processes had the machine meanwhile
            record, healthy, number = self._measured(case, worker)
        began_s += worker.waited_s
        if self.stop.is_set():
            return
        judged, record = record.status, self._confirmed(record, number, worker)
        if record.status is Status.OK:
            record = replace(record, numbers={**record.numbers, REFERENCE: worker.reference_s})
        if not (healthy and goes_on(self.household, judged, record.status, self.trusted)):
            self.close()
        self._enter(record, began_s)

    def _measured(self, case: Case, worker: WorkerProcess) -> tuple[Record, bool, str]:
        """Run a case; return its record, whether the worker can go on, and the request's secret number."""
        number = secrets.token_hex(8)
        if self.judging is not None:
            self.judging.begin(number, facts_of(case, searches=self.searches))
        on_progress = partial(self.events.on_progress, case)
        return *worker.run(case, number, self.timeout_s, on_progress), number

    @property
    def judging(self) -> JudgeProcess | None:
        """The judge of the household's cases."""
        return self.judge if self.household.judged_by is None else self.own_judge

    def _enter(self, record: Record, began_s: float) -> None:
        numbers = {**record.numbers, SPENT: time.monotonic() - began_s}
        if record.case.id in self.first_calls_s and numbers.get(FIRST_CALL) is not None:
            numbers[FIRST_CALL] = self.first_calls_s[record.case.id]
        self.events.on_record(replace(record, numbers=numbers))

    def _start_patiently(self) -> WorkerProcess:
        """Start a worker. If earlier ones have started, try several times before giving up.

        The first of a device's lanes lets its judge measure the ceilings; the others wait.
        """
        with contextlib.ExitStack() as alone:
            alone.enter_context(self.state.lock)
            if self.state.ceilings is not None:
                alone.close()
            attempts, self.attempts = self.attempts if self.state.started else 1, 1
            for left in reversed(range(attempts)):
                try:
                    worker = self._start()
                except WorkerFailed:
                    if not left or self.stop.is_set():
                        raise
                else:
                    break
            self.attempts = RESTART_ATTEMPTS
            return worker

    def _start(self) -> WorkerProcess:
        state = self.state
        try:
            if self.judge is None:
                self._start_judge()
            if self.household.judged_by is not None and self.own_judge is None:
                self.own_judge = self.start.judge(state.ceilings, self.household.judged_by)
                self.own_judge.wait_until_ready(START_TIMEOUT_S)
            assert self.judging is not None
            self.worker = worker = self.start.worker(state, self.household.plugins, self.judging)
            worker.wait_until_ready()
            state.started = True
        except NurseryEnded as error:
            self.close()
            raise WorkerFailed(f"a worker could not be started: {error}") from error
        except OSError as error:
            self.close()
            raise WorkerFailed(f"a worker could not be started: {error}") from error
        except BaseException:
            self.close()
            raise
        return worker

    def _start_judge(self) -> None:
        """Start a judge that imports nothing foreign, and let it describe the environment."""
        state = self.state
        self.judge = judge = self.start.judge(state.ceilings)
        judge.wait_until_ready(START_TIMEOUT_S)
        assert judge.env_id is not None and judge.environment is not None
        state.env_id, state.environment = judge.env_id, judge.environment
        self.events.on_environment(judge.env_id, judge.environment)

    def _is_too_fast(self, record: Record, worker: WorkerProcess) -> str | None:
        """Say that a foreign backend's time is below what this process has measured, or return None."""
        numbers = record.numbers
        confirmed = getattr(registry.suite(record.case.suite), "driver_times", False)
        if not (confirmed and self.household.guest) or worker.takes_turns:
            return None
        return too_fast(numbers.get("latency_s"), numbers.get("issue_s"), worker.least_s)

    def _confirmed(self, record: Record, number: str, worker: WorkerProcess) -> Record:
        """Return the record if it agrees with the judge and with this process's clock, or a wrong one."""
        if record.status is not Status.OK or self.judging is None:
            return record
        entered = self.judging.entered(number)
        problem = (
            "the judge has ended, so that nothing confirms the record"
            if entered is None
            else contradiction(record, entered, worker.timing_s) or self._is_too_fast(record, worker)
        )
        if problem is None:
            return record
        kept = {"command": record.numbers.get("command")}
        return Record(record.case, Status.WRONG, problem, record.env_id, kept)


def contradiction(record: Record, entered: list[str], timing_s: float) -> str | None:
    """Say how an `ok` record contradicts what the driver knows itself, or return None.

    entered: the statuses that the judge has entered for the case. timing_s: how long it was being timed.
    """
    claimed, suite = record.numbers.get("judgements"), registry.suite(record.case.suite)
    wrong = [status for status in entered if status != "ok"]
    if wrong and not (getattr(suite, "decided_by_most", False) and 2 * len(wrong) < len(entered)):
        return f"the record says ok, the judge says {wrong[0]}"
    least = getattr(suite, "least_judgements", 0)
    if claimed != len(entered) or len(entered) < least:
        return f"the record speaks of {claimed} judgements, the judge has made {len(entered)}"
    window_s = record.numbers.get("window_s")
    if window_s is None:
        return None
    if abs(window_s - timing_s) > WINDOW_SHARE * timing_s + WINDOW_S:
        return f"its clock is wrong: it says that it was timed for {window_s:.3g} s, it took {timing_s:.3g} s"
    timed_s = sum(record.numbers.get("samples_s") or ())
    if timed_s > timing_s + WINDOW_S:
        return f"its clock is wrong: its samples take {timed_s:.3g} s, and there were {timing_s:.3g} s"
    return None
