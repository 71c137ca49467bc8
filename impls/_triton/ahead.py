"""Compile a backward pass's kernels in a thread, while the first forward pass runs.

A forward pass starts it, with the slots of the tensors that its backward pass will get; the backward pass,
whose launches are planned (`plan.planned`), waits for it:

    ctx.compiled = ahead.start(key, lambda: partial(backward_pass.prepare, *slots, **flags))
    ...
    ahead.wait(ctx.compiled)

A failure here stays silent: the launch that needs the kernel compiles it again and reports why it cannot. A
process that ends waits for what is being compiled.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as settle
from typing import Any

_jobs: dict[Hashable, Future[Any]] = {}
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def start(key: Hashable, prepare: Callable[[], Callable[[], object]]) -> Future[Any] | None:
    """Run the function that `prepare` returns in the thread that compiles; once per key.

    key: equal for calls that compile the same kernels. prepare: called here and now, so that the job keeps no
        memory of a device.

    Returns:
        A job for `wait`; None if it could not be started.
    """
    global _pool
    with _lock:
        if key not in _jobs:
            try:
                _pool = _pool or ThreadPoolExecutor(1, thread_name_prefix="compile")
                _jobs[key] = _pool.submit(prepare())
            except Exception:  # whatever it is, the launch meets it again and reports it
                return None
        return _jobs[key]


def wait(job: Future[Any] | None) -> None:
    """Wait until a job from `start` has finished, successfully or not; cancel it if it has not begun.

    None: there is no job.
    """
    if job is not None and not job.done() and not job.cancel():
        settle((job,))


def _forget() -> None:
    """Start anew in a forked process, where the thread is gone."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None
    _jobs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
