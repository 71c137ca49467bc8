"""Compilation ahead: where launches go, that a key is done once, and that failures stay silent."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from ssmperf import ahead


class Kernel:
    """As Triton's jit functions are called; notes who calls it and how."""

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
    ahead.wait(job)
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
    for job in jobs:
        ahead.wait(job)
    assert jobs[0] is jobs[2]
    assert sorted(seen) == ["prepare a", "prepare b", "run a", "run b"]


def test_what_fails_in_the_thread_is_not_told() -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    job = ahead.start(object(), lambda: fail)
    ahead.wait(job)
    assert isinstance(job.exception(), RuntimeError)
    ahead.wait(None)


def test_waiting_ends_when_the_job_does() -> None:
    go: Future[None] = Future()
    job = ahead.start(object(), lambda: lambda: go.result(60))
    waiting = threading.Thread(target=ahead.wait, args=(job,))
    waiting.start()
    assert not job.done() and waiting.is_alive()
    go.set_result(None)
    waiting.join(60)
    assert not waiting.is_alive()
