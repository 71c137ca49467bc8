"""The cache before a timed call: flushed (`cold`) on a GPU, or left as the last call left it (`hot`)."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ssmperf.errors import UsageError

CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SC_LEVEL3_CACHE_SIZE = 194  # glibc's number for sysconf; Python's os.sysconf_names lacks it
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Flusher:
    """Evicts a GPU's L2 by writing a buffer of more than twice its size."""

    state = "cold"

    def __init__(self, device: torch.device | str) -> None:
        self.buffer = torch.empty(2 * l2_bytes(device) + 2**20, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        """Enqueue the eviction on the current stream. Call it outside the timed region."""
        self.buffer.zero_()


class KeepCache:
    """Leaves the cache as it is."""

    state = "hot"

    def flush(self) -> None:
        """Do nothing."""


def flusher(device: torch.device | str, state: str) -> Flusher | KeepCache:
    """Make the flusher that brings the cache into a state before each call. A CPU is always measured hot.

    Raises:
        UsageError: the state is neither `cold` nor `hot`.
    """
    if state not in ("cold", "hot"):
        raise UsageError(f"unknown cache state {state!r} (valid: cold, hot)")
    if state == "hot" or torch.device(device).type != "cuda":
        return KeepCache()
    return Flusher(device)


def l2_bytes(device: torch.device | str) -> int:
    """Get the size of a GPU's L2 cache. Starts its CUDA context."""
    return int(torch.cuda.get_device_properties(torch.device(device)).L2_cache_size)


def cpu_cache_bytes(folder: Path = CPU_CACHES) -> int | None:
    """Get the size of CPU 0's last-level cache; None if the system does not report it."""
    sizes = [
        (int((cache / "level").read_text()), _bytes((cache / "size").read_text()))
        for cache in folder.glob("index*")
        if (cache / "size").exists()
    ]
    if sizes:
        return max(sizes)[1]
    try:
        size = os.sysconf(_SC_LEVEL3_CACHE_SIZE)
    except (OSError, ValueError):
        return None
    return size if size > 0 else None


def cache_bytes(device: torch.device | str) -> int:
    """Get the size of a device's last-level cache, 0 if it is unknown."""
    return l2_bytes(device) if torch.device(device).type == "cuda" else cpu_cache_bytes() or 0


def _bytes(text: str) -> int:
    text = text.strip()
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)
