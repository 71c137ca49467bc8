"""Carry out a request: plan, execute, store."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.origin import PLUGIN
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.executor import LocalExecutor, Serving, Session
from ssmperf.engine.execute.lane import CaseSource, Events
from ssmperf.engine.execute.request import Request
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.machine.environment import plugin_state
from ssmperf.engine.plan import learning, nonce
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.parts import shards
from ssmperf.engine.plan.plan import Plan, Planned, make_plan
from ssmperf.engine.plan.run_options import LOCAL
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.processes.spares import Spares
from ssmperf.engine.runs import nodes, scope, store, workloads
from ssmperf.engine.runs.rounds import ROUND, round_of, rounds_of
from ssmperf.engine.runs.store import Run, Writer
from ssmperf.engine.tune.files import META, resumed, write_configurations
from ssmperf.errors import UsageError

# How runs measure: times of different versions are not times of the same thing.
# 2: every timed call has values of its own.
MEASUREMENT = 2
PLAN_GROWTH = 1 / 8  # of a plan to which cases are added, before all of it is written again
UNFINISHED = "unfinished"  # folder of a run: files that cases keep until they end, one folder per case
SAMPLING = ("min_time_s", "max_time_s", "relative_width", "min_samples")  # fields of a preset in `run.json`


class Progress(Protocol):
    """Receives the progress of a run. It is called from several threads, one call at a time.

    The total counts measurements: not refused cases, nor those for which another one stands in.

    drop: called with a number of measurements of the total that will not be made; negative for more of them.
    """

    def begin(self, total: int, done: int) -> None: ...
    def start(self, case: Case, device: str) -> None: ...
    def progress(self, case: Case, text: str) -> None: ...
    def finish(self, record: Record) -> None: ...
    def drop(self, count: int) -> None: ...
    def end(self) -> None: ...


class Silent:
    """Ignores all progress."""

    def begin(self, total: int, done: int) -> None: ...
    def start(self, case: Case, device: str) -> None: ...
    def progress(self, case: Case, text: str) -> None: ...
    def finish(self, record: Record) -> None: ...
    def drop(self, count: int) -> None: ...
    def end(self) -> None: ...


def execute(
    request: Request,
    progress: Progress | None = None,
    on_plan: Callable[[Sequence[Case]], None] = lambda cases: None,
    planned: Plan | None = None,
    spares: Spares | None = None,
) -> Run:
    """Plan, run and store a request.

    on_plan: called with the cases without a record before the first one begins.
    planned, spares: see `open_run`.

    Raises:
        UsageError: the selection is empty, the folder cannot be used, or a plug-in that is loaded calls this.
        WorkerFailed: no worker could be started.
    """
    progress = progress or Silent()
    with open_run(request, progress, copies=True, planned=planned, spares=spares) as opened:
        rounds = opened.request.options.rounds or 1
        cases = opened.to_run
        done = sum((case.id, number) in opened.done for case in cases for number in range(rounds))
        on_plan([case for case in cases if (case.id, 0) not in opened.done])
        progress.begin(rounds * len(cases), done)
        try:
            opened.record_refusals()
            for number in range(rounds):
                opened.run_round(number, cases)
                left = opened.left
                progress.drop(-opened.not_done(number, left))
                opened.run_round(number, left)
        finally:
            progress.end()
    result = store.load(request.out)
    write_configurations(result, opened.request.tuning)
    return result


@contextlib.contextmanager
def open_run(
    request: Request,
    progress: Progress,
    *,
    copies: bool = False,
    partner: Partner | None = None,
    planned: Plan | None = None,
    watch_every: int = 1,
    spares: Spares | None = None,
) -> Iterator[OpenRun]:
    """Plan a request, start or resume its folder, and keep its processes until the end of the block.

    copies: whether cases for which another one stands in get records.
    partner: takes turns with the worker; see `LocalExecutor`.
    watch_every, spares: see `LocalExecutor`.
    planned: the plan; None for that of the request. One that grows gets its cases by `OpenRun.add`.

    Raises:
        UsageError: as `execute` does.
    """
    if registry.is_loading():
        raise UsageError('a plug-in must not start a run while it is loaded (use if __name__ == "__main__")')
    planned = planned or make_plan(request.selection, request.suites)
    earlier: Sequence[Record] = ()
    if request.resume:
        request = replace(request, tuning=resumed(request.tuning, request.out))
        meta = store.load(request.out).meta if (request.out / store.RUN_FILE).exists() else {}
        options = replace(
            request.options,
            nonce=nonce.resumed(request.options.nonce, meta, str(request.out)),
            rounds=request.options.rounds or rounds_of(meta),
        )
        own = learning.resumed(request.learning, meta, str(request.out))
        options = replace(options, shard=shards.resumed(options.shard, meta, str(request.out)))
        request = replace(request, options=options, learning=own)
        whole, planned = planned, own_part(planned, request)
        writer, before = Writer.resume(request.out, _meta(planned, whole, request, meta))
        earlier = [record for rounds in before.rounds.values() for record in rounds]
    else:
        if request.options.nonce is None:
            request = replace(request, options=replace(request.options, nonce=nonce.fresh()))
        whole, planned = planned, own_part(planned, request)
        writer = Writer.create(request.out, _meta(planned, whole, request))
    plugins = registry.plugins()
    words = (*_plugin_options(plugins), *request.words)
    local = LocalExecutor(
        devices=request.devices,
        log_dir=writer.path / "logs",
        unfinished=writer.path / UNFINISHED,
        options=request.options,
        preset=request.scale,
        plugins=plugins,
        tuning=request.tuning,
        words=words,
        partner=partner,
        specific=request.selection.is_specific,
        workers=1 if partner is not None else request.selection.device.workers,
        watch_every=watch_every,
        spares=spares,
    )
    try:
        with _executor(local, request).session() as session:
            yield OpenRun(planned, request, writer, session, words, earlier, progress, copies=copies)
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # it is not empty if a case can go on
            (writer.path / UNFINISHED).rmdir()


def _executor(local: LocalExecutor, request: Request) -> Any:
    """Choose where the cases run."""
    options = request.options
    if options.executor == LOCAL:
        return local
    from ssmperf.engine.execute.cluster.executor import RayExecutor

    return RayExecutor(local, request.selection.device.type, options.address, options.mixed_devices)


def own_part(plan: Plan, request: Request) -> Plan:
    """Take the shard of a plan that a request asks for; the whole plan without one."""
    if request.options.shard is None:
        return plan
    leaders = StandIns(plan, request.selection).leaders
    return shards.part(plan, request.options.shard, leaders, request.scale.training)


class OpenRun:
    """A run that is being measured. A lock lets one thread at a time use its writer and progress.

    done: the rounds that have a record, as (id of the case, number of the round).
    """

    def __init__(
        self,
        plan: Plan,
        request: Request,
        writer: Writer,
        session: Session,
        words: Sequence[str],
        earlier: Iterable[Record],
        progress: Progress,
        *,
        copies: bool = False,
    ) -> None:
        self.plan, self.request, self.writer, self.session = plan, request, writer, session
        self.words, self.progress = words, progress
        self.stand_ins, self._copies = StandIns(plan, request.selection), copies
        self.done: set[tuple[str, int]] = set()
        self.unfinished = writer.path / UNFINISHED
        self.ended: set[str] = set()  # ids of cases that were not ok in some round: no other could mend it
        # before any worker loads them: a file may be edited while the run lasts
        self._sources: dict[Path | None, dict[str, Any]] = {
            path: plugin_state(path) for path in _source_files(plan.cases)
        }
        self._lock = threading.Lock()
        before = [record for record in earlier if not self._can_go_on(record)]
        for record in before:
            self._note(record, round_of(record))
        for record in before:  # a run may have been killed between a record and its copies
            self._copy(round_of(record), record)

    @property
    def to_run(self) -> list[Case]:
        """The cases that are measured: not those refused, nor those for which another one stands in."""
        return self.stand_ins.measured(self.plan.to_run)

    @property
    def left(self) -> list[Case]:
        """The cases whose stand-in has turned out not to be ok."""
        return self.stand_ins.left(self.plan.to_run, self.ended)

    def record_refusals(self, planned: Iterable[Planned] | None = None) -> None:
        """Record the refused cases, of the plan unless others are given, if that was not done before."""
        for item in self.plan.cases if planned is None else planned:
            if item.refusal is not None and (item.case.id, 0) not in self.done:
                command = command_that_repeats(item.case, self.words)
                refused = Record(item.case, Status.UNSUPPORTED, item.refusal, None, {"command": command})
                self._record(0, refused)

    def add(self, planned: Sequence[Planned]) -> None:
        """Store that the run has cases beyond its plan, and record those that are refused."""
        for path in _source_files(planned) - self._sources.keys():
            self._sources[path] = plugin_state(path)
        with self._lock:
            self.writer.add_to_plan([item.case.id for item in planned], growth=PLAN_GROWTH)
        self.record_refusals(planned)

    @property
    def events(self) -> Events:
        """The events of the first round."""
        return Events(self._on_environment, self._on_start, partial(self._on_record, 0), self._on_progress)

    @contextlib.contextmanager
    def serving(self, source: CaseSource, on_record: Callable[[Record], None]) -> Iterator[Serving]:
        """Run the cases that a source hands out while the block lasts. The first record of each is stored.

        on_record: called with every record, in the thread of its lane.
        """

        def keep(record: Record) -> None:
            if (record.case.id, 0) not in self.done:
                self._on_record(0, record)
            on_record(record)

        events = replace(self.events, on_record=keep)
        with self.session.serving(source, events) as serving:
            yield serving

    def prepare(self, number: int, cases: Sequence[Case]) -> None:
        """Start what a round of cases will run in and wait until it is ready, if there is one to run."""
        if self.to_do(number, cases):
            self.session.prepare()

    def run_round(self, number: int, cases: Sequence[Case]) -> None:
        """Measure cases in fresh processes, without those that are done or that were not ok before."""
        todo = self.to_do(number, cases)
        self.progress.drop(self.not_done(number, cases) - len(todo))
        events = Events(
            self._on_environment, self._on_start, partial(self._on_record, number), self._on_progress
        )
        shuffle = random.Random(f"{self.request.options.nonce} {number}")  # a resumed run keeps the order
        self.session.run(todo, events, shuffle if self._has_rounds else None)

    def not_done(self, number: int, cases: Sequence[Case]) -> int:
        """Count the cases without a record of a round."""
        return sum((case.id, number) not in self.done for case in cases)

    def to_do(self, number: int, cases: Sequence[Case]) -> list[Case]:
        """List those of these cases that a round still has to measure."""
        return [case for case in cases if (case.id, number) not in self.done and case.id not in self.ended]

    @property
    def _has_rounds(self) -> bool:
        return (self.request.options.rounds or 1) > 1

    def _can_go_on(self, record: Record) -> bool:
        """Whether a case ran out of time and has left something from which it can continue."""
        return record.status is Status.TIMEOUT and (self.unfinished / record.case.id).is_dir()

    def _note(self, record: Record, number: int) -> None:
        self.done.add((record.case.id, number))
        if record.status is not Status.OK:
            self.ended.add(record.case.id)

    def _on_environment(self, env_id: str, environment: Mapping[str, Any]) -> None:
        with self._lock:
            self.writer.add_environment(env_id, environment)
            if self.session.nodes:  # of a cluster
                self.writer.note({nodes.META: {**self.writer.meta.get(nodes.META, {}), **self.session.nodes}})

    def _on_start(self, case: Case, device: str) -> None:
        with self._lock:
            self.progress.start(case, device)

    def _on_record(self, number: int, record: Record) -> None:
        self._record(number, record)
        with self._lock:
            self.progress.finish(record)

    def _record(self, number: int, record: Record) -> None:
        more: dict[str, Any] = {ROUND: number} if self._has_rounds else {}
        if source := self._sources.get(_source_file(record.case)):
            more[PLUGIN] = source
        if more:
            record = replace(record, numbers={**record.numbers, **more})
        with self._lock:
            self._append(number, record)
            self._copy(number, record)

    def _copy(self, number: int, record: Record) -> None:
        """Record the cases for which that of a record stands in, unless they have a record."""
        for copy in self.stand_ins.copies(record, self.words) if self._copies else ():
            if (copy.case.id, number) not in self.done:
                self._append(number, copy)

    def _append(self, number: int, record: Record) -> None:
        self._note(record, number)
        self.writer.append(record)
        if not self._can_go_on(record):
            shutil.rmtree(self.unfinished / record.case.id, ignore_errors=True)

    def _on_progress(self, case: Case, text: str) -> None:
        with self._lock:
            self.progress.progress(case, text)


def _source_files(planned: Iterable[Planned]) -> set[Path]:
    """List the files outside of ssmperf that define backends of some cases."""
    files = (_source_file(item.case) for item in planned)
    return {file for file in files if file is not None and file.is_file()}


def _source_file(case: Case) -> Path | None:
    """Find the file that defines a case's backend, unless it is a built-in one."""
    backend = registry.backend(case.owner, case.backend)
    return registry.file_of("backend", f"{backend.of}/{backend.name}")


def _plugin_options(files: Sequence[str]) -> list[str]:
    return [word for file in files for word in ("--plugin", file)]


def _meta(
    plan: Plan, whole: Plan, request: Request, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe a run for `run.json`, without its environments.

    plan: the run's own part of the whole plan.
    earlier: what `run.json` has, if the run goes on. Its workloads stay.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tag": request.options.tag,
        "argv": list(request.argv),
        META: request.tuning.to_json(),
        nonce.META: nonce.as_text(request.options.nonce or 0),
        "measurement": MEASUREMENT,
        "rounds": request.options.rounds or 1,
        "options": request.options.to_json(),
        learning.META: request.learning.to_json(),
        "sampling": {name: getattr(request.scale, name) for name in SAMPLING},
        "plugins": list(registry.plugins()),
        scope.META: scope.resumed(scope.describe(request.selection, request.suites, whole), earlier or {}),
        **workloads.listed(whole, earlier or {}),
        **shards.described(request.options.shard, whole),
        "suites": {name: registry.suite(name).section.to_json() for name in request.suites},
        "plan": {"cases": len(plan.cases), "case_ids": [item.case.id for item in plan.cases]},
    }
