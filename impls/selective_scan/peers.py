"""Other people's selective scan, as an optional backend: the CUDA extension of mamba-ssm.

Only the extension is needed, `selective_scan_cuda`, which the build of mamba-ssm makes; not the package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from .._autograd import once_differentiable
from .._peer import peer, refuse_double, refuse_state_gradient
from ..scan.common import taking
from ._signature import HUGE, Arguments, bounds_of, check

LARGEST_N = 256


def _mamba(given: Arguments) -> Prepared:
    check(given)
    if bounds_of(given) is not None:
        raise Unsupported("packed sequences")
    gate, discretization = given.gate, given.discretization
    x, delta, k, q, A = given.x, given.delta, given.k, given.q, given.A
    if gate != "exp" or discretization != "euler" or delta is None or A is None:
        raise Unsupported(f"gate {gate!r} with discretization {discretization!r} (it takes exp, euler)")
    if given.initial_state is not None:
        raise Unsupported("an initial state: it starts from zero")
    if k.shape[2] > LARGEST_N:
        raise Unsupported(f"N = {k.shape[2]} (it takes N up to {LARGEST_N})")
    skip, output_gate, delta_bias = given.skip, given.output_gate, given.delta_bias
    refuse_double(x, delta, k, q, A, skip, output_gate, delta_bias)
    if A.is_complex():
        A = torch.complex(A.real.float().clamp(-HUGE, HUGE), A.imag.float())
    else:
        A = A.float().clamp(-HUGE, HUGE)
    keys, queries = (_groups(each, x.dtype, paired=A.is_complex()) for each in (k, q))
    inputs, steps = _time_last(x, x.dtype), _time_last(delta, x.dtype)
    z = None if output_gate is None else _time_last(output_gate, x.dtype)
    weight, bias = (None if each is None else each.float().contiguous() for each in (skip, delta_bias))
    return Prepared((inputs, steps, A, keys, queries, weight, z, bias, given.delta_softplus), _finish)


@peer(
    "selective_scan",
    name="mamba_ssm",
    package="selective_scan_cuda",
    kernels=("selective_scan_fwd", "selective_scan_bwd"),
    launches=1,
    prepare=taking(Arguments, _mamba),
    gates=("exp", "exp_complex"),
    deterministic=False,
)
def mamba_ssm(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> Any:
    """mamba-ssm's CUDA kernels: u, delta and z (B, D, T) of one dtype, B and C (B, 1, N, T), 2T if complex.

    D and delta_bias are float32.
    """
    return MambaScan.apply(u, delta, A, B, C, D, z, delta_bias, delta_softplus)  # type: ignore[no-untyped-call]


class MambaScan(torch.autograd.Function):
    """The extension's forward and backward. It saves the output before z gates it."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> tuple[Tensor, Tensor]:
        import selective_scan_cuda

        output, ends, *gated = selective_scan_cuda.fwd(*operands)
        *tensors, ctx.softplus = operands
        kept = output if gated else None
        ctx.save_for_backward(*tensors, ends, kept)
        ctx.set_materialize_grads(False)
        return gated[0] if gated else output, ends[:, :, -1, 1::2].clone()

    @staticmethod
    @once_differentiable("selective_scan/mamba_ssm")
    def backward(ctx: Any, grad: Tensor | None, grad_state: Tensor | None) -> tuple[Tensor | None, ...]:
        import selective_scan_cuda

        refuse_state_gradient(grad_state)
        if grad is None:
            return (None,) * 9
        *operands, ends, kept = ctx.saved_tensors
        du, ddelta, dA, dB, dC, dD, dbias, *dz = selective_scan_cuda.bwd(
            *operands, grad.contiguous(), ends, kept, None, ctx.softplus, False
        )
        return du, ddelta, dA, dB, dC, dD, dz[0] if dz else None, dbias, None


def _finish(raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return raw[0].transpose(1, 2), raw[1]


def _time_last(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn (B, T, D) into (B, D, T), contiguous."""
    return values.to(dtype).transpose(1, 2).contiguous()


def _groups(keys: Tensor, dtype: torch.dtype, *, paired: bool) -> Tensor:
    """Turn (B, T, N) into one group (B, 1, N, T), or (B, 1, N, 2T) with real and imaginary parts in turn."""
    if not paired:
        return _time_last(keys, dtype).unsqueeze(1)
    parts = torch.view_as_real(keys.to(torch.complex64).transpose(1, 2).resolve_conj())
    return parts.flatten(2).to(dtype).unsqueeze(1).contiguous()
