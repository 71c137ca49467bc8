"""The operands of a call as other people's kernels take them: real, of one dtype, gates of one kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ssmperf.authoring import Prepared, Unsupported

from ..._peer import KeysAndValues, refuse_double
from ...scan.common import bounds_on_device, differentiates, shared_heads, taking
from .. import gate_factors
from .._signature import Arguments, check_read


@dataclass(slots=True)
class Given(KeysAndValues, Arguments):
    """The arguments of a call, none complex or in double precision, with as many key heads as value heads."""

    @property
    def pre(self) -> bool:
        """Tell whether S_{t-1} is read, not S_t."""
        return self.read == "pre"

    @property
    def shape(self) -> torch.Size:
        """(B, T, H, K)."""
        return self.q.shape

    @property
    def gate(self) -> str:
        """Name the kind of the key gate: `none`, `const` (H,), `scalar` (B, T, H), else `key`."""
        if self.log_a is None:
            return "none"
        return {1: "const", 3: "scalar"}.get(self.log_a.dim(), "key")

    @property
    def half(self) -> bool:
        return self.dtype.itemsize == 2

    @property
    def differentiates(self) -> bool:
        """Tell whether a backward pass may follow."""
        return differentiates(self.q, self.k, self.v, self.log_a, self.log_b, self.initial_state, self.bonus)

    def key_gates(self) -> Tensor:
        """Expand the key gates to all steps and channels, (B, T, H, K), contiguous."""
        B, T, H, K = self.shape
        if self.log_a is None:
            return self.q.new_zeros(B, T, H, K, dtype=torch.float32)
        return gate_factors(self.log_a, H, K).expand(B, T, H, K).contiguous()


def preparing(make: Callable[[Given], Prepared], *, packs: bool = False) -> Callable[..., Prepared]:
    """Give a preparation from real operands the recurrence's signature.

    The result raises Unsupported for complex gates or operands and for double precision.

    packs: whether the package takes packed sequences. They reach `make` with their bounds on the device.
    """

    def prepare(x: Given) -> Prepared:
        check_read(x.read, x.bonus)
        if x.cu_seqlens is not None:
            if not packs:
                raise Unsupported("packed sequences")
            state = (x.v.shape[2], x.q.shape[-1], x.v.shape[-1])
            x.cu_seqlens = bounds_on_device(x.cu_seqlens, x.v, state, x.initial_state)
        x.q, x.k = shared_heads(x.q, x.k, x.v)
        present = [
            each for each in (x.q, x.k, x.v, x.log_a, x.log_b, x.initial_state, x.bonus) if each is not None
        ]
        if x.phase is not None or any(each.is_complex() for each in present):
            raise Unsupported("complex gates or operands")
        refuse_double(*present)
        return make(x)

    return taking(Given, prepare)
