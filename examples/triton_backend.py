"""A backend: the scan h_t = a_t ⊙ h_{t−1} + b_t as a kernel in Triton, with gradients of any order.

    ssmperf run --suite correctness --plugin examples/triton_backend.py --backends my_triton --models hgrn

Without a GPU, write `TRITON_INTERPRET=1` before the command: Triton's interpreter then runs the kernel.
"""

import torch
import triton
import triton.language as tl
from torch.nn import functional

from ssmperf.authoring import Unsupported, backend

CHANNELS = 128  # of one program, which walks through all steps of one sequence


@triton.jit
def scan_kernel(a, b, h, T, C, CHANNELS: tl.constexpr):
    """Write all states h from zero. a, b and h are contiguous (B, T, C) of one dtype."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < C
    at = tl.program_id(0).to(tl.int64) * T * C + channel  # int64: offsets may pass 2^31
    state = tl.zeros([CHANNELS], h.dtype.element_ty)
    for _ in range(T):
        a_t = tl.load(a + at, mask=inside, other=0.0)
        state = a_t * state + tl.load(b + at, mask=inside, other=0.0)
        tl.store(h + at, state, mask=inside)
        at += C


class Scan(torch.autograd.Function):
    """All states of gates and inputs (B, T, C) of one dtype."""

    @staticmethod
    def forward(ctx, a, b):
        h = torch.empty_like(b, memory_format=torch.contiguous_format)
        B, T, C = b.shape
        grid = (B, triton.cdiv(C, CHANNELS))
        scan_kernel[grid](a.contiguous(), b.contiguous(), h, T, C, CHANNELS=CHANNELS)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, grad_h):
        """The gradient at b_t is g_t = grad_h_t + a_{t+1} g_{t+1}: a scan from the last step to the first."""
        a, h = ctx.saved_tensors
        next_a = functional.pad(a[:, 1:], (0, 0, 0, 1))
        grad_b = Scan.apply(next_a.flip(1), grad_h.flip(1)).flip(1)
        previous_h = functional.pad(h[:, :-1], (0, 0, 1, 0))
        return grad_b * previous_h, grad_b


@backend("scan", name="my_triton", gates=("data", "const"), devices=("cuda",), needs=("triton",))
def my_triton(log_a, b, initial_state=None, *, phase=None):
    """One program per sequence and 128 channels, step after step, for real gates and inputs."""
    if phase is not None or b.is_complex():
        raise Unsupported("complex gates or inputs")
    # States are in float32 or wider: a bfloat16 state would stop growing at 256 times its input.
    dtype = torch.promote_types(torch.promote_types(log_a.dtype, b.dtype), torch.float32)
    h_0 = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    # the initial state is the input of a step before the first
    inputs = torch.cat([h_0[:, None].to(dtype), b.to(dtype)], dim=1)
    gates = functional.pad(log_a.to(dtype).exp().expand(b.shape), (0, 0, 1, 0))
    h = Scan.apply(gates, inputs)
    return h[:, 1:].to(b.dtype), h[:, -1]
