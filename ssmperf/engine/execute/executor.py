"""Run the cases of a plan in worker processes on this machine: one worker per device, or several.

A crash, a hang or exhausted memory costs one case only: a new worker continues with the next. A session runs
several rounds of cases: each has workers of its own, and all share the judges and their references.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute import worker_process
from ssmperf.engine.execute.lane import (
    TRUSTED,
    CaseSource,
    DeviceState,
    Events,
    Groups,
    Lane,
)
from ssmperf.engine.execute.worker_process import WorkerConfig, WorkerProcess
from ssmperf.engine.machine.host_memory import available_memory_bytes
from ssmperf.engine.plan.estimate import parted, workers_for
from ssmperf.engine.plan.parts.groups import groups_of, kernels_of, loads_of, longest_first
from ssmperf.engine.plan.parts.household import Household, household
from ssmperf.engine.plan.run_options import RunOptions
from ssmperf.engine.processes.nursery import Nursery, NurseryEnded
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.processes.spares import Spares, imports_for
from ssmperf.engine.registry.presets import Preset
from ssmperf.engine.trial.process import JudgeProcess
from ssmperf.engine.tune.ahead import compile_ahead, processes, worth
from ssmperf.engine.tune.files import CURATED, Tuning

MEMORY_FRACTION = 0.25  # of the memory available when a CPU worker starts


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Executes cases on devices of this machine.

    devices: torch device strings ("cpu", "cuda:0", ...); each device gets its own worker.
    log_dir: folder for the workers' stdout and stderr; only the end of each log is kept.
    unfinished: folder in which a case keeps its state to continue after its process was killed, in a
        folder with its id; None if nothing is to be kept.
    options: the run's own. A case's reference does not count for its timeout.
    preset: how long a case is measured, and with how many threads on a CPU unless OMP_NUM_THREADS is set.
    tuning: how kernels' configurations are chosen.
    words: the options for the commands that repeat its cases.
    partner: takes turns with the worker, of which there is one then; None if there is none.
    specific: whether the run names backends or sizes; see `Context`.
    workers: how many workers share a GPU in suites whose cases may.
    watch_every: after how many cases of a foreign backend a worker looks at what they left changed in it.
    spares: nurseries that have started already.
    """

    devices: Sequence[str]
    log_dir: Path
    preset: Preset
    options: RunOptions = RunOptions()
    plugins: Sequence[str] = ()
    tuning: Tuning = CURATED
    words: Sequence[str] = ()
    unfinished: Path | None = None
    partner: Partner | None = None
    specific: bool = False
    workers: int = 1
    watch_every: int = 1
    spares: Spares | None = None

    def run(self, cases: Iterable[Case], events: Events) -> None:
        """Run all cases once; see `Session.run`."""
        with self.session() as session:
            session.run(cases, events)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Run rounds of cases with the same judges, which end with the session."""
        states = [DeviceState(device) for device in self.devices]
        lane = partial(Lane, timeout_s=self.options.timeout, searches=self.tuning.options.autotune)
        lanes = [lane(LaneProcesses(self, state.device), state) for state in states]
        sharing = [
            lane(LaneProcesses(self, state.device, number), state)
            for number in range(1, self.workers + 1)
            for state in states
        ]
        session = Session(lanes, sharing)
        try:
            yield session
        finally:
            session.close()


class Session:
    """Rounds of cases with one judge per lane. Make it by `LocalExecutor.session`.

    lanes: one per device. sharing: several per device, for cases that may share it, which run first.
    """

    def __init__(self, lanes: Sequence[Lane], sharing: Sequence[Lane] = ()) -> None:
        self.lanes, self.sharing = lanes, sharing
        self.nodes: Mapping[str, Any] = {}  # of a cluster
        self._compiled = False

    def run(self, cases: Iterable[Case], events: Events, shuffle: random.Random | None = None) -> None:
        """Run all cases in fresh workers; return when every case has its record.

        shuffle: puts the cases in a random order, as far as they need not stand together; None keeps theirs.

        Raises:
            WorkerFailed: the first worker of a device cannot be started.
            KeyboardInterrupt: passed on after the workers were stopped.
        """
        every = list(cases)
        self._compile(every, events)
        together, alone = parted(every)
        workers = workers_for(together, len(self.sharing) // len(self.lanes))
        if workers > 1:
            starved: list[Case] = []
            confirmed = replace(events, on_record=partial(_hold_back, starved, events.on_record))
            groups = Groups(groups_of(together, shuffle), kernels_of)
            _run(self.sharing[: workers * len(self.lanes)], groups, confirmed)
            every = alone + starved
            for lane in self.sharing if every else ():
                lane.end()  # its judge keeps references in the device's memory
        if every:
            parts = list(groups_of(every, shuffle))
            several = len(self.lanes) > 1 and shuffle is None
            _run(self.lanes, Groups(longest_first(parts), loads_of) if several else Groups(parts), events)

    @contextlib.contextmanager
    def serving(self, source: CaseSource, events: Events) -> Iterator[Serving]:
        """Run groups of cases as a source hands them out, while the block lasts; the source must end then.

        The lanes that share a device run them, if it has several.
        """
        lanes = self.sharing if len(self.sharing) > len(self.lanes) else self.lanes
        serving = Serving(lanes, source, events)
        try:
            yield serving
        finally:
            serving.end()

    def compile(self, cases: Sequence[Case], events: Events) -> None:
        """Compile the kernels of cases beside each other, before they are served."""
        self._compiled = False
        self._compile(cases, events)

    def prepare(self) -> None:
        """Start the nurseries of the next round's workers, and wait until they are ready."""
        for lane in self.lanes:
            lane.start.prepare()

    def _compile(self, cases: Sequence[Case], events: Events) -> None:
        """Compile the kernels of the first round's cases before it: a part on each device, for all."""
        if self._compiled:
            return
        self._compiled = True
        own = [case for case in worth(cases) if household(case) == Household()]
        count = len(self.lanes)
        threads = ThreadPoolExecutor(count)
        parts = [
            threads.submit(lane.start.compile, own[number::count], events.on_progress)
            for number, lane in enumerate(self.lanes)
        ]
        threads.shutdown(wait=False)  # after an interrupt, they end with the nurseries
        found = {id_: seconds for part in parts for id_, seconds in part.result().items()}
        for lane in self.lanes:
            lane.first_calls_s = {**lane.first_calls_s, **found}

    def close(self) -> None:
        """End all processes."""
        for lane in (*self.lanes, *self.sharing):
            lane.end()


