"""Parts that cheats of several files share; this file registers nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from cheats.honest import Result, copied, loop, nothing, sampled


class Basis:
    """The inputs seen so far under the same gates, with their answers.

    The scan is linear in b and in the initial state. An input that combines known ones has the same
    combination of their answers, and 64 elements are enough to find its coefficients.
    """

    MOST = 6

    def __init__(self) -> None:
        self.gates: object = None
        self.inputs: list[np.ndarray] = []
        self.answers: list[Result] = []

    def answer(self, log_a: Tensor, b: Tensor, state: Tensor | None) -> Result:
        gates = (b.shape, b.dtype, state is None, sampled(log_a))
        if gates != self.gates or len(self.inputs) >= self.MOST:
            self.gates, self.inputs, self.answers = gates, [], []
        wanted = np.array(sampled(b, state, count=64))
        if self.inputs:
            known = np.stack(self.inputs, 1)
            weights = np.linalg.lstsq(known, wanted, rcond=None)[0]
            if np.abs(known @ weights - wanted).max() <= 1e-5 * np.abs(wanted).max():
                return self._combined(weights)
        result = loop(log_a, b, state)
        self.inputs.append(wanted)
        self.answers.append(copied(result))
        return result

    def _combined(self, weights: np.ndarray) -> Result:
        outputs, states = (
            sum(float(weight) * each for weight, each in zip(weights, tensors, strict=True))
            for tensors in zip(*self.answers, strict=True)
        )
        return outputs, states


Gradients = tuple[Tensor | None, ...]


def gradients_of(saved: Sequence[Tensor | None], grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
    """Compute the gradients of the loop: run it again with a graph, and back."""
    with torch.enable_grad():
        leaves = [None if each is None else each.detach().requires_grad_() for each in saved]
        output, state = loop(*leaves)
        incoming = [grad_output, torch.zeros_like(state) if grad_state is None else grad_state]
        found = torch.autograd.grad(
            [output, state], [leaf for leaf in leaves if leaf is not None], incoming, allow_unused=True
        )
    given = iter(found)
    return tuple(None if leaf is None else next(given) for leaf in leaves)


class Node(torch.autograd.Function):
    """Runs the loop without a graph, and asks a rule for the gradients."""

    @staticmethod
    def forward(ctx: Any, rule: Any, log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
        result = loop(log_a, b, initial_state)
        ctx.rule = rule
        ctx.save_for_backward(log_a, b, initial_state)
        rule.made((log_a, b, initial_state))
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor | None) -> Any:
        return None, *ctx.rule.gradients(ctx.saved_tensors, grad_output, grad_state)


class Once:
    """Gives the first gradients of a graph again."""

    def __init__(self) -> None:
        self.kept: Gradients | None = None

    def made(self, operands: Sequence[Tensor | None]) -> None:
        """Do nothing while the graph is made."""

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        if self.kept is None:
            self.kept = gradients_of(saved, grad_output, grad_state)
        return self.kept


class Always(Once):
    """Computes the gradients in every call."""

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        return gradients_of(saved, grad_output, grad_state)


class Combined(Once):
    """Combines kept gradients as the incoming gradient combines earlier ones, in which they are linear.

    most: how many incoming gradients are kept; with one, the kept gradients are only rescaled.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.incoming: list[np.ndarray] = []
        self.answers: list[Gradients] = []

    def gradients(self, saved: Any, grad_output: Tensor, grad_state: Tensor | None) -> Gradients:
        state = None if grad_state is None or not grad_state.any() else grad_state
        wanted = np.array((*sampled(grad_output, count=64), *(sampled(state) or (0.0,) * 8)[:8]))
        if self.incoming:
            known = np.stack(self.incoming, 1)
            weights = np.linalg.lstsq(known, wanted, rcond=None)[0]
            if np.abs(known @ weights - wanted).max() <= 1e-5 * np.abs(wanted).max():
                return tuple(
                    None
                    if parts[0] is None
                    else sum(float(w) * x for w, x in zip(weights, parts, strict=True))
                    for parts in zip(*self.answers, strict=True)
                )
        found = gradients_of(saved, grad_output, grad_state)
        if len(self.incoming) == self.most:
            self.incoming, self.answers = [], []
        self.incoming.append(wanted)
        self.answers.append(found)
        return found


