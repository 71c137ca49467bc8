"""mlstm_kernels: the mLSTM with sigmoid gates and without a normaliser, for one gate per head.

Its forget gate is σ(f) and its input gate σ(i): f = log a − log(1 − a), and i is so large that σ(i) = 1 in
float32. It divides the scores by √K, which a factor at q undoes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from ..._autograd import once_differentiable
from ..._peer import without_state_gradient
from .given import Given, preparing

CHUNK = 128
SHORT = (16, 32, 64)  # lengths below a chunk that are chunks of their own
OPEN = 40.0  # an input gate that is 1 in float32
NEAREST = -1e-30  # to 0: in float32, the exponential of this log gate is 1
LEAST_WIDTH = 9  # of K and V: tiles are powers of two, and Triton contracts 16 channels or more


class Logit(torch.autograd.Function):
    """log a − log(1 − a) of log a, kept finite at a = 1."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor) -> Tensor:
        ctx.save_for_backward(log_a)
        inside = log_a.clamp(max=NEAREST)
        return inside - torch.log(-torch.expm1(inside))

    @staticmethod
    @once_differentiable("linear_attention/mlstm_kernels")
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (log_a,) = ctx.saved_tensors
        gradient: Tensor = grad / -torch.expm1(log_a.clamp(max=NEAREST))
        return gradient


def lengths(T: int) -> str | None:
    """Say why a length is refused, or return None."""
    if T % CHUNK == 0 or T in SHORT:
        return None
    return f"T = {T} (it takes {', '.join(map(str, SHORT))} and multiples of {CHUNK})"


def _siging(x: Given) -> Prepared:
    B, T, H, K = x.shape
    if x.log_b is not None or x.log_a is None or x.gate != "scalar":
        raise Unsupported("other gates than one per head and step")
    if x.pre:
        raise Unsupported("a read of S_{t-1}")
    if reason := lengths(T):
        raise Unsupported(reason)
    if min(K, x.v.shape[-1]) < LEAST_WIDTH:
        raise Unsupported(f"K = {K} and V = {x.v.shape[-1]} (it takes widths from {LEAST_WIDTH})")
    q, k, v = (x.data(each.transpose(1, 2)) for each in (x.q * K**0.5, x.k, x.v))
    forget: Tensor = Logit.apply(x.log_a.float().mT.contiguous())  # type: ignore[no-untyped-call]
    opened = torch.full_like(forget, OPEN).detach()
    state = x.float_state()
    normaliser = None if state is None else state.new_zeros(B, H, K)

    def finish(raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        output, last = x.finish((raw[0].transpose(1, 2), raw[1]))
        return output, without_state_gradient(last)  # the gradient of its gates leaves dS_T out

    return Prepared((q, k, v, opened, forget, state, normaliser), finish)


siging = preparing(_siging)


def call_siging(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: Tensor | None, normaliser: Tensor | None
) -> Any:
    """Call mlstm_siging_chunkwise__xl_chunk; gives h (B, H, T, V) and the last state (B, H, K, V)."""
    from mlstm_kernels.torch.chunkwise import mlstm_siging_chunkwise__xl_chunk

    h, (last, _) = mlstm_siging_chunkwise__xl_chunk(
        q,
        k,
        v,
        i,
        f,
        c_initial=state,
        n_initial=normaliser,
        return_last_states=True,
        normalize=False,
        chunk_size=CHUNK,
    )
    return h, last
