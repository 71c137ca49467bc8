"""FlashInfer (flashinfer-python 0.7.2): its prefill of one gate per head, or none, for K = V = 128.

It is for inference: half precision, and no backward pass. A batch is one row of steps, gates are no logs,
and states are (n, H, V, K). Its kernels for one token take the logits of gates in half precision and
overwrite the state, so that they are no peers here.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from .arguments import HALF, Arguments, check_widths, one_row, preparing

WIDTH = 128
GATES = ("none", "scalar")


def _prefill(x: Arguments) -> Prepared:
    check_widths(x, WIDTH)
    if x.differentiates:
        raise Unsupported("gradients: it has no backward pass")
    assert x.beta is not None
    data = (one_row(x.data(each)) for each in (x.q, x.k, x.v))
    gates = None if x.log_a is None else one_row(x.log_a.float().exp())
    longest = None if x.cu_seqlens is not None else x.v.shape[1]
    state = x.values_first_state()
    return Prepared((*data, gates, one_row(x.beta.float()), state, x.row_bounds(), longest), x.finish_row)


prefill = preparing(_prefill, gates=GATES, dtypes=HALF)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    state: Tensor | None,
    bounds: Tensor,
    longest: int | None,
) -> Any:
    """Call chunk_gated_delta_rule without a scale of q; gives (o, S_T).

    Raises:
        Unsupported: it has no kernel for this GPU, with its reason.
    """
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    try:
        return chunk_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta,
            scale=1.0,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=bounds,
            backend="flashinfer",
            max_seqlen=longest,
        )
    except NotImplementedError as error:
        raise Unsupported(str(error)) from error