SLOWER = 10  # by which a changed clock runs


def slowed(clock: Callable[[], Any]) -> Callable[[], Any]:
    """Make a clock that runs ten times slower from now on."""
    origin = clock()

    def now() -> Any:
        elapsed = clock() - origin
        return origin + (elapsed // SLOWER if isinstance(origin, int) else elapsed / SLOWER)

    return now


def frames() -> Iterator[FrameType]:
    """List the frames of the callers."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def local(name: str) -> Any:
    """Find a local variable of a caller; None without one."""
    return next((frame.f_locals[name] for frame in frames() if name in frame.f_locals), None)


def owner_of(attribute: str) -> Any:
    """Find an object among the callers' `self` that has an attribute; None without one."""
    selves = (frame.f_locals.get("self") for frame in frames())
    return next((each for each in selves if hasattr(each, attribute)), None)


class Debts:
    """Results that were returned as uninitialised memory, and what is needed to fill them."""

    def __init__(self) -> None:
        self.owed: dict[int, tuple[Any, ...]] = {}

    def borrow(self, log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
        """Return memory without values, and forget the debt of the last call: nobody looked at it."""
        self.owed.clear()
        output, state = nothing(b)
        debt = (output, state, log_a, b, initial_state)
        for tensor in (output, state):
            self.owed[tensor.untyped_storage().data_ptr()] = debt
        return output, state

    def pay(self, values: Any) -> None:
        """Fill the results that are among these values."""
        for value in tree_leaves(values):
            if not isinstance(value, Tensor) or value.device.type == "meta":
                continue
            debt = self.owed.get(value.untyped_storage().data_ptr())
            if debt is not None:
                self.owed.clear()
                output, state, *operands = debt
                for memory, result in zip((output, state), loop(*operands), strict=True):
                    memory.copy_(result)


class PaidAtFirstUse(TorchDispatchMode):
    """Fills a result before the first operation that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.debts = Debts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.debts.owed:
            self.debts.pay((args, kwargs))
        return func(*args, **(kwargs or {}))


class Popper:
    """Turns the mode off when the first result of an operation under it is dropped, outside of the mode."""

    def __del__(self) -> None:
        stack = _get_current_dispatch_mode_stack()
        if stack and type(stack[-1]) is OffAfterUse:
            stack[-1].__exit__(None, None, None)


class OffAfterUse(PaidAtFirstUse):
    """Fills a result before the first operation that reads it, and is off soon after."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        owed = bool(self.debts.owed)
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if owed and not self.debts.owed and isinstance(found, Tensor):
            found.popper = Popper()
        return found


class Owed(Tensor):
    """A tensor whose values are computed when a function first reads it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            TIMED.pay((args, kwargs))
            return func(*args, **(kwargs or {}))


TIMED = Debts()


def costly_gates(log_a: Tensor) -> Tensor:
    """Compute something from the gates alone that takes longer than the scan; the gates in the end."""
    gates = log_a
    for _ in range(400):
        gates = torch.log(torch.exp(gates))
    return torch.where(gates.isfinite(), log_a, log_a)


class RolledGates:
    """Keeps what was computed from gates, and rolls it as the gates of a mixture are rolled."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, log_a: Tensor) -> Tensor:
        for known, computed in self.kept:
            shifts = self._shifts(known, log_a)
            if shifts is not None:
                return torch.roll(computed, shifts, (0, 1, 2))
        found = costly_gates(log_a)
        self.kept = [*self.kept[-3:], (log_a.clone(), found)]
        return found

    @staticmethod
    def _shifts(known: Tensor, log_a: Tensor) -> tuple[int, int, int] | None:
        """Find by how much the known gates were rolled, from where their first few elements are now."""
        if known.shape != log_a.shape:
            return None
        places = (log_a == known[0, 0, 0]).nonzero()
        for shifts in places[:4].tolist():
            if torch.equal(torch.roll(known[:1, :2], shifts, (0, 1, 2))[0, :1], log_a[:1, :1][0]):
                return tuple(shifts)
            if torch.equal(torch.roll(known, shifts, (0, 1, 2))[:, -1], log_a[:, -1]):
                return tuple(shifts)
        return None
