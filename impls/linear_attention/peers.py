"""Other people's kernels for linear attention, as optional backends: fla, mamba-ssm's SSD and mlstm_kernels.

Which function a call reaches, and what it refuses, is in `_peers/`. The names of the kernels that ran are in
the record of a timed case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ssmperf import TRAINING_PASSES, backend

from ._peers import fla as _fla
from ._peers import mamba, mlstm
from ._peers.given import REAL

Function = TypeVar("Function", bound=Callable[..., Any])

CHUNKED = ("none", "const", "scalar", "key")
STATES = "chunk_fwd_kernel_h"  # of fla: all of its chunk kernels launch it, in every pass


def chunked(name: str, *, own_choice: bool) -> Callable[[Function], Function]:
    """Register a function with fla's chunk kernels. own_choice: whether fla chooses its back ends."""
    return backend(
        "linear_attention",
        name=name,
        prepare=_fla.chunked(own_choice=own_choice),
        devices=("cuda",),
        dtypes=REAL,
        passes=TRAINING_PASSES,
        gates=CHUNKED,
        needs=("fla",),
        kernels=(STATES,),
        launches=lambda shape: 5,
    )


@chunked("fla", own_choice=True)
def fla(form: str, *operands: Any) -> Any:
    """flash-linear-attention's chunk kernels, with the back ends that it chooses itself."""
    return _fla.call_chunked(form, *operands)


@chunked("fla_triton", own_choice=False)
def fla_triton(form: str, *operands: Any) -> Any:
    """flash-linear-attention's chunk kernels in Triton, with its choice of back ends switched off."""
    return _fla.call_chunked(form, *operands)


@backend(
    "linear_attention",
    name="fla_recurrent",
    prepare=_fla.recurrent,
    devices=("cuda",),
    dtypes=REAL,
    gates=(*CHUNKED, "value", "both"),
    needs=("fla",),
    kernels=("fused_recurrent",),
    launches=lambda shape: 1,
)
def fla_recurrent(form: str, *operands: Any) -> Any:
    """flash-linear-attention's fused recurrent kernels, one step after another; also one token."""
    return _fla.call_recurrent(form, *operands)


@backend(
    "linear_attention",
    name="mamba_ssd",
    prepare=mamba.ssd,
    devices=("cuda",),
    dtypes=REAL,
    passes=TRAINING_PASSES,
    gates=("none", "const", "scalar"),
    needs=("mamba_ssm",),
    kernels=("chunk_state_fwd_kernel",),
    deterministic=False,
    launches=lambda shape: 5,
)
def mamba_ssd(*operands: Any) -> Any:
    """mamba-ssm's mamba_chunk_scan_combined, the chunk kernels of Mamba-2."""
    return mamba.call_ssd(*operands)


@backend(
    "linear_attention",
    name="mlstm_kernels",
    prepare=mlstm.siging,
    devices=("cuda",),
    dtypes=REAL,
    passes=TRAINING_PASSES,
    gates=("scalar",),
    lengths=mlstm.lengths,
    needs=("mlstm_kernels",),
    kernels=("mlstm_siging_chunkwise",),
    launches=lambda shape: 3,
)
def mlstm_kernels(*operands: Any) -> Any:
    """mlstm_kernels' chunk kernels with sigmoid gates, without their normaliser."""
    return mlstm.call_siging(*operands)
