"""Fused diagonal scan in CUDA C++, channels innermost, compiled by NVRTC at first use.

Tiles of steps × 64 channels travel to shared memory in their own types, several ahead of the arithmetic. A
warp holds a run of steps: it is composed to one affine map, the maps of a tile's runs are composed in order,
and each run is replayed from its true starting state. Where batch and channels are too few to fill the
device, tiles go to blocks as tickets, and a tile learns the state before it from the tiles that precede it
(`_cuda/walk.cuh`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Unsupported, UsageError, backend

from ._cuda.function import TYPES, Scan


@backend(
    "scan",
    name="cuda",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    gates=("data", "const"),
    needs=("cuda.core", "cuda.bindings"),
    capability=(8, 0),
    kernels=("cuda_scan_forward", "cuda_scan_backward"),
    launches=lambda shape: 2,
)
def scan(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fused kernels in CUDA C++: tiles in shared memory, parallel over time within and across blocks.

    Args:
        log_a: (B, T, C) or broadcasting to it, float32 or half. (B|1, 1, C) is read as it is; where another
            shape broadcasts, or rows do not follow one another in memory, it is copied first.
        b: (B, T, C), float32 or half.
        initial_state: (B, C).
        phase: None; complex gates are not computed.

    Returns:
        h (B, T, C) in the dtype of b and h_T (B, C) in float32.

    Raises:
        Unsupported: double precision, a complex operand, a tensor that is not on a CUDA device, or no NVRTC.
        UsageError: a gate that does not broadcast to b.
    """
    if phase is not None:
        raise Unsupported("no complex gates (it takes data, const)")
    for name, x in (("b", b), ("log_a", log_a)):
        if x.dtype not in TYPES:
            raise Unsupported(f"{name} of dtype {x.dtype} (it takes float32, bfloat16, float16)")
    if initial_state is not None:
        if initial_state.is_complex():
            raise Unsupported("no complex initial state")
        initial_state = initial_state.to(torch.float32).contiguous()
    log_a = _gate(log_a, b.shape)
    if b.device.type != "cuda":
        raise Unsupported("runs on cuda only")
    h, final = Scan.apply(log_a, b.contiguous(), initial_state)
    return h, final


def _gate(log_a: Tensor, shape: torch.Size) -> Tensor:
    """(B|1, 1, C) or (B, T, C), contiguous."""
    log_a = log_a[(None,) * (3 - log_a.dim())]
    if any(size not in (1, whole) for size, whole in zip(log_a.shape, shape, strict=True)):
        raise UsageError(f"log_a {tuple(log_a.shape)} does not broadcast to {tuple(shape)}")
    B, T, C = shape
    log_a = log_a.expand(-1, -1, C) if log_a.shape[1] == 1 else log_a.expand(B, T, C)
    return log_a.contiguous()