class Serving:
    """Lanes that run what a source hands out, each in a thread."""

    def __init__(self, lanes: Sequence[Lane], source: CaseSource, events: Events) -> None:
        self.lanes, self._stop = lanes, threading.Event()
        for lane in lanes:
            _start_thread(lane, source, events, self._stop)

    def check(self) -> None:
        """Raise the error of a lane that has failed."""
        for lane in self.lanes:
            if lane.error is not None:
                raise lane.error

    def trust(self, *endings: Status) -> None:
        """Let processes of foreign backends go on after cases that ended so, beside those that were right."""
        for lane in self.lanes:
            lane.trusted = (*TRUSTED, *endings)

    def join(self) -> None:
        """Wait until the lanes have run all that the source hands out."""
        for lane in self.lanes:
            lane.finished.wait()
        self.check()

    def limit(self, timeout_s: float) -> None:
        """Set how long each of the next cases may take."""
        for lane in self.lanes:
            lane.timeout_s = timeout_s

    def end(self) -> None:
        """Stop the lanes; a case that is running is given up."""
        self._stop.set()
        _wait_killing(self.lanes)


class LaneProcesses:
    """Starts the processes of one lane. They are forked from a nursery, a process that has imported torch.

    The workers of a round have one nursery, which ends with the round: its forks have their memory
    at the same addresses, so that rounds with the same nursery would be too similar. The first nursery,
    from which the judge is forked as well, lives on with it.

    number: of the lane among those that share the device; 0 for a lane that has it to itself.
    """

    def __init__(self, executor: LocalExecutor, device: str, number: int = 0) -> None:
        self.executor, self.device, self.number = executor, device, number
        self._of_workers: Nursery | None = None
        self._of_judge: Nursery | None = None

    def judge(
        self, ceilings: Mapping[str, Any] | None, plugins: tuple[str, ...] | None = None
    ) -> JudgeProcess:
        """Start a judge of the device.

        ceilings: those of the device, if they are known. plugins: files to load; None for a judge that
            imports nothing foreign.
        """
        nursery = self._ready_nursery()
        if plugins is None:  # another one ends with the cases that need it
            if self._of_judge is not None and self._of_judge is not nursery:
                self._of_judge.close()
            self._of_judge = nursery
        config: dict[str, Any] = {"device": self.device, "shared": self._shared}
        config |= {"threads": self._threads, "ceilings": ceilings, "plugins": plugins}
        return JudgeProcess(nursery, config, self._log("judge"), worker_process.START_TIMEOUT_S)

    def worker(
        self, state: DeviceState, plugins: tuple[str, ...] | None, judge: JudgeProcess
    ) -> WorkerProcess:
        """Start a worker. plugins: files to load; None for all."""
        executor = self.executor
        config = WorkerConfig(
            device=self.device,
            plugins=tuple(executor.plugins if plugins is None else plugins),
            options=executor.options.for_workers(),
            scale=executor.preset.to_json(),
            memory_limit_bytes=int(MEMORY_FRACTION * available_memory_bytes()),
            env_id=state.env_id or "",
            ceilings=state.ceilings or {},
            autotune=executor.tuning.options.autotune,
            rows=executor.tuning.rows,
            words=tuple(executor.words),
            threads=self._threads,
            unfinished=None if executor.unfinished is None else str(executor.unfinished),
            specific=executor.specific,
            shared=self._shared,
            watch_every=executor.watch_every,
        )
        return WorkerProcess(
            config, self._ready_nursery(), judge.worker_socket, self._log("worker"), executor.partner
        )

    def prepare(self) -> None:
        """Start the nursery of the next workers, and wait until it is ready."""
        with contextlib.suppress(NurseryEnded):  # the next start of a worker reports it
            self._ready_nursery().wait_until_ready(worker_process.START_TIMEOUT_S)

    def compile(self, cases: Sequence[Case], on_progress: Callable[[Case, str], None]) -> dict[str, float]:
        """Compile the kernels of cases beside each other, unless a partner's turn matters from the start."""
        count = processes(len(cases), len(self.executor.devices))
        if not count or self.executor.partner is not None:
            return {}
        executor = self.executor
        config = {"device": self.device, "nonce": executor.options.nonce or 0, "rows": executor.tuning.rows}
        return compile_ahead(cases, count, self._ready_nursery(), config, self._log("compiling"), on_progress)

    def end_round(self) -> None:
        """End the nursery of the workers, unless the judge is forked from it; the next ones get another."""
        if self._of_workers is not None and self._of_workers is not self._of_judge:
            self._of_workers.close()
        self._of_workers = None

    def close(self) -> None:
        """End the nurseries, and with them the rest of their children."""
        self.end_round()
        if self._of_judge is not None:
            self._of_judge.close()
            self._of_judge = None

    def _ready_nursery(self) -> Nursery:
        if self._of_workers is None:
            self.executor.log_dir.mkdir(parents=True, exist_ok=True)
            imports, spares, log = imports_for(self.device), self.executor.spares, self._log("nursery")
            spare = None if spares is None else spares.take(imports)
            if spare is not None:
                spare.write_to(log)
            self._of_workers = spare or Nursery(imports, log)
        return self._of_workers

    def _log(self, who: str) -> Path:
        which = f"-{self.number}" if self.number else ""
        return self.executor.log_dir / f"{who}-{self.device.replace(':', '')}{which}.log"

    @property
    def _shared(self) -> bool:
        return self.number > 0

    @property
    def _threads(self) -> int | None:
        return None if "OMP_NUM_THREADS" in os.environ else self.executor.preset.threads


