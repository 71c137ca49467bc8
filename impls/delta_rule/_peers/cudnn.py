"""cuDNN's frontend (nvidia-cudnn-frontend 1.32): Kimi Delta Attention's CUDA kernels for Hopper.

They take bfloat16, K = V = 128 and a gate per key channel. A batch is one row of steps, and states are
(n, H, V, K). Its bound on what a piece of a sequence may leave out assumes unit keys and β between 0 and 1,
and cuDNN does not check the values.

The backward pass has the scale 1/√128 and as many heads of k as of v. Where gradients are wanted, q is
multiplied by √128 and rounded once more, and heads of q and k are repeated.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported, UnsupportedValues

from .arguments import Arguments, check_widths, one_row, preparing

WIDTH = 128
GATES = ("key",)
DTYPES = ("bfloat16",)
PLAN = "kda_hopper_cuda"
UNIT = 0.01  # how far from 1 the norm of a key may be; bfloat16 rounds it by 0.004 at most


def _hopper(x: Arguments) -> Prepared:
    check_widths(x, WIDTH)
    assert x.beta is not None and x.log_a is not None
    _load()
    _check_contraction(x.k, x.beta)
    q, scale = x.q, 1.0
    if x.differentiates:
        x.repeat_keys()
        q, scale = x.q.float() * WIDTH**0.5, WIDTH**-0.5
    data = (one_row(x.data(each)) for each in (q, x.k, x.v))
    gates, rates = (one_row(each.float()) for each in (x.log_a, x.beta))
    state = x.values_first_state()
    return Prepared((*data, gates, rates, x.row_bounds(), scale, state), x.finish_row)


hopper = preparing(_hopper, gates=GATES, dtypes=DTYPES)


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    bounds: Tensor,
    scale: float,
    state: Tensor | None,
) -> Any:
    """Call kimi_delta_attention with the plan for Hopper in CUDA; gives (o, S_T).

    Raises:
        Unsupported: cuDNN declines the call, with its reason.
    """
    from cudnn import cudnnGraphNotSupportedError
    from cudnn.linear_attention.ops import kda

    try:
        return kda.kimi_delta_attention(
            q, k, v, g, beta, bounds, scale, initial_state=state, output_final_state=True, plan_name=PLAN
        )
    except (cudnnGraphNotSupportedError, NotImplementedError) as error:
        kda.fprop_cache.clear()  # it keeps the graph, and would run it by another plan next time
        raise Unsupported(str(error)) from error


def _load() -> None:
    """Import the operation.

    Raises:
        Unsupported: the package is older than 1.32 and does not have it.
    """
    try:
        import cudnn.linear_attention.ops.kda  # noqa: F401
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("cudnn."):
            raise
        raise Unsupported("a cudnn-frontend older than 1.32, without linear attention") from error


def _check_contraction(k: Tensor, beta: Tensor) -> None:
    """Raise UnsupportedValues unless keys have norm 1 and β is between 0 and 1."""
    lengths = k.detach().float().norm(dim=-1)
    if ((lengths - 1).abs() > UNIT).any() or ((beta < 0) | (beta > 1)).any():
        raise UnsupportedValues("keys of another norm than 1, or β outside of 0 to 1 (it takes no others)")
