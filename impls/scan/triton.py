"""Fused diagonal scan in Triton, parallel over time within and across programs.

With channels innermost, a program walks tiles of RUNS·R steps × BC channels. A run is R consecutive steps
held in registers: it is composed to one affine map with a multiply and a fused multiply-add a step, the maps
of the RUNS runs are scanned across threads, and each run is replayed from its true starting state. So the
tree scan costs 1/R of the elements. Where batch and channels are too few to fill the device, every tile has a
program of its own, which learns the state before it from the programs of the tiles before
(`_triton/chain.py`).

With time innermost, which b's strides say, a warp walks one row, or several do where rows are few: a thread
loads adjacent steps as a vector, which is its run (`_triton/time_last.py`). One step without gradients is a
kernel of its own (`_triton/decode.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, UsageError, backend

from .._states import as_state
from ._triton.decode import decode
from ._triton.function import Scan
from ._triton.time_last import TimeLastScan, is_time_last
from .common import differentiates, three_axes

GATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INPUT_DTYPES = (*GATE_DTYPES, torch.complex64)


@backend(
    "scan",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    needs=("triton",),
    capability=(8, 0),
    kernels=("scan_forward", "scan_backward"),
    launches=lambda shape: 2,
)
def scan(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fused kernels: runs of steps in registers, parallel over time within and across programs.

    Args:
        log_a, phase: (B, T, C) or broadcasting to it (without a copy); float32 or half. Where they vary in
            time with another axis innermost than b, they are copied first.
        b: (B, T, C), float32, half or complex64, with channels or time innermost in memory.
        initial_state: (B, C).

    Returns:
        h (B, T, C) in the dtype of b (complex64 with a phase), with the same axis innermost, and h_T (B, C),
        float32 or complex64.

    Raises:
        Unsupported: double precision.
        UsageError: a gate that does not broadcast to b.
    """
    if b.dtype not in INPUT_DTYPES:
        raise Unsupported(f"b of dtype {b.dtype} (it takes float32, bfloat16, float16, complex64)")
    if b.is_complex() and phase is None:
        phase = log_a.new_zeros(1, 1, 1)
    log_a = _gate("log_a", log_a, b.shape)
    if phase is not None:
        phase = _gate("phase", phase, b.shape)
    wide = torch.float32 if phase is None else torch.complex64
    if initial_state is not None and initial_state.dtype != wide:
        initial_state = as_state(initial_state, wide)
    if b.shape[1] == 1 and not differentiates(log_a, phase, b, initial_state):
        return decode(log_a, phase, b, initial_state)
    if is_time_last(b):
        h, final = TimeLastScan.apply(log_a, phase, b, initial_state)  # type: ignore[no-untyped-call]
    else:
        h, final = Scan.apply(  # type: ignore[no-untyped-call]
            _channels_last(log_a), _channels_last(phase), b, initial_state
        )
    return h, final


def _gate(name: str, gate: Tensor, shape: torch.Size) -> Tensor:
    """(B|1, T|1, C|1)."""
    if gate.dtype not in GATE_DTYPES:
        raise Unsupported(f"{name} of dtype {gate.dtype} (it takes float32, bfloat16, float16)")
    if gate.dim() != 3:
        gate = three_axes(gate)
    if gate.shape == shape:
        return gate
    if any(size not in (1, whole) for size, whole in zip(gate.shape, shape, strict=True)):
        raise UsageError(f"{name} {tuple(gate.shape)} does not broadcast to {tuple(shape)}")
    return gate


def _channels_last(gate: Tensor | None) -> Tensor | None:
    """Channels next to each other, copied only if they are not."""
    return gate if gate is None or gate.shape[2] == 1 or gate.stride(2) == 1 else gate.contiguous()
