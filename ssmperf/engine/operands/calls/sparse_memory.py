"""Memory of many gigabytes of addresses, of which only the pages exist that are written.

On a CPU such memory costs addresses alone, which count towards the limit of a worker. So a worker reserves
some before the limit applies. A GPU has no such memory: there every byte exists.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref

import torch
from torch import Tensor

from ssmperf.errors import Unsupported

MAP_NORESERVE = 0x4000  # of Linux: pages that are never written count towards no limit of memory
REGIONS = 6  # two operands in the values of two draws, and in the buffers of the calls
REGION_BYTES = 17 << 30  # 2^31 numbers of eight bytes, and one more item of a batch
_reserved: list[mmap.mmap] = []


def reserve() -> None:
    """Reserve addresses, as far as the system permits, before a limit applies to this process."""
    with contextlib.suppress(OSError):
        while len(_reserved) < REGIONS:
            _reserved.append(_mapped(REGION_BYTES))


def sparse(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a vector whose numbers are 0 on a CPU, and uninitialised on a GPU.

    Raises:
        Unsupported: the process may not have so many addresses.
    """
    if device.type != "cpu":
        return torch.empty(count, dtype=dtype, device=device)
    nbytes = count * dtype.itemsize
    if _reserved and nbytes <= REGION_BYTES:
        region = _reserved.pop()
        memory = memoryview(region)
        weakref.finalize(memory, _give_back, region)
        return torch.frombuffer(memory, dtype=dtype, count=count)
    try:
        return torch.frombuffer(_mapped(nbytes), dtype=dtype)
    except OSError as error:
        reason = f"this process may not have another {nbytes / 2**30:.0f} GiB of addresses"
        raise Unsupported(f"no view far: {reason} ({error})") from error


def _mapped(nbytes: int) -> mmap.mmap:
    region = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    region.madvise(mmap.MADV_NOHUGEPAGE)
    return region


def _give_back(region: mmap.mmap) -> None:
    """Empty a region whose tensors are gone, for the next one."""
    region.madvise(mmap.MADV_DONTNEED)
    _reserved.append(region)
