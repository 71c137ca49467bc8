"""The arguments of a call as other people's kernels take them: of one dtype, gates of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from ..._peer import REAL, KeysAndValues, refuse_double
from ...scan.common import bounds_on_device, check_heads, differentiates, shared_heads, taking
from .. import check, gate_kind

HALF = ("bfloat16", "float16")


@dataclass(slots=True)
class Arguments(KeysAndValues):
    """The arguments of one call, which `delta_rule` describes."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None
    log_a: Tensor | None = None
    initial_state: Tensor | None = None
    _: KW_ONLY
    p: Tensor | None = None
    r: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """List the operands that are present, without the bounds of sequences."""
        all_ = (self.q, self.k, self.v, self.beta, self.log_a, self.p, self.r, self.initial_state)
        return [each for each in all_ if each is not None]

    @property
    def gates(self) -> str:
        """Name the kind of the gates, one of the recurrence's kinds."""
        return gate_kind({"log_a": self.log_a, "p": self.p})

    @property
    def widths(self) -> tuple[int, int]:
        """(K, V)."""
        return self.k.shape[-1], self.v.shape[-1]

    @property
    def differentiates(self) -> bool:
        """Tell whether a backward pass may follow."""
        return differentiates(*self.tensors)

    def repeat_keys(self) -> None:
        """Repeat the heads of q and k until there are as many as of v."""
        self.q, self.k = shared_heads(self.q, self.k, self.v)

    def values_first_state(self) -> Tensor | None:
        """Like `float_state`, (n, H, V, K)."""
        return None if self.initial_state is None else self.initial_state.mT.float().contiguous()

    def row_bounds(self) -> Tensor:
        """List where the sequences of a row of B·T steps begin, and its end: int32, on the device."""
        if self.cu_seqlens is not None:
            return self.cu_seqlens.int()
        B, T = self.v.shape[:2]
        return T * torch.arange(B + 1, dtype=torch.int32, device=self.v.device)

    def finish_row(self, raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Like `finish`, of o (B·T, H, V) and S_T (n, H, V, K)."""
        return self.finish((raw[0].view(self.v.shape), raw[1].mT))


def preparing(
    make: Callable[[Arguments], Prepared], *, gates: tuple[str, ...], dtypes: tuple[str, ...] = REAL
) -> Callable[..., Prepared]:
    """Give a preparation the recurrence's signature and its checks.

    The result raises Unsupported for other kinds of gates and other dtypes. Packed sequences reach `make`
    with their bounds on the device.
    """

    def prepare(x: Arguments) -> Prepared:
        check(x.q, x.k, x.v, x.beta, x.log_a, x.p, x.r)
        check_heads(x.q, x.k, x.v.shape[2])
        if x.gates not in gates:
            raise Unsupported(f"gates of the kind {x.gates} (it takes {', '.join(gates)})")
        refuse_double(*x.tensors, takes=dtypes)
        dtype = str(x.dtype).removeprefix("torch.")
        if dtype not in dtypes:
            raise Unsupported(f"{dtype} (it takes {', '.join(dtypes)})")
        if x.cu_seqlens is not None:
            state = (x.v.shape[2], *x.widths)
            x.cu_seqlens = bounds_on_device(x.cu_seqlens, x.v, state, x.initial_state)
        return make(x)

    return taking(Arguments, prepare)


def check_widths(x: Arguments, width: int) -> None:
    """Raise Unsupported unless K and V have the one width that a kernel takes."""
    if x.widths != (width, width):
        K, V = x.widths
        raise Unsupported(f"K = {K} and V = {V} (it takes K = V = {width})")


def one_row(x: Tensor) -> Tensor:
    """Join the sequences of a batch: (B, T, ...) to (B·T, ...), contiguous."""
    return x.flatten(0, 1).contiguous()
