"""Compilation of a backward pass's kernels beside the first forward pass, in a thread.

A forward pass starts it, with what its backward pass will do on tensors without memory (device meta), whose
launches only compile; the backward pass waits for it:

    ctx.compiled = ahead.start(key, backward_on_meta_tensors) if x.is_cuda else None
    ...
    ahead.wait(ctx.compiled)

Kernels are those of Triton, launched by `launch`. What fails in the thread is not told: the launch that needs
the kernel compiles it then, and says why it cannot.
"""

from __future__ import annotations

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


def start(key: Hashable, prepare: Callable[[], Callable[[], object]]) -> Future[Any]:
    """Run what `prepare` gives in the thread where launches only compile; once for a key.

    key: tells apart what compiles differently. prepare: called here and now, so that the job keeps no
    memory of a device.
    """
    global _pool
    with _lock:
        if key not in _jobs:
            _pool = _pool or ThreadPoolExecutor(1, thread_name_prefix="compile", initializer=_compiles)
            _jobs[key] = _pool.submit(prepare())
        return _jobs[key]


def wait(job: Future[Any] | None) -> None:
    """Until the job of `start` is done, well or not. None: there is none."""
    if job is not None and not job.done():
        settle((job,))


def _compiles() -> None:
    _local.compiles = True
