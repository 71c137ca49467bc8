"""The kernels, and how they are loaded."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._cuda.load import load
from ..._cuda.program import Program

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


CHUNKS = Kernel("chunks.cu", "cuda_delta_chunks", 128, 47_872)
WALK = Kernel("walk.cu", "cuda_delta_walk", 256, 207_872)
WALK_KEEP = Kernel("walk.cu", "cuda_delta_walk_keep", 256, 224_256)
WALK_BACK = Kernel("walk.cu", "cuda_delta_walk_back", 256, 224_256)
GRADIENTS = Kernel("gradients.cu", "cuda_delta_gradients", 256, 200_000)
KERNELS = (CHUNKS, WALK, WALK_KEEP, WALK_BACK, GRADIENTS)


@functools.cache
def loaded(kernel: Kernel, device: int) -> Any:
    """Compile a kernel, or find it in the cache, and load it onto a device."""
    return load(kernel.program.cubin(ARCH), kernel.name, kernel.shared_bytes, device)
