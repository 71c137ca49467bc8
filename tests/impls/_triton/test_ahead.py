"""Compilation ahead: each key runs once, and failures stay silent."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from ssmperf.impls._triton import ahead


def test_a_key_is_prepared_and_run_once() -> None:
    seen: list[str] = []

    def prepare(name: str) -> Any:
        seen.append(f"prepare {name}")
        return lambda: seen.append(f"run {name}")

    keys = object(), object()
    jobs = [ahead.start(key, lambda name=name: prepare(name)) for key, name in zip(keys, "ab", strict=True)]
    jobs += [ahead.start(keys[0], lambda: pytest.fail("a second time"))]
    assert all(job is not None and job.exception(60) is None for job in jobs)
    assert jobs[0] is jobs[2]
    assert sorted(seen) == ["prepare a", "prepare b", "run a", "run b"]


def test_what_fails_in_the_thread_is_not_told() -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    job = ahead.start(object(), lambda: fail)
    assert job is not None and isinstance(job.exception(60), RuntimeError)
    ahead.wait(job)
    ahead.wait(None)


def test_what_cannot_be_prepared_is_not_told_either() -> None:
    def prepare() -> Any:
        raise RuntimeError("no such tensor")

    assert ahead.start(object(), prepare) is None


def test_waiting_ends_when_the_job_does_and_gives_up_what_has_not_begun() -> None:
    go: Future[None] = Future()
    began = threading.Event()

    def run() -> None:
        began.set()
        go.result(60)

    try:
        first = ahead.start(object(), lambda: run)
        second = ahead.start(object(), lambda: lambda: None)
        assert first is not None and second is not None and began.wait(60)
        ahead.wait(second)
        assert second.cancelled()
        waiting = threading.Thread(target=ahead.wait, args=(first,))
        waiting.start()
        assert not first.done() and waiting.is_alive()
    finally:
        go.set_result(None)
    waiting.join(60)
    assert first.done() and not waiting.is_alive()
