"""The arguments of a call. Packed sequences and shared key heads, which backends need not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Tensor

from ssmperf.authoring import UsageError

from .._autocast import without_autocast
from ..scan.common import bounds_on_device, check_heads, named_after, one_by_one, shared_heads, taking

Result = tuple[Tensor, Any]  # o, and S_T or None
OPERANDS = ("q", "k", "v", "log_a", "log_b", "phase", "bonus")  # all but the state


@dataclass(slots=True)
class Arguments:
    """The arguments of one call, which `linear_attention` describes."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_a: Tensor | None = None
    log_b: Tensor | None = None
    initial_state: Tensor | None = None
    _: KW_ONLY
    phase: Tensor | None = None
    bonus: Tensor | None = None
    read: str = "post"
    cu_seqlens: Tensor | None = None

    @property
    def complex_operands(self) -> bool:
        """Tell whether q, k or v is complex."""
        return self.q.is_complex() or self.k.is_complex() or self.v.is_complex()


def whole_signature(
    function: Callable[[Arguments], Result], *, shares_heads: bool = False, packs: bool = False
) -> Callable[..., Any]:
    """Give a function of whole sequences packed ones, and keys that heads share.

    shares_heads: whether the function takes fewer key heads itself; otherwise they are repeated.
    packs: whether it takes packed sequences itself; otherwise they run one after another.
    """

    def backend(x: Arguments) -> Result:
        if shares_heads:
            check_heads(x.q, x.k, x.v.shape[2])
        else:
            x.q, x.k = shared_heads(x.q, x.k, x.v)
        if x.cu_seqlens is None:
            return function(x)
        if packs:
            state = (x.v.shape[2], x.k.shape[3], x.v.shape[3])
            x.cu_seqlens = bounds_on_device(x.cu_seqlens, x.v, state, x.initial_state)
            return function(x)
        operands = {name: getattr(x, name) for name in OPERANDS}

        def sequence(**part: Any) -> Result:
            return function(Arguments(**part, read=x.read))

        return one_by_one(sequence, x.cu_seqlens, operands, x.initial_state)

    return without_autocast(taking(Arguments, named_after(function, backend)))


def check_read(read: str, bonus: Tensor | None) -> None:
    """Raise UsageError for an unknown read, or a bonus where the write is read."""
    if read not in ("post", "pre"):
        raise UsageError(f"unknown read {read!r} (valid: post, pre)")
    if bonus is not None and read != "pre":
        raise UsageError("bonus needs read='pre'")
