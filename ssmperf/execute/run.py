"""Carry out a request: plan, execute, store."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from ssmperf import registry
from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.errors import UsageError
from ssmperf.execute import nonce
from ssmperf.execute.executor import LocalExecutor
from ssmperf.execute.lane import Events
from ssmperf.execute.request import MOST_ROUNDS, Request
from ssmperf.plan.command import command_that_repeats
from ssmperf.plan.plan import Plan, make_plan
from ssmperf.runs import store
from ssmperf.runs.rounds import ROUND, round_of
from ssmperf.runs.store import Run, Writer
from ssmperf.tune.files import META, resumed, write_configurations

# How runs measure: times of different versions are not times of the same thing.
# 2: every timed call has values of its own.
MEASUREMENT = 2
SAMPLING = ("min_time_s", "max_time_s", "relative_width", "min_samples")  # what `run.json` keeps of a preset


class Progress(Protocol):
    """Receives the progress of a run. It is called from several threads, one call at a time.

    drop: called with a number of measurements of the total that will not be made.
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


def execute(request: Request, progress: Progress | None = None) -> Run:
    """Plan, run and store a request.

    Raises:
        UsageError: the selection is empty, the folder cannot be used, or a plug-in calls this while it is
            being loaded.
        WorkerFailed: no worker could be started.
    """
    if registry.loading():
        raise UsageError('a plug-in must not start a run while it is loaded (use if __name__ == "__main__")')
    planned = make_plan(request.selection, request.suites)
    earlier: Sequence[Record] = ()
    if request.resume:
        request = replace(request, tuning=resumed(request.tuning, request.out))
        meta = store.load(request.out).meta if (request.out / store.RUN_FILE).exists() else {}
        request = replace(
            request,
            nonce=nonce.resumed(request.nonce, meta, str(request.out)),
            rounds=request.rounds or _rounds_of(meta),
        )
        writer, before = Writer.resume(request.out, _meta(planned, request))
        earlier = [record for rounds in before.rounds.values() for record in rounds]
    else:
        request = request if request.nonce is not None else replace(request, nonce=nonce.fresh())
        writer = Writer.create(request.out, _meta(planned, request))
    try:
        _run_plan(planned, request, writer, earlier, progress or Silent())
    finally:
        writer.close()
    result = store.load(request.out)
    write_configurations(result, request.tuning)
    return result


def _run_plan(
    plan: Plan, request: Request, writer: Writer, earlier: Sequence[Record], progress: Progress
) -> None:
    """Run the rounds of the cases that have no record yet.

    A case that was not ok in a round is done: no other round could make it so. A lock lets one thread at a
    time use writer and progress.
    """
    lock = threading.Lock()
    rounds = request.rounds or 1
    done = {(record.case.id, round_of(record)) for record in earlier}
    ended = {record.case.id for record in earlier if record.status is not Status.OK}
    number = 0  # of the round

    def on_environment(env_id: str, environment: Mapping[str, Any]) -> None:
        with lock:
            writer.add_environment(env_id, environment)

    def on_start(case: Case, device: str) -> None:
        with lock:
            progress.start(case, device)

    def on_record(record: Record) -> None:
        numbered = replace(record, numbers={**record.numbers, ROUND: number}) if rounds > 1 else record
        with lock:
            if record.status is not Status.OK:
                ended.add(record.case.id)
            writer.append(numbered)
            progress.finish(record)

    def on_progress(case: Case, text: str) -> None:
        with lock:
            progress.progress(case, text)

    options = (*_plugin_options(registry.plugins()), *request.options)
    executor = LocalExecutor(
        devices=request.devices,
        log_dir=writer.path / "logs",
        timeout_s=request.timeout_s,
        preset=request.scale,
        plugins=registry.plugins(),
        tuning=request.tuning,
        options=options,
        nonce=request.nonce or 0,
    )
    events = Events(on_environment, on_start, on_record, on_progress)
    total = len(plan.refused) + rounds * len(plan.to_run)
    progress.begin(total, len(done))
    try:
        for item in plan.refused:
            if (item.case.id, 0) not in done:
                command = command_that_repeats(item.case, options)
                on_record(Record(item.case, Status.UNSUPPORTED, item.refusal, None, {"command": command}))
        with executor.session() as session:
            for number in range(rounds):
                missing = [case for case in plan.to_run if (case.id, number) not in done]
                todo = [case for case in missing if case.id not in ended]
                progress.drop(len(missing) - len(todo))
                session.run(todo, events, _order(request, number) if rounds > 1 else None)
    finally:
        progress.end()


def _order(request: Request, number: int) -> random.Random:
    """Give the random order of a round's cases, which a resumed run keeps."""
    return random.Random(f"{request.nonce} {number}")


def _rounds_of(meta: Mapping[str, Any]) -> int:
    """Read the number of rounds of a run from its `run.json`."""
    rounds = meta.get("rounds")
    return rounds if isinstance(rounds, int) and 1 <= rounds <= MOST_ROUNDS else 1


def _plugin_options(files: Sequence[str]) -> list[str]:
    return [word for file in files for word in ("--plugin", file)]


def _meta(plan: Plan, request: Request) -> dict[str, Any]:
    """Describe a run for `run.json`, without its environments."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tag": request.tag,
        "argv": list(request.argv),
        META: request.tuning.to_json(),
        nonce.META: nonce.as_text(request.nonce or 0),
        "measurement": MEASUREMENT,
        "rounds": request.rounds or 1,
        "sampling": {name: getattr(request.scale, name) for name in SAMPLING},
        "plugins": list(registry.plugins()),
        "suites": {name: registry.suite(name).section.to_json() for name in request.suites},
        "plan": {"cases": len(plan.cases), "case_ids": [item.case.id for item in plan.cases]},
    }
