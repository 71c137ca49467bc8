"""Compilation ahead: launches in the thread only compile, each key runs once, and failures stay silent."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from ssmperf.impls._triton import ahead


class Kernel:
    """Is called like a Triton kernel, and records the calls with their threads."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = []

    def note(self, what: str, *operands: Any, **constants: Any) -> None:
        self.calls.append((what, operands, constants, threading.current_thread().name))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *operands, **constants: self.note(f"launch {grid}", *operands, **constants)

    def warmup(self, *operands: Any, grid: tuple[int, ...], **constants: Any) -> None:
        self.note(f"compile {grid}", *operands, **constants)


def test_launches_of_a_started_job_only_compile() -> None:
    kernel = Kernel()
    job = ahead.start(object(), lambda: lambda: ahead.launch(kernel, 3, "x", R=4))
    assert job is not None and job.result(60) is None
    ahead.launch(kernel, 3, "x", R=4)
    assert [call[:3] for call in kernel.calls] == [
        ("compile (3,)", ("x",), {"R": 4}),
        ("launch (3,)", ("x",), {"R": 4}),
    ]
    assert kernel.calls[0][3] != kernel.calls[1][3] == threading.current_thread().name


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
