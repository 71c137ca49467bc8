"""Fused selective scan in Triton: states in registers, channels across threads, time in order.

A warp holds the states of a few channels and walks time in step blocks, with the next block's operands being
loaded; the states never reach memory, except for the checkpoints that backward starts from. Where batch and
channels are too few to fill the device, time is cut into segments: a first launch computes the map of each
segment on the state, a second starts each from its true state. Each packed sequence is cut into segments
separately. Step sizes, skip and output gate are formed on the way, each value by one lane. Backward
recomputes the states, and sums over channels by partial sums of channel blocks: nothing depends on the order
of programs.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ssmperf.authoring import Shape, Unsupported, backend

from .._states import as_state
from ..scan.common import bounds_on_device, differentiates
from ._signature import Arguments, check
from ._triton.decode import decode
from ._triton.function import SelectiveScan
from ._triton.schedule import Call
from ._triton.tiles import CHECKPOINT, TILES, key

GATES = ("exp", "exp_zoh", "implicit")
OPERANDS = ("x", "delta", "k", "q", "A", "skip", "output_gate", "delta_bias")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_N = 256


def saved(shape: Shape, itemsize: int, gate: str) -> float:
    """Sum the bytes of one state per CHECKPOINT steps, and of backward's partial sums of dk and dq."""
    block = TILES.row(key("backward", shape["N"], "exp", wide=itemsize == 4)).block
    return shape["B"] * shape["T"] * shape["D"] * shape["N"] * (4 / CHECKPOINT + 8 / block)


@backend(
    "selective_scan",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    gates=GATES,
    needs=("triton",),
    capability=(8, 0),
    kernels=("selective_scan_forward", "selective_scan_backward"),
    launches=lambda shape: 2,
    workspace=lambda shape, itemsize, gate: 0.0,
    saved=saved,
)
def selective_scan(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    gate: str = "exp",
    g: Tensor | None = None,
    tau: float = 1.0,
    discretization: str = "euler",
    skip: Tensor | None = None,
    output_gate: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Fused kernels: states in registers, time in order or in segments side by side.

    Args:
        x, delta: (B, T, D), float32 or half.
        k, q: (B, T, N), float32 or half, N ≤ 256.
        A: (D, N) for gate="exp".
        initial_state: (B, D, N).
        skip, delta_bias: (D,), float32 or half. output_gate: (B, T, D), float32 or half.
        cu_seqlens: (n + 1,) with B = 1; states are then (n, D, N).

    Returns:
        o (B, T, D) in the dtype of x and S_T (B, D, N), float32.

    Raises:
        Unsupported: another gate than exp and implicit, complex or double operands, N > 256.
        UsageError: operands that do not fit one another.
    """
    if g is not None or tau != 1:
        check(Arguments(x, delta, k, q, A, gate=gate, g=g, tau=tau, discretization=discretization))
        raise Unsupported(f"gate {gate!r} (it takes exp and implicit)")  # others take neither
    operands = (x, delta, k, q, A, skip, output_gate, delta_bias)
    shapes = (None if each is None else each.shape for each in operands)
    dtypes = (None if each is None else each.dtype for each in operands)
    accept(gate, discretization, delta_softplus, tuple(shapes), tuple(dtypes))
    assert delta is not None
    if initial_state is not None and initial_state.dtype != torch.float32:
        initial_state = as_state(initial_state, torch.float32)
    if cu_seqlens is not None:
        cu_seqlens = bounds_on_device(cu_seqlens, x, (x.shape[2], k.shape[2]), initial_state)
    call = Call(gate, discretization == "zoh", delta_softplus, cu_seqlens is not None)
    saves = differentiates(*operands, initial_state)  # parameters ask for gradients where none are wanted
    if cu_seqlens is None and x.shape[1] == 1 and not saves:
        return decode(
            x, delta, k, q, A, initial_state, call,
            skip=skip, output_gate=output_gate, delta_bias=delta_bias,
        )  # fmt: skip
    o, final = SelectiveScan.apply(  # type: ignore[no-untyped-call]
        x, delta, k, q, A, initial_state, skip, output_gate, delta_bias, cu_seqlens, call, saves
    )
    return o, final


@functools.lru_cache(maxsize=512)
def accept(
    gate: str,
    discretization: str,
    softplus: bool,
    shapes: tuple[torch.Size | None, ...],
    dtypes: tuple[torch.dtype | None, ...],
) -> None:
    """Refuse operands by their shapes and dtypes, once per kind of call.

    They are x, delta, k, q, A, skip, output_gate and delta_bias.
    """
    described = [
        None if shape is None else torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    x, delta, k, q, A, skip, z, bias = described
    assert x is not None and k is not None and q is not None
    given = Arguments(
        x, delta, k, q, A, gate=gate, discretization=discretization,
        skip=skip, output_gate=z, delta_bias=bias, delta_softplus=softplus,
    )  # fmt: skip
    check(given)
    if gate not in GATES or delta is None:
        raise Unsupported(f"gate {gate!r} (it takes exp and implicit)")
    for name, dtype in zip(OPERANDS, dtypes, strict=True):
        if dtype is not None and dtype not in DTYPES:
            raise Unsupported(f"{name} of dtype {dtype} (it takes float32, bfloat16, float16)")
    if k.shape[2] > LARGEST_N:
        raise Unsupported(f"N = {k.shape[2]} (it takes N up to {LARGEST_N})")
