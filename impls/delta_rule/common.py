"""Code shared by the delta_rule backends: operands in working precision, dense transitions, reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ssmperf.authoring import Shape

from .._autocast import without_autocast
from .._triton.plan import packed
from ..scan.common import named_after, one_by_one, over_time, shared_heads
from . import check, gate_factors


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands in working precision (float32 or wider).

    q, k: (B, T, H, K). v: (B, T, H, V). beta: (B, T, H, 1). log_a: (B|1, T|1, H, K|1) or None.
    p, r: (B, T, H, K), both or neither. state: S_0 (B, H, K, V).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_a: Tensor | None
    p: Tensor | None
    r: Tensor | None
    state: Tensor

    @property
    def T(self) -> int:
        return self.v.shape[1]

    @property
    def alpha(self) -> Tensor | None:
        """Gates (B|1, T, H, K|1)."""
        if self.log_a is None:
            return None
        return over_time(torch.exp(self.log_a), self.T)


# -> o (B, T, H, V) and S_T, both in working precision
Method = Callable[[Operands], tuple[Tensor, Tensor]]


def as_backend(method: Method) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give a method the recurrence's signature and results."""

    def backend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None,
        log_a: Tensor | None = None,
        initial_state: Tensor | None = None,
        *,
        p: Tensor | None = None,
        r: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        check(q, k, v, beta, log_a, p, r)
        if cu_seqlens is not None:
            packed = {"q": q, "k": k, "v": v, "beta": beta, "log_a": log_a, "p": p, "r": r}
            return one_by_one(backend, cu_seqlens, packed, initial_state)
        B, T, H, V = v.shape
        wide = torch.float32
        for operand in (q, k, v, beta, log_a, p, r):
            if operand is not None:
                wide = torch.promote_types(wide, operand.dtype)
        values = v.to(wide)
        if initial_state is None:
            initial_state = values.new_zeros(B, H, q.shape[-1], V)
        q, k = shared_heads(q.to(wide), k.to(wide), values)  # repeated last: a view stays one
        x = Operands(
            q=q,
            k=k,
            v=values,
            beta=values.new_ones(B, T, H, 1) if beta is None else beta.to(wide).unsqueeze(-1),
            log_a=None if log_a is None else gate_factors(log_a.to(wide)),
            p=None if p is None else p.to(wide),
            r=None if r is None else r.to(wide),
            state=initial_state.to(wide),
        )
        output, final = method(x)
        return output.to(v.dtype), final

    return without_autocast(named_after(method, backend))


class Maps(NamedTuple):
    """The affine maps S ↦ (diag(decay) + correction) S + write of some steps.

    decay: (B, T, H, K, 1). correction: (B, T, H, K, K). write: (B, T, H, K, V).

    The two parts of a transition are never added up: a float32 entry 1 − β k_i² keeps of β k_i² what is above
    6·10⁻⁸. Where nothing is forgotten, and texts repeat their keys, that error is the same at each step and
    grows with T, to 10⁻⁴ of the state at 4,099 steps of `deltanet`. The exception are parts that cancel, see
    `folded`.
    """

    decay: Tensor
    correction: Tensor
    write: Tensor

    def at(self, steps: slice) -> Maps:
        """Take the maps of some steps."""
        return Maps(*(x[:, steps] for x in self))


def maps_of(x: Operands) -> Maps:
    """Write each step as an affine map."""
    alpha = x.q.new_ones(1, 1, 1, 1) if x.alpha is None else x.alpha
    write = (x.beta * x.k).unsqueeze(-1) * x.v.unsqueeze(-2)
    left, right = (-x.beta * x.k, alpha * x.k) if x.p is None or x.r is None else (x.p, x.r)
    return folded(
        Maps(alpha.expand(x.k.shape).unsqueeze(-1), left.unsqueeze(-1) * right.unsqueeze(-2), write)
    )


def folded(maps: Maps) -> Maps:
    """Add up the two parts of a transition where they cancel: where their sum is below half of the decay.

    The parts of what forgets nearly all are nearly opposite, and their rounding is that of the parts. The
    product of 1 − β_t of 16 steps may be 10⁻⁵, and the parts of it would have two digits left.
    """
    K = maps.correction.shape[-1]
    whole = maps.correction + maps.decay * torch.eye(K, dtype=maps.decay.dtype, device=maps.decay.device)
    sizes, decays = (x.detach().abs().amax((-2, -1), keepdim=True) for x in (whole, maps.decay))
    cancel = sizes < decays / 2
    decay, correction = torch.where(cancel, 0.0, maps.decay), torch.where(cancel, whole, maps.correction)
    return maps._replace(decay=decay, correction=correction)


def applied(maps: Maps, states: Tensor) -> Tensor:
    """Apply each map to a state (B, T, H, K, V)."""
    return torch.addcmul(maps.correction @ states + maps.write, maps.decay, states)


def composed(left: Maps, right: Maps) -> Maps:
    """Compose maps in pairs, `left` first."""
    both = torch.addcmul(right.correction @ left.correction, right.decay, left.correction)
    correction = torch.addcmul(both, right.correction, left.decay.mT)
    return folded(Maps(right.decay * left.decay, correction, applied(right, left.write)))


def read_out(q: Tensor, states: Tensor) -> Tensor:
    """Read o_t = S_tᵀ q_t at all steps: (B, T, H, K) and (B, T, H, K, V) to (B, T, H, V)."""
    return (q.unsqueeze(-2) @ states).squeeze(-2)


def element_bytes(shape: Shape, itemsize: int) -> float:
    """Count the bytes of the dense affine maps of all steps, K·(K + V) numbers each."""
    K, V = shape["K"], shape["V"]
    return shape["B"] * shape["T"] * shape["H"] * K * (K + V) * max(4, itemsize)


def per_step(x: Tensor, sizes: torch.Size, dtype: torch.dtype) -> Tensor:
    """A rate or a gate as contiguous numbers (B, T, H) of a dtype: itself where it is that."""
    if x.dtype != dtype:
        x = x.to(dtype)
    if x.shape != sizes:
        x = x.expand(sizes)
    return packed(x)


def shared_sum(x: Tensor, heads: int) -> Tensor:
    """Add up the gradients (B, T, H, K) of the heads that share a key head."""
    return x if x.shape[2] == heads else x.unflatten(2, (heads, -1)).sum(3)
