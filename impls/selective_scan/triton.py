"""Fused selective scan in Triton: states in registers, channels across threads, time in order.

A warp holds the states of a few channels and walks time, R steps a round with the next round's operands
under way; the states never reach memory, but for one in 64 that backward starts from. Where batch and
channels are too few to fill the device, time is cut into spans: a first launch finds what each span does to
the state, a second begins each with its true state. Packed sequences are cut into spans each by itself. Step
sizes, skip and output gate are formed on the way, each value by one lane. Backward forms the states again,
and sums over channels by partial sums of blocks of channels, so nothing depends on the order of programs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, Unsupported, backend

from ..scan.common import differentiates
from ._signature import check, check_options, sequence_bounds
from ._triton.decode import decode
from ._triton.function import KINDS, SelectiveScan
from ._triton.tiles import CHECKPOINT, TILES, key

GATES = ("exp", "exp_zoh", "implicit")
LARGEST_N = 256


def saved(shape: Shape, itemsize: int, gate: str) -> float:
    """Bytes: one state per CHECKPOINT steps, and backward's partial sums of dk and dq."""
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
    """Fused kernels: states in registers, time in order or in spans side by side.

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
    check(x, delta, k, q, A, gate, g, tau, discretization)
    options = {
        "skip": skip, "output_gate": output_gate, "delta_bias": delta_bias, "delta_softplus": delta_softplus,
    }  # fmt: skip
    check_options(x, delta, **options)
    if gate not in GATES or delta is None:
        raise Unsupported(f"gate {gate!r} (it takes exp and implicit)")
    tensors = {"x": x, "delta": delta, "k": k, "q": q, "A": A, **options}
    for name, operand in tensors.items():
        if isinstance(operand, Tensor) and operand.dtype not in KINDS:
            raise Unsupported(f"{name} of dtype {operand.dtype} (it takes float32, bfloat16, float16)")
    if k.shape[2] > LARGEST_N:
        raise Unsupported(f"N = {k.shape[2]} (it takes N up to {LARGEST_N})")
    state = None if initial_state is None else initial_state.to(torch.float32)
    zoh = discretization == "zoh"
    differentiable = differentiates(x, delta, k, q, A, state, skip, output_gate, delta_bias)
    if cu_seqlens is None and x.shape[1] == 1 and not differentiable:
        return decode(x, delta, k, q, A, state, gate, zoh=zoh, **options)
    bounds = None if cu_seqlens is None else sequence_bounds(cu_seqlens, x, k, initial_state)
    o, final = SelectiveScan.apply(
        x, delta, k, q, A, state, skip, output_gate, delta_bias, gate, delta_softplus, zoh, bounds
    )
    return o, final
