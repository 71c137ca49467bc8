"""Other people's kernels for linear attention, as optional backends: fla, mamba-ssm's SSD and mlstm_kernels.

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
from ._peers import fla as _fla
from ._peers import mamba, mlstm

Function = TypeVar("Function", bound=Callable[..., Any])

CHUNKED = ("none", "const", "scalar", "key")
STATES = "chunk_fwd_kernel_h"  # of fla: all of its chunk kernels launch it, in every pass


def chunked(name: str, *, own_choice: bool) -> Callable[[Function], Function]:
    """Register a function with fla's chunk kernels. own_choice: whether fla chooses its back ends."""
    return peer(
        "linear_attention",
        name=name,
        package="fla",
        kernels=(STATES,),
        launches=5,
        prepare=_fla.chunked(own_choice=own_choice),
        loads=partial(load_all, _fla.MODULES, own_choice=own_choice),
        passes=TRAINING_PASSES,
        gates=CHUNKED,
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
    "linear_attention",
    name="fla_recurrent",
    package="fla",
    kernels=("fused_recurrent",),
    launches=1,
    prepare=_fla.recurrent,
    modules=_fla.MODULES,
    gates=(*CHUNKED, "value", "both"),
)
def fla_recurrent(form: str, *operands: Any) -> Any:
    """flash-linear-attention's fused recurrent kernels, one step after another; also one token."""
    return _fla.call_recurrent(form, *operands)


@peer(
    "linear_attention",
    name="mamba_ssd",
    package="mamba_ssm",
    modules=("mamba_ssm.ops.triton.ssd_combined",),
    kernels=("chunk_state_fwd_kernel",),
    launches=5,
    prepare=mamba.ssd,
    passes=TRAINING_PASSES,
    gates=("none", "const", "scalar"),
    deterministic=False,
)
def mamba_ssd(*operands: Any) -> Any:
    """mamba-ssm's mamba_chunk_scan_combined, the chunk kernels of Mamba-2."""
    return mamba.call_ssd(*operands)


@peer(
    "linear_attention",
    name="mlstm_kernels",
    package="mlstm_kernels",
    modules=("mlstm_kernels.torch.chunkwise",),
    kernels=("mlstm_siging_chunkwise",),
    launches=3,
    prepare=mlstm.siging,
    passes=TRAINING_PASSES,
    gates=("scalar",),
    lengths=mlstm.lengths,
)
def mlstm_kernels(*operands: Any) -> Any:
    """mlstm_kernels' chunk kernels with sigmoid gates, without their normaliser."""
    return mlstm.call_siging(*operands)
