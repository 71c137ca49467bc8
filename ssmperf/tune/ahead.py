"""Compilation of a backward pass's kernels beside the first forward pass, in a thread.

A forward pass starts it, with a call of its backward pass on tensors without memory (device meta), whose
launches only compile; the backward pass waits for it:

    ctx.compiled = ahead.start(key, lambda: partial(backward, *meta_tensors)) if x.is_cuda else None
    ...
    ahead.wait(ctx.compiled)

Kernels are those of Triton, launched by `launch`. What fails here is not told: the launch that needs the
kernel compiles it then, and says why it cannot. A process that ends waits for what is being compiled.
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
    """Launch a jit function of Triton over some programs; in a thread of `start`, only compile it."""
    if getattr(_local, "compiles", False):
        kernel.warmup(*operands, grid=(programs,), **constants)
    else:
        kernel[(programs,)](*operands, **constants)


def start(key: Hashable, prepare: Callable[[], Callable[[], object]]) -> Future[Any] | None:
    """Run what `prepare` gives in the thread where launches only compile; once for a key.

    key: of what compiles alike. prepare: called here and now, so that the job keeps no memory of a device.

    Returns:
        What `wait` takes; None if it could not be started.
    """
    global _pool
    with _lock:
        if key not in _jobs:
            try:
                _pool = _pool or ThreadPoolExecutor(1, thread_name_prefix="compile", initializer=_compiles)
                _jobs[key] = _pool.submit(prepare())
            except Exception:  # whatever it is, the launch meets it again and tells it
                return None
        return _jobs[key]


def wait(job: Future[Any] | None) -> None:
    """Until a job of `start` is done, well or not; what has not begun is given up. None: there is no job."""
    if job is not None and not job.done() and not job.cancel():
        settle((job,))


def _forget() -> None:
    """In a forked process the thread is gone."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None
    _jobs.clear()


def _compiles() -> None:
    _local.compiles = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
