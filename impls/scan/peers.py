"""Other people's scan kernels, as optional backends: accelerated-scan and flash-linear-attention's HGRN.

accelerated-scan takes gates instead of their logs, has time as its innermost axis, needs one dtype for all
operands, and starts from zero. The initial state enters through the first step's input, a_1 h_0 + b_1, and
autograd brings its gradient back the same way. For a backward pass, time is padded with zeros to whole
blocks: the backward pass of the real kernel reads past the end. Kernels that take no state do not decode: the
whole step would be computed before the call that is timed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import TRAINING_PASSES, Prepared, Unsupported

from .._peer import peer, refuse_double
from .common import differentiates, three_axes

BLOCK = 2048  # steps that one program of accelerated-scan holds at once
MOST = 2**31  # elements that accelerated-scan's 32-bit offsets can address


def _accelerated(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    _check_real(log_a, b, phase)
    if b.numel() >= MOST:
        raise Unsupported(f"{b.numel()} elements: accelerated-scan has 32-bit offsets")
    T = b.shape[1]
    padding = (0, -T % BLOCK if differentiates(log_a, b, initial_state) else 0)
    gates = three_axes(log_a.float().exp())
    inputs = _started(gates, b, initial_state)
    operands = (_time_last(each.expand(b.shape), b.dtype) for each in (gates, inputs))
    padded = tuple(functional.pad(each, padding) if any(padding) else each for each in operands)
    return Prepared(padded, lambda states: _channels_last(states[..., :T]))


@peer(
    "scan",
    name="accelerated_scan_scalar",
    package="accelerated_scan",
    modules=("accelerated_scan.scalar",),
    kernels=("forward_scan", "backward_scan"),
    launches=1,
    prepare=_accelerated,
    passes=TRAINING_PASSES,
    gates=("data", "const"),
)
def accelerated_scan_scalar(gates: Tensor, inputs: Tensor) -> Tensor:
    """accelerated-scan's Triton kernel; gates (rounded to the dtype of b) and inputs are (B, C, T)."""
    from accelerated_scan.scalar import scan

    states: Tensor = scan(gates, inputs)
    return states


def _accelerated_complex(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    if phase is None and not b.is_complex():
        raise Unsupported("real gates and inputs (accelerated_scan_scalar takes them)")
    refuse_double(log_a, b, takes=("complex64",))
    if 2 * b.numel() >= MOST:
        raise Unsupported(f"{b.numel()} complex elements: accelerated-scan has 32-bit offsets")
    magnitude = three_axes(log_a.float().exp()).expand(b.shape)
    angle = magnitude.new_zeros(1) if phase is None else three_axes(phase.float())
    gates = torch.polar(magnitude, angle.expand(b.shape))
    inputs = _started(gates, b.to(torch.complex64), initial_state)
    return Prepared((_time_last(gates), _time_last(inputs)), _channels_last)


@peer(
    "scan",
    name="accelerated_scan_complex",
    package="accelerated_scan",
    modules=("accelerated_scan.complex",),
    kernels=("forward_scan", "backward_scan"),
    launches=1,
    prepare=_accelerated_complex,
    dtypes=("float32",),
    passes=TRAINING_PASSES,
    gates=("data_complex", "const_complex"),
)
def accelerated_scan_complex(gates: Tensor, inputs: Tensor) -> Tensor:
    """accelerated-scan's Triton kernel in complex64; gates and inputs are (B, C, T)."""
    from accelerated_scan.complex import scan

    states: Tensor = scan(gates, inputs)
    return states


def _hgrn(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    _check_real(log_a, b, phase)
    log_a = three_axes(log_a).expand(b.shape).contiguous()
    inputs = b if initial_state is None else _started(log_a.float().exp(), b, initial_state).to(b.dtype)
    return Prepared((inputs.contiguous(), log_a), lambda states: (states, states[:, -1].float()))


@peer(
    "scan",
    name="fla_hgrn",
    package="fla",
    modules=("fla.ops.hgrn",),
    kernels=("chunk_hgrn",),
    launches=2,
    prepare=_hgrn,
    passes=TRAINING_PASSES,
    gates=("data", "const"),
)
def fla_hgrn(b: Tensor, log_a: Tensor) -> Tensor:
    """flash-linear-attention's chunk_hgrn; inputs and the log gates of all steps are (B, T, C)."""
    from fla.ops.hgrn import chunk_hgrn

    states: Tensor = chunk_hgrn(b, log_a)[0]
    return states


def _hgrn_recurrent(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> Prepared:
    _check_real(log_a, b, phase)
    log_a = three_axes(log_a).expand(b.shape).contiguous()
    state = None if initial_state is None else initial_state.float().contiguous()
    return Prepared((b.contiguous(), log_a, state), lambda raw: (raw[0], raw[1].float()))


@peer(
    "scan",
    name="fla_hgrn_recurrent",
    package="fla",
    modules=("fla.ops.hgrn",),
    kernels=("fused_recurrent_hgrn",),
    launches=1,
    prepare=_hgrn_recurrent,
    gates=("data", "const"),
)
def fla_hgrn_recurrent(b: Tensor, log_a: Tensor, state: Tensor | None) -> Any:
    """flash-linear-attention's fused_recurrent_hgrn, one step after another."""
    from fla.ops.hgrn import fused_recurrent_hgrn

    return fused_recurrent_hgrn(b, log_a, initial_state=state, output_final_state=True)


def _check_real(log_a: Tensor, b: Tensor, phase: Tensor | None) -> None:
    if phase is not None or b.is_complex():
        raise Unsupported("complex gates or inputs")
    refuse_double(log_a, b)


def _started(gates: Tensor, b: Tensor, initial_state: Tensor | None) -> Tensor:
    """Add the contribution of the initial state to the first step of b."""
    if initial_state is None:
        return b
    first = gates[:, :1] * initial_state.unsqueeze(1) + b[:, :1]
    return torch.cat([first, b[:, 1:]], dim=1)


def _time_last(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Copy (B, T, C) to a contiguous (B, C, T)."""
    return values.to(dtype or values.dtype).transpose(1, 2).contiguous()


def _channels_last(states: Tensor) -> tuple[Tensor, Tensor]:
    states = states.transpose(1, 2)
    return states, states[:, -1].to(torch.promote_types(states.dtype, torch.float32))
