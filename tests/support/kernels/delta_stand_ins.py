"""Stand-ins for other packages' kernels of the delta rule.

They have the signatures of fla-core 0.6.0, flash-qla 0.1.3, nvidia-cudnn-frontend 1.32.0 and
flashinfer-python 0.7.2, and compute in double precision what these document. Those of kernels without a
backward pass give no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

RESULT = tuple[Tensor, Tensor]


def walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor | None = None,
    g: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    state: Tensor | None = None,
    bounds: Tensor | None = None,
) -> RESULT:
    """Compute S = exp(g) S, then S += β k (v − Sᵀ k)ᵀ and o = Sᵀ q.

    With a and b: S = exp(g) S + b (aᵀ S) + k vᵀ.
    """
    times = v.shape[2] // q.shape[2]
    each = [q.repeat_interleave(times, 2), k.repeat_interleave(times, 2), v, beta, g, a, b]
    if bounds is None:
        return _walk(*each, state)
    starts = [None] * (len(bounds) - 1) if state is None else state.split(1)
    parts = [
        _walk(*(None if x is None else x[:, first:end] for x in each), start)
        for start, (first, end) in zip(starts, pairwise(bounds.tolist()), strict=True)
    ]
    return torch.cat([output for output, _ in parts], 1), torch.cat([last for _, last in parts])


def _walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    g: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    state: Tensor | None,
) -> RESULT:
    B, T, H, V = v.shape
    S = torch.zeros(B, H, k.shape[-1], V).double() if state is None else state.double()
    outputs = [v.double()[:, :0]]
    for t in range(T):
        q_t, k_t, v_t = (x[:, t].double() for x in (q, k, v))
        gated = S if g is None else S * g[:, t].double().exp().view(B, H, -1, 1)
        if a is not None and b is not None:
            gated = gated + torch.einsum("bhk,bhl,bhlv->bhkv", b[:, t].double(), a[:, t].double(), S)
        else:
            assert beta is not None
            recalled = torch.einsum("bhkv,bhk->bhv", gated, k_t)
            v_t = beta[:, t].double().unsqueeze(-1) * (v_t - recalled)
        S = gated + torch.einsum("bhk,bhv->bhkv", k_t, v_t)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q_t).unsqueeze(1))
    return torch.cat(outputs, 1).to(v.dtype), S.float()


def step(shares: bool, half: bool, backward: bool, gates: int, *, gate: str = "g") -> Callable[..., RESULT]:
    """Make a stand-in for a function of fla or FlashQLA.

    shares: whether it takes fewer heads of q and k. half: whether it refuses float32. gates: the axes of its
        gate, 0 without one. gate: the name of its gate.
    """

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *between: Tensor,
        scale: float,
        initial_state: Tensor | None,
        output_final_state: bool,
        cu_seqlens: Tensor | None,
        **named: Tensor,
    ) -> RESULT:
        named |= dict(zip(("g", "beta"), between, strict=False))
        assert isinstance(scale, float) and scale == 1.0 and output_final_state
        assert q.dtype == k.dtype == v.dtype and not (half and q.dtype == torch.float32)
        assert q.shape == k.shape and (shares or q.shape[2] == v.shape[2])
        assert all(each.is_contiguous() for each in (q, k, v, *named.values()))
        assert initial_state is None or initial_state.dtype == torch.float32
        g = named.pop(gate, None)
        assert (0 if g is None else g.dim()) == gates
        with torch.set_grad_enabled(backward and torch.is_grad_enabled()):
            return walk(q, k, v, g=g, state=initial_state, bounds=cu_seqlens, **named)

    return call


class Declined(Exception):
    """cudnn.cudnnGraphNotSupportedError."""


def kimi_delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    scale: float,
    *,
    initial_state: Tensor | None,
    output_final_state: bool,
    plan_name: str,
) -> RESULT:
    """cudnn.linear_attention.ops: one row of steps, states (n, H, V, K); its backward has 1/√128 alone."""
    if torch.is_grad_enabled():
        assert scale == 128**-0.5 and q.shape[1] == v.shape[1]
    assert plan_name == "kda_hopper_cuda" and output_final_state and cu_seqlens.dtype == torch.int32
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16 and g.dtype == beta.dtype == torch.float32
    if v.shape[0] == 5:
        raise Declined("no plan for 5 steps")
    return by_rows(q.double() * scale, k, v, g, beta, initial_state, cu_seqlens)


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    scale: float,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor,
    backend: str,
    max_seqlen: int | None,
) -> RESULT:
    """flashinfer.gdn_prefill: gates are no logs, and there is no backward pass."""
    assert scale == 1.0 and output_final_state and backend == "flashinfer" and beta is not None
    assert all(each is None or each.dtype == torch.float32 for each in (g, beta, initial_state))
    longest = int(cu_seqlens.diff().max())
    assert max_seqlen is None or max_seqlen == longest
    if v.shape[0] == 5:
        raise NotImplementedError("no kernel for 5 steps")
    with torch.no_grad():
        return by_rows(q, k, v, None if g is None else g.log(), beta, initial_state, cu_seqlens)


def by_rows(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, *state: Tensor | None) -> RESULT:
    """Walk over one row of steps (T, H, ·), with states (n, H, V, K)."""
    assert all(each is None or each.is_contiguous() for each in (k, v, g, beta, *state))
    initial, bounds = state
    row = (None if each is None else each.unsqueeze(0) for each in (g, beta))
    gates, rates = row
    initial = None if initial is None else initial.mT
    data = (each.unsqueeze(0) for each in (q, k, v))
    output, last = walk(*data, g=gates, beta=rates, state=initial, bounds=bounds)
    return output.squeeze(0), last.mT.contiguous()
