"""flash-linear-attention (fla-core 0.6): its function for each kind of gate, and the limits of each.

Its low-rank term is S ← diag(exp(g)) S + b (aᵀ S): a is our r, b our p. Its write has no β, so k is
multiplied by it, and rounded once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from ..._fla import load, refuse_miscompiled
from .arguments import Arguments, preparing

GATES = ("none", "scalar", "key", "dplr_key")
SHARING = ("scalar", "key")  # forms that take fewer heads of q and k
HALF_ONLY = ("none", "dplr_key")  # forms whose chunk kernels refuse float32, or warn that it may be wrong
WIDEST = 256  # K of the chunk kernels
OPERATIONS = ("delta_rule", "gated_delta_rule", "kda", "generalized_delta_rule")
MODULES = tuple(f"fla.ops.{each}" for each in OPERATIONS)
LEAST_TILE = 16  # contracted length of Triton's products


def chunked(*, own_choice: bool) -> Callable[..., Prepared]:
    """Make the preparation of the chunk kernels.

    own_choice: whether fla may choose other back ends than its Triton kernels.
    """

    def prepare(x: Arguments) -> Prepared:
        K, V = x.widths
        form = x.gates
        if form in HALF_ONLY and x.dtype == torch.float32:
            raise Unsupported(f"float32 with gates of the kind {form} (it takes bfloat16 and float16)")
        if K > WIDEST:
            raise Unsupported(f"K = {K} (it takes K up to {WIDEST})")
        load(own_choice=own_choice)
        if x.differentiates:
            if form == "scalar":
                refuse_miscompiled(tilelang=own_choice)
            if form == "dplr_key" and 2 * V <= LEAST_TILE:
                raise Unsupported(f"V = {V}: its backward pass takes V above {LEAST_TILE // 2}")
        return Prepared((form, *_operands(x)), x.finish)

    return preparing(prepare, gates=GATES)


def call_chunked(form: str, *operands: Any) -> Any:
    """Call the chunk kernels of a form; gives (o, S_T).

    Raises:
        Unsupported: fla hands the call to FlashQLA, which takes no empty sequences.
    """
    if form == "none":
        from fla.ops.delta_rule import chunk_delta_rule

        return _call(chunk_delta_rule, *operands)
    if form == "scalar":
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        try:
            return _call(chunk_gated_delta_rule, *operands)
        except ValueError as error:
            bounds = operands[-1]
            if bounds is None or bounds.diff().all():
                raise
            raise Unsupported(f"empty sequences: {error}") from error
    if form == "key":
        from fla.ops.kda import chunk_kda

        return _call(chunk_kda, *operands)
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule

    return _call(chunk_dplr_delta_rule, *operands)


def _recurrent(x: Arguments) -> Prepared:
    if x.gates != "none" and x.differentiates:
        raise Unsupported(f"gradients with gates of the kind {x.gates}: it has no backward pass of these")
    return Prepared((x.gates, *_operands(x)), x.finish)


recurrent = preparing(_recurrent, gates=GATES)


def call_recurrent(form: str, *operands: Any) -> Any:
    """Call the kernels that go through time step by step; gives (o, S_T)."""
    if form == "none":
        from fla.ops.delta_rule import fused_recurrent_delta_rule

        return _call(fused_recurrent_delta_rule, *operands)
    if form == "scalar":
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

        return _call(fused_recurrent_gated_delta_rule, *operands)
    if form == "key":
        from fla.ops.kda import fused_recurrent_kda

        return _call(fused_recurrent_kda, *operands)
    from fla.ops.generalized_delta_rule import fused_recurrent_dplr_delta_rule

    return _call(fused_recurrent_dplr_delta_rule, *operands)


def _operands(x: Arguments) -> tuple[Tensor | None, ...]:
    """List the operands of `_call`."""
    if x.gates not in SHARING:
        x.repeat_keys()
    keys, rates = x.k, x.beta
    if x.p is not None and rates is not None:
        keys, rates = x.k.float() * rates.float().unsqueeze(-1), None
    optional = (None if each is None else each.contiguous() for each in (rates, x.log_a))
    low_rank = (None if each is None else x.data(each) for each in (x.r, x.p))
    return x.data(x.q), x.data(keys), x.data(x.v), *optional, *low_rank, x.float_state(), x.bounds()


def _call(
    function: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor | None,
    bounds: Tensor | None,
) -> Any:
    """Call a function of fla with the operands that it has. None of them scales q."""
    gates = {"gk" if a is not None else "g": gate, "beta": beta, "a": a, "b": b}
    present = {name: each for name, each in gates.items() if each is not None}
    return function(
        q, k, v, **present, scale=1.0, initial_state=state, output_final_state=True, cu_seqlens=bounds
    )
