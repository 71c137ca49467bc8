"""Compile a backward pass's kernels in a thread, while the first forward pass runs.

A forward pass starts the compilation: it calls its backward pass on tensors without memory (device meta),
where launches only compile. The backward pass waits for it:

    ctx.compiled = ahead.start(key, lambda: partial(backward, *meta_tensors)) if x.is_cuda else None
    ...
    ahead.wait(ctx.compiled)

Only Triton kernels that are launched by `launch` are compiled. Failures are not reported here: the launch
that needs the kernel compiles it again and reports why that fails. A process that ends waits for a
compilation that is running.
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
_local = threading.local()
_pool: ThreadPoolExecutor | None = None


def launch(kernel: Any, programs: int, *operands: Any, **constants: Any) -> None:
    """Launch a Triton kernel over some programs; in the thread of `start`, only compile it."""
    if getattr(_local, "compiles", False):
        kernel.warmup(*operands, grid=(programs,), **constants)
    else:
        kernel[(programs,)](*operands, **constants)


def start(key: Hashable, prepare: Callable[[], Callable[[], object]]) -> Future[Any] | None:
    """Run the job that `prepare` makes, once per key, in the thread where launches only compile.

    key: equal for jobs that compile the same kernels. prepare: called immediately, in the caller's thread, so
        that the job holds no memory of a device.

    Returns:
        The job, for `wait`; None if it could not be started.
    """
    global _pool
    with _lock:
        if key not in _jobs:
            try:
                _pool = _pool or ThreadPoolExecutor(1, thread_name_prefix="compile", initializer=_compiles)
                _jobs[key] = _pool.submit(prepare())
            except Exception:  # the launch meets the same error and reports it
                return None
        return _jobs[key]


def wait(job: Future[Any] | None) -> None:
    """Wait until a job from `start` has finished, successfully or not; cancel it if it has not begun.

    job: None does nothing.
    """
    if job is not None and not job.done() and not job.cancel():
        settle((job,))


def _forget() -> None:
    """Forget all jobs in a forked process, where the thread no longer exists."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None
    _jobs.clear()


def _compiles() -> None:
    _local.compiles = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
