"""Other people's kernels for the delta rule, as optional backends: fla, FlashQLA, cuDNN and FlashInfer.

Which function a call reaches, and what it refuses, is in `_peers/`. The names of the kernels that ran are in
the record of a timed case.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ssmperf.authoring import TRAINING_PASSES

from .._fla import load_all
from .._peer import peer
from ._peers import cudnn as _cudnn
from ._peers import fla as _fla
from ._peers import flash_qla as _flash_qla
from ._peers import flashinfer as _flashinfer
from ._peers.arguments import HALF

Function = TypeVar("Function", bound=Callable[..., Any])

HOPPER = (9, 0)
FLASH_QLA = ("tilelang_fused_chunk_gdr_fwd", "tilelang_fused_chunk_gdr_bwd")
CUDNN = ("kda_fused", "k_scan_t")  # forward and backward
STATES = ("chunk_gated_delta_rule_fwd_kernel_h", "chunk_dplr_fwd_kernel_h")  # of fla, in both passes


def chunked(name: str, *, own_choice: bool) -> Callable[[Function], Function]:
    """Register a function with fla's chunk kernels. own_choice: whether fla chooses its back ends."""
    return peer(
        "delta_rule",
        name=name,
        package="fla",
        kernels=(*STATES, *FLASH_QLA) if own_choice else STATES,
        launches=6,
        prepare=_fla.chunked(own_choice=own_choice),
        loads=partial(load_all, _fla.MODULES, own_choice=own_choice),
        passes=TRAINING_PASSES,
        gates=_fla.GATES,
    )


@chunked("fla", own_choice=True)
def fla(form: str, *operands: Any) -> Any:
    """flash-linear-attention's chunk kernels, with the back ends that it chooses itself."""
    return _fla.call_chunked(form, *operands)


@chunked("fla_triton", own_choice=False)
def fla_triton(form: str, *operands: Any) -> Any:
    """flash-linear-attention's chunk kernels in Triton, with its choice of back ends switched off."""
    return _fla.call_chunked(form, *operands)


@peer(
    "delta_rule",
    name="fla_recurrent",
    package="fla",
    kernels=("fused_recurrent",),
    launches=1,
    prepare=_fla.recurrent,
    modules=_fla.MODULES,
    gates=_fla.GATES,
)
def fla_recurrent(form: str, *operands: Any) -> Any:
    """flash-linear-attention's fused recurrent kernels, one step after another; also one token."""
    return _fla.call_recurrent(form, *operands)


@peer(
    "delta_rule",
    name="flash_qla",
    package="flash_qla",
    kernels=FLASH_QLA,
    launches=3,
    prepare=_flash_qla.gated,
    dtypes=HALF,
    capability=HOPPER,
    passes=TRAINING_PASSES,
    gates=_flash_qla.GATES,
)
def flash_qla(*operands: Any) -> Any:
    """FlashQLA's chunk_gated_delta_rule, in TileLang."""
    return _flash_qla.call(*operands)


@peer(
    "delta_rule",
    name="cudnn",
    package="cudnn",
    modules=("cudnn.linear_attention.ops.kda",),
    kernels=CUDNN,
    launches=1,
    prepare=_cudnn.hopper,
    dtypes=_cudnn.DTYPES,
    capability=HOPPER,
    passes=TRAINING_PASSES,
    gates=_cudnn.GATES,
)
def cudnn(*operands: Any) -> Any:
    """cuDNN's kimi_delta_attention, in CUDA for Hopper."""
    return _cudnn.call(*operands)


@peer(
    "delta_rule",
    name="flashinfer",
    package="flashinfer",
    modules=("flashinfer.gdn_prefill",),
    kernels=("DeltaRule", "delta_rule"),
    launches=1,
    prepare=_flashinfer.prefill,
    dtypes=HALF,
    capability=HOPPER,
    passes=("forward",),
    gates=_flashinfer.GATES,
)
def flashinfer(*operands: Any) -> Any:
    """FlashInfer's chunk_gated_delta_rule, in CuTe DSL."""
    return _flashinfer.call(*operands)
