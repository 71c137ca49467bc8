"""Carry out a request: plan, execute, store."""

from __future__ import annotations

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
from ssmperf.execute.request import Request
from ssmperf.plan.command import command_that_repeats
from ssmperf.plan.plan import Plan, make_plan
from ssmperf.runs import scope, store
from ssmperf.runs.store import Run, Writer
from ssmperf.tune.files import META, resumed, write_configurations

# How runs measure: times of different versions are not times of the same thing.
# 2: every timed call has values of its own.
MEASUREMENT = 2


class Progress(Protocol):
    """Receives the progress of a run. It is called from several threads, one call at a time."""

    def begin(self, total: int, done: int) -> None: ...
    def start(self, case: Case, device: str) -> None: ...
    def progress(self, case: Case, text: str) -> None: ...
    def finish(self, record: Record) -> None: ...
    def end(self) -> None: ...


class Silent:
    """Ignores all progress."""

    def begin(self, total: int, done: int) -> None: ...
    def start(self, case: Case, device: str) -> None: ...
    def progress(self, case: Case, text: str) -> None: ...
    def finish(self, record: Record) -> None: ...
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
    earlier: list[Record] = []
    if request.resume:
        request = replace(request, tuning=resumed(request.tuning, request.out))
        meta = store.load(request.out).meta if (request.out / store.RUN_FILE).exists() else {}
        request = replace(request, nonce=nonce.resumed(request.nonce, meta, str(request.out)))
        writer, before = Writer.resume(request.out, _meta(planned, request))
        earlier = before.records
    else:
        request = request if request.nonce is not None else replace(request, nonce=nonce.fresh())
        writer = Writer.create(request.out, _meta(planned, request))
    try:
        _run_plan(planned, request, writer, {record.case.id for record in earlier}, progress or Silent())
    finally:
        writer.close()
    result = store.load(request.out)
    write_configurations(result, request.tuning)
    return result


def _run_plan(plan: Plan, request: Request, writer: Writer, done: set[str], progress: Progress) -> None:
    """Run the cases that have no record yet. A lock lets one thread at a time use writer and progress."""
    lock = threading.Lock()

    def on_environment(env_id: str, environment: Mapping[str, Any]) -> None:
        with lock:
            writer.add_environment(env_id, environment)

    def on_start(case: Case, device: str) -> None:
        with lock:
            progress.start(case, device)

    def on_record(record: Record) -> None:
        with lock:
            writer.append(record)
            progress.finish(record)

    def on_progress(case: Case, text: str) -> None:
        with lock:
            progress.progress(case, text)

    options = (*_plugin_options(registry.plugins()), *request.options)
    executor = LocalExecutor(
        devices=request.devices,
        log_dir=writer.path / "logs",
        timeout_s=request.timeout_s,
        preset=request.selection.scale,
        plugins=registry.plugins(),
        tuning=request.tuning,
        options=options,
        nonce=request.nonce or 0,
    )
    progress.begin(len(plan.cases), sum(item.case.id in done for item in plan.cases))
    try:
        for item in plan.refused:
            if item.case.id not in done:
                command = command_that_repeats(item.case, options)
                on_record(Record(item.case, Status.UNSUPPORTED, item.refusal, None, {"command": command}))
        todo = [case for case in plan.to_run if case.id not in done]
        executor.run(todo, Events(on_environment, on_start, on_record, on_progress))
    finally:
        progress.end()


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
        scope.META: scope.describe(request.selection, request.suites, plan),
        "suites": {name: registry.suite(name).section.to_json() for name in request.suites},
        "plan": {"cases": len(plan.cases), "case_ids": [item.case.id for item in plan.cases]},
    }
