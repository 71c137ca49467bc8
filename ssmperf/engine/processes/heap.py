"""Freed memory in the allocators of the C library and of torch."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGEST_KEPT_BYTES = 32 << 20  # glibc allows no more, and its own adaptation ends there
MOST_UNUSED_BYTES = 1 << 30  # of a GPU's memory, which other processes need


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of up to 32 MiB for the next allocation; do nothing without glibc.

    By itself it adapts to what was freed when: of two processes with the same calls, one may return memory to
    the system after each call, and get it back page by page in the next, while the other keeps it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, -1)  # never


def give_back(device: str) -> None:
    """Give back what torch's allocator holds of a GPU's memory without using it, if that is much."""
    import torch

    if device.startswith("cuda"):
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if unused > MOST_UNUSED_BYTES:
            torch.cuda.empty_cache()