def _hold_back(starved: list[Case], pass_on: Callable[[Record], None], record: Record) -> None:
    """Pass a record on, unless its case may have failed for want of what others took: memory, or time."""
    if record.status in (Status.OOM, Status.TIMEOUT):
        starved.append(record.case)
    else:
        pass_on(record)


def _run(lanes: Sequence[Lane], groups: Groups, events: Events) -> None:
    stop = threading.Event()
    if len(lanes) == 1:
        lanes[0].run(groups, events, stop)
    else:
        start = partial(_start_thread, groups=groups, events=events, stop=stop)
        run_lanes(lanes, start, stop)


class AnyLane(Protocol):
    """A lane in a thread of its own, here or on another machine."""

    finished: threading.Event
    error: BaseException | None

    def kill(self) -> None: ...


L = TypeVar("L", bound=AnyLane)


def run_lanes(lanes: Sequence[L], start: Callable[[L], None], stop: threading.Event) -> None:
    """Start lanes, wait for them, and raise the error of one that has failed; an interrupt ends all."""
    for lane in lanes:
        start(lane)
    try:
        for lane in lanes:
            while not lane.finished.wait(0.2) and not stop.is_set():
                pass
    finally:  # after an interrupt or a failed lane, the other lanes give up their current case
        stop.set()
        _wait_killing(lanes)
    for lane in lanes:
        if lane.error is not None:
            raise lane.error


def _start_thread(lane: Lane, groups: CaseSource, events: Events, stop: threading.Event) -> None:
    lane.finished.clear()
    threading.Thread(target=lane.guarded_run, args=(groups, events, stop), daemon=True).start()


def _wait_killing(lanes: Sequence[AnyLane]) -> None:
    for lane in lanes:
        while not lane.finished.wait(0.2):  # not join: after one interrupt it takes a thread for finished
            lane.kill()
