"""The kernels, and how they are loaded."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._cuda.load import load
from ..._cuda.program import Program, import_compiler

SOURCES = Path(__file__).parent
ARCH = "sm_90a"  # Hopper alone has these products


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a file. threads, shared_bytes: of a block."""

    file: str
    name: str
    threads: int
    shared_bytes: int

    @property
    def program(self) -> Program:
        return Program(SOURCES, self.file)


CHUNKS = Kernel("chunks.cu", "cuda_delta_chunks", 128, 36_624)
WALK = Kernel("walk.cu", "cuda_delta_walk", 384, 225_280)
WALK_KEEP = Kernel("walk.cu", "cuda_delta_walk_keep", 384, 225_280)
WALK_WIDE = Kernel("walk_wide.cu", "cuda_delta_walk_wide", 512, 221_184)
WALK_WIDE_KEEP = Kernel("walk_wide.cu", "cuda_delta_walk_wide_keep", 512, 221_184)
WALK_ENDS = Kernel("walk.cu", "cuda_delta_walk_ends", 384, 225_280)
WALK_WIDE_ENDS = Kernel("walk_wide.cu", "cuda_delta_walk_wide_ends", 512, 221_184)
WALK_BACK = Kernel("walk_back.cu", "cuda_delta_walk_back", 384, 225_280)
WALK_BACK_WIDE = Kernel("walk_back_wide.cu", "cuda_delta_walk_back_wide", 512, 225_280)
WALK_BACK_ENDS = Kernel("walk_back.cu", "cuda_delta_walk_back_ends", 384, 225_280)
WALK_BACK_WIDE_ENDS = Kernel("walk_back_wide.cu", "cuda_delta_walk_back_wide_ends", 512, 225_280)
CARRY = Kernel("carry.cu", "cuda_delta_carry", 256, 18_432)
GRADIENTS = Kernel("gradients.cu", "cuda_delta_gradients", 384, 227_344)
KERNELS = (
    CHUNKS,
    WALK,
    WALK_KEEP,
    WALK_WIDE,
    WALK_WIDE_KEEP,
    WALK_ENDS,
    WALK_WIDE_ENDS,
    WALK_BACK,
    WALK_BACK_WIDE,
    WALK_BACK_ENDS,
    WALK_BACK_WIDE_ENDS,
    CARRY,
    GRADIENTS,
)


_codes: dict[Program, Future[bytes]] = {}
_lock = threading.Lock()


def compiling(program: Program) -> Future[bytes]:
    """Begin to compile a program, or to find it in the cache, in a thread of its own; once in a process."""
    with _lock:
        if program not in _codes:
            import_compiler()
            thread = ThreadPoolExecutor(1)
            _codes[program] = thread.submit(program.cubin, ARCH)
            thread.shutdown(wait=False)
        return _codes[program]


@functools.cache
def loaded(kernel: Kernel, device: int) -> Any:
    """Compile a kernel, or find it in the cache, and load it onto a device."""
    try:
        code = compiling(kernel.program).result()
    except Exception:
        _codes.pop(kernel.program, None)  # the next call tries again
        raise
    return load(code, kernel.name, kernel.shared_bytes, device)
