"""FlashQLA (flash-qla 0.1.3): one gate per head, K = V = 128, in half precision."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from .arguments import HALF, Arguments, check_widths, preparing

WIDTH = 128
GATES = ("scalar",)


def _gated(x: Arguments) -> Prepared:
    check_widths(x, WIDTH)
    if x.cu_seqlens is not None and (x.cu_seqlens.diff() == 0).any():
        raise Unsupported("empty sequences: it raises ValueError on these, or gives NaN without auto_cp")
    assert x.beta is not None and x.log_a is not None
    gates = x.log_a.float().contiguous()  # it sums them in their own dtype
    data = (x.data(each) for each in (x.q, x.k, x.v))
    return Prepared((*data, gates, x.beta.contiguous(), x.float_state(), x.cu_seqlens), x.finish)


gated = preparing(_gated, gates=GATES, dtypes=HALF)


def call(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None, bounds: Tensor | None
) -> Any:
    """Call chunk_gated_delta_rule without a scale of q; gives (o, S_T)."""
    from flash_qla import chunk_gated_delta_rule

    return chunk_gated_delta_rule(
        q, k, v, g, beta, scale=1.0, initial_state=state, output_final_state=True, cu_seqlens=bounds
    )
