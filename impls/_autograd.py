"""Refuse second derivatives by name, where a backward pass cannot be differentiated again.

`torch.autograd.function.once_differentiable` refuses only where the incoming gradients have a graph. Under a
loss that is linear in the results they have none, and second derivatives silently lack the backend's part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from ssmperf.authoring import Unsupported, registry

Gradients = Tensor | tuple[Tensor | None, ...]
Backward = Callable[..., Any]

_refusing: set[str] = set()  # recurrence/backend


def once_differentiable(name: str) -> Callable[[Backward], Backward]:
    """Let a backward pass be computed under create_graph=True, and refuse to differentiate it again.

    A node that raises Unsupported connects the gradients with the saved tensors and the incoming gradients.
    So the function must save every operand that its gradients depend on, or an output, which leads to all
    operands (see `tie`).

    name: recurrence/backend, for the message.
    """
    _refusing.add(name)

    def decorate(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def once(ctx: Any, *gradients: Any) -> Gradients:
            if not torch.is_grad_enabled():
                found: Gradients = backward(ctx, *gradients)
                return found
            opened = _Unpacked(ctx)
            with torch.no_grad():
                found = backward(opened, *gradients)
            return _connected(name, found, (*opened.saved_tensors, *gradients))

        return once

    return decorate


def tie(output: Tensor, operands: Iterable[Tensor | None], saved: Iterable[Tensor | None]) -> Tensor | None:
    """Return an output to save with the others if an operand is saved in another form only, or not at all."""
    kept = {id(each) for each in saved}
    return None if all(each is None or id(each) in kept for each in operands) else output


class _Unpacked:
    """A function's context whose tensors are unpacked once: some hooks refuse to do that again."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def _connected(name: str, found: Gradients, sources: Iterable[Tensor | None]) -> Gradients:
    sources = [each for each in sources if each is not None and each.requires_grad]
    if not sources:
        return found
    gradients = (found,) if isinstance(found, Tensor) else found
    given = [each for each in gradients if each is not None]
    connected = iter(_Refused.apply(name, len(given), *given, *sources))  # type: ignore[no-untyped-call]
    return tuple(None if each is None else next(connected) for each in gradients)


class _Refused(torch.autograd.Function):
    """Gradients, and the tensors on which they depend → the gradients, with a graph that cannot be used."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(each.detach() for each in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise Unsupported(
            f"{ctx.name}: its backward pass cannot be differentiated again: use one of "
            f"{', '.join(_twice_differentiable(ctx.name.partition('/')[0]))} (second derivatives)"
        )


def _twice_differentiable(recurrence: str) -> list[str]:
    """List this package's equivalent backends whose backward pass can be differentiated."""
    own = [
        each.name
        for each in registry.backends(recurrence)
        if each.equivalent and not registry.foreign("backend", f"{recurrence}/{each.name}")
    ]
    return [name for name in own if f"{recurrence}/{name}" not in _refusing]
