"""flash-linear-attention (fla-core 0.6): its function for each kind of gate, and the limits of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from ..._fla import load, refuse_miscompiled
from ..._peer import without_state_gradient
from ...scan.common import differentiates
from .given import Given, preparing

CHANNELWISE = ("key", "pre")  # forms whose backward pass multiplies tiles of V without padding
MODULES = tuple(f"fla.ops.{each}" for each in ("gla", "rwkv6", "linear_attn", "simple_gla"))
LEAST_TILE = 16  # contracted length of Triton's products


def chunked(*, own_choice: bool) -> Callable[..., Prepared]:
    """Make the preparation of the chunk kernels.

    own_choice: whether fla may choose other back ends than its Triton kernels.
    """

    def prepare(x: Given) -> Prepared:
        if x.log_b is not None:
            raise Unsupported("value gates (fla_recurrent takes them)")
        form, gate = _form(x)
        load(own_choice=own_choice)
        if x.differentiates:
            _check_backward(x, form, own_choice=own_choice)
        return Prepared((form, *_data(x), gate, _bonus(x), x.float_state(), x.bounds()), x.finish)

    return preparing(prepare, packs=True)


def call_chunked(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    bonus: Tensor | None,
    state: Tensor | None,
    bounds: Tensor | None,
) -> Any:
    """Call the chunk kernels of a form; gives (o, S_T). None of the forms scales q."""
    options = {"scale": 1.0, "initial_state": state, "output_final_state": True, "cu_seqlens": bounds}
    if form == "key":
        from fla.ops.gla import chunk_gla

        return chunk_gla(q, k, v, gate, **options)
    if form == "pre":
        from fla.ops.rwkv6 import chunk_rwkv6

        return chunk_rwkv6(q, k, v, gate, bonus, **options)
    if form == "none":
        from fla.ops.linear_attn import chunk_linear_attn

        return chunk_linear_attn(q, k, v, normalize=False, **options)
    from fla.ops.simple_gla import chunk_simple_gla

    return chunk_simple_gla(q, k, v, **{"g" if form == "scalar" else "g_gamma": gate}, **options)


def _recurrent(x: Given) -> Prepared:
    form, gate = _form(x)
    if x.log_b is not None and x.pre:
        raise Unsupported("value gates where S_{t-1} is read")
    value_gate = None
    if x.log_b is not None:
        form, gate = "both", None if x.log_a is None else x.key_gates()
        value_gate = x.log_b.contiguous()

    def finish(raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        output, state = x.finish(raw)
        return output, without_state_gradient(state) if x.pre else state  # its backward pass has no dS_T

    native = (form, *_data(x), gate, value_gate, _bonus(x), x.float_state(), x.bounds())
    return Prepared(native, finish)


recurrent = preparing(_recurrent, packs=True)


def call_recurrent(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate: Tensor | None,
    value_gate: Tensor | None,
    bonus: Tensor | None,
    state: Tensor | None,
    bounds: Tensor | None,
) -> Any:
    """Call the kernels that go through time step by step; gives (o, S_T)."""
    options = {"scale": 1.0, "initial_state": state, "output_final_state": True, "cu_seqlens": bounds}
    if form in ("key", "both"):
        from fla.ops.gla import fused_recurrent_gla

        return fused_recurrent_gla(q, k, v, gk=gate, gv=value_gate, **options)
    if form == "pre":
        from fla.ops.rwkv6 import fused_recurrent_rwkv6

        return fused_recurrent_rwkv6(q, k, v, gate, bonus, **options)
    if form == "none":
        from fla.ops.linear_attn import fused_recurrent_linear_attn

        return fused_recurrent_linear_attn(q, k, v, normalize=False, **options)
    from fla.ops.simple_gla import fused_recurrent_simple_gla

    return fused_recurrent_simple_gla(q, k, v, **{"g" if form == "scalar" else "g_gamma": gate}, **options)


def _form(x: Given) -> tuple[str, Tensor | None]:
    """Choose the form of a call, and the key gate that it takes."""
    if x.pre:
        return "pre", x.key_gates()
    if x.log_a is None:
        return "none", None
    if x.gate == "const":
        if differentiates(x.log_a):
            raise Unsupported("a gradient of gates that are constant in time: its g_gamma gets none")
        return "const", x.log_a.float().contiguous()
    return x.gate, x.log_a.contiguous() if x.gate == "scalar" else x.key_gates()


def _check_backward(x: Given, form: str, *, own_choice: bool) -> None:
    """Raise Unsupported where the backward pass of a form refuses, or cannot be compiled."""
    K, V = x.shape[-1], x.v.shape[-1]
    if form in CHANNELWISE:
        if 2 * V <= LEAST_TILE:
            raise Unsupported(f"V = {V}: its backward pass takes V above {LEAST_TILE // 2}")
        return
    if x.half and (K % 2 or V % 2):
        raise Unsupported(f"K = {K} and V = {V}: in half precision, its backward pass takes even widths")
    if form == "scalar":
        refuse_miscompiled(tilelang=own_choice and x.dtype == torch.float32)


def _data(x: Given) -> tuple[Tensor, Tensor, Tensor]:
    return x.data(x.q), x.data(x.k), x.data(x.v)


def _bonus(x: Given) -> Tensor | None:
    """Get the bonus of a form that reads S_{t-1}: zeros where there is none."""
    if not x.pre:
        return None
    if x.bonus is None:
        return x.q.new_zeros(x.shape[2:], dtype=torch.float32)
    return x.bonus.contiguous()
