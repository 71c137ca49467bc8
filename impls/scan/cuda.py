"""Fused diagonal scan in CUDA C++, channels innermost, compiled by NVRTC at first use.

Tiles of steps × channels travel to shared memory in their own types, several ahead of the arithmetic. A
thread composes its run of steps to one affine map and keeps, for every step, the product of the gates and the
state from zero; the runs' maps are scanned across lanes and warps, and then a step costs one fused
multiply-add. Where batch and channels are too few to fill the device, tiles go to blocks as tickets, and a
tile learns the state before it from the tiles that precede it (`_cuda/walk.cuh`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, UsageError, backend

from .._states import as_state
from .._triton.plan import packed
from ._cuda.function import TYPES, Scan
from .common import three_axes

GATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@backend(
    "scan",
    name="cuda",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    layouts=("channels_last",),
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
        log_a, phase: (B, T, C) or broadcasting to it, float32 or half. (B|1, 1, C) is read as it is; where
            another shape broadcasts, rows do not follow one another in memory, or the two have different
            types, they are copied first.
        b: (B, T, C), float32, half or complex64, read as complex64 where there is a phase.
        initial_state: (B, C).

    Returns:
        h (B, T, C) in the dtype of b (complex64 with a phase) and h_T (B, C), float32 or complex64.

    Raises:
        Unsupported: double precision, a tensor that is not on a CUDA device, or no NVRTC.
        UsageError: a gate that does not broadcast to b.
    """
    if b.dtype not in TYPES:
        raise Unsupported(f"b of dtype {b.dtype} (it takes float32, bfloat16, float16, complex64)")
    if b.is_complex() and phase is None:
        phase = log_a.new_zeros(1, 1, 1)
    log_a = _gate("log_a", log_a, b.shape)
    wide = torch.float32
    if phase is not None:
        phase = _gate("phase", phase, b.shape)
        if log_a.dtype != phase.dtype:
            gates = torch.promote_types(log_a.dtype, phase.dtype)
            log_a, phase = log_a.to(gates), phase.to(gates)
        wide = torch.complex64
        b = b.to(wide)
    if initial_state is not None:
        initial_state = packed(as_state(initial_state, wide))
    if b.device.type != "cuda":
        raise Unsupported("runs on cuda only")
    h, final = Scan.apply(log_a, phase, packed(b), initial_state)  # type: ignore[no-untyped-call]
    return h, final


def _gate(name: str, gate: Tensor, shape: torch.Size) -> Tensor:
    """(B|1, 1, C) or (B, T, C), contiguous."""
    if gate.dtype not in GATE_DTYPES:
        raise Unsupported(f"{name} of dtype {gate.dtype} (it takes float32, bfloat16, float16)")
    if gate.dim() != 3:
        gate = three_axes(gate)
    if gate.shape != shape:
        if any(size not in (1, whole) for size, whole in zip(gate.shape, shape, strict=True)):
            raise UsageError(f"{name} {tuple(gate.shape)} does not broadcast to {tuple(shape)}")
        gate = gate.expand(-1, -1, shape[2]) if gate.shape[1] == 1 else gate.expand(shape)
    return gate if gate.is_contiguous() else gate.contiguous()
