"""Freed memory in the allocator of the C library."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST_KEPT_BYTES = 32 << 20  # glibc allows no more, and its own adaptation ends there


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for the next allocation; do nothing without glibc.

    By itself it adapts to what was freed when: of two processes with the same calls, one may return memory to
    the system after each call, and get it back page by page in the next, while the other keeps it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
