"""Declarations and refusals that all backends around other packages' kernels share."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, backend

F = TypeVar("F", bound=Callable[..., Any])

REAL = ("float32", "bfloat16", "float16")


class KeysAndValues:
    """Arguments with q, k, v (B, T, H, ...) and a state (n, H, K, V), as other people's kernels take them."""

    __slots__ = ()

    q: Tensor
    k: Tensor
    v: Tensor
    initial_state: Tensor | None
    cu_seqlens: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """Find the narrowest dtype that holds q, k and v."""
        return torch.promote_types(torch.promote_types(self.q.dtype, self.k.dtype), self.v.dtype)

    def data(self, x: Tensor) -> Tensor:
        """Cast to the common dtype of q, k and v, contiguous."""
        return x.to(self.dtype).contiguous()

    def float_state(self) -> Tensor | None:
        """Cast the initial state to float32, contiguous."""
        return None if self.initial_state is None else self.initial_state.float().contiguous()

    def bounds(self) -> Tensor | None:
        """Give the bounds of packed sequences as 64-bit integers."""
        return None if self.cu_seqlens is None else self.cu_seqlens.long()

    def finish(self, raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Cast o (B, T, H, V) to the dtype of v, and S_T to float32."""
        return raw[0].to(self.v.dtype), raw[1].float()


def peer(
    of: str,
    *,
    package: str,
    launches: int,
    dtypes: tuple[str, ...] = REAL,
    modules: tuple[str, ...] = (),
    **declarations: Any,
) -> Callable[[F], F]:
    """Register the decorated native call of a package, which needs a GPU, as a backend of a recurrence.

    launches: device launches of a forward call, whatever its shape. modules: those of the package that a call
        imports, if not the package itself.
    declarations: `name`, `prepare`, `kernels` and others of `ssmperf.Backend`.
    """
    loads = declarations.pop("loads", partial(import_all, modules or (package,)))
    registered: Callable[[Callable[..., Any]], Any] = backend(
        of,
        devices=("cuda",),
        dtypes=dtypes,
        needs=(package,),
        launches=lambda shape: launches,
        loads=with_own_excepthook(loads),
        **declarations,
    )

    def register(native: F) -> F:
        registered(with_own_excepthook(native))
        return native

    return register


def import_all(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)


def with_own_excepthook(native: F) -> F:
    """Keep `sys.excepthook` as it is: TVM, which some packages import at their first call, replaces it."""

    @functools.wraps(native)
    def call(*operands: Any) -> Any:
        before = sys.excepthook
        try:
            return native(*operands)
        finally:
            sys.excepthook = before

    return cast(F, call)


def refuse_double(*operands: Tensor | None, takes: tuple[str, ...] = REAL) -> None:
    """Raise Unsupported if an operand is in double precision, real or complex."""
    if any(each is not None and each.dtype.to_real() == torch.float64 for each in operands):
        raise Unsupported(f"double precision (it takes {', '.join(takes)})")


def without_state_gradient(state: Tensor) -> Tensor:
    """Return a final state that refuses any gradient but zeros, with Unsupported."""
    if state.requires_grad:
        state.register_hook(refuse_state_gradient)
    return state


def refuse_state_gradient(grad: Tensor | None) -> None:
    """Raise Unsupported for a gradient at the final state other than zeros."""
    if grad is not None and grad.any():
        raise Unsupported("a gradient at the final state")
