"""A whole network as the subject of a judgement: log-probabilities as a function of all parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ssmperf import Case
from ssmperf.authoring import steps
from ssmperf.suitekit import Values, length_of, registry

from .text import Batch
from .trainee import Trainee, log_probabilities


class _Captured(Exception):
    """The operands of the recurrence's first call are known."""


@dataclass(frozen=True)
class NetworkSubject:
    """A network on one batch as `f(**parameters) -> (log-probabilities (B, T, 256), None)`.

    The gradient at the log-probabilities is that of the mean loss: −1/(B·T) at each byte that follows. So the
    gradients of the parameters are those of a training step, and can be compared with it.
    """

    case: Case
    trainee: Trainee
    batch: Batch

    def values(self, number: int = 0, *, with_state: bool = False) -> Values:
        """Give the initial parameters by name, and the gradient at the log-probabilities."""
        operands = dict(zip(self.trainee.names, (each.clone() for each in self.trainee.initial), strict=True))
        targets = self.batch.targets
        like = self.trainee.initial[0]
        size = (*targets.shape, self.trainee.network.head.out_features)
        grad_output = like.new_zeros(size).scatter_(-1, targets.unsqueeze(-1), -1 / targets.numel())
        return Values(operands, grad_output, None)

    def function(self, compute: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
        """Make the network around `compute`; called with `inner=True`, it computes only the recurrence.

        dtype: that of the network's own parameters, which is the case's.
        """
        network, tokens, places = self.trainee.network, self.batch.tokens, self.trainee.places

        def run(*, inner: bool = False, **operands: Any) -> tuple[Tensor, None]:
            if inner:
                output, _ = compute(**operands)
                return output, None
            given = {place: operands[name] for place, name in places.items() if name in operands}
            # ties are given, since torch would not undo them in a module that several layers share
            logits, _ = functional_call(network, given, (tokens,), {"backend": compute}, tie_weights=False)
            return log_probabilities(logits), None

        return run

    def residual(self, values: Values) -> Tensor | None:
        return None

    def inner(self, values: Values) -> Values | None:
        """Give the operands of the first call of the recurrence, and a random gradient at its output."""
        lowered = self.lower(values.operands)
        operands = {n: v for n, v in lowered.items() if n != "initial_state" or v is not None}
        T = length_of(operands)
        definition = registry.recurrence(self.case.recurrence).definition
        with torch.no_grad():
            output, _ = definition(**steps(operands, 0, 1, T))
        generator = torch.Generator(output.device).manual_seed(29)
        size = (self.batch.tokens.shape[0], T, *output.shape[2:])
        grad_output = torch.randn(size, dtype=output.dtype, device=output.device, generator=generator)
        return Values(operands, grad_output, None)

    def count_calls(self, compute: Callable[..., Any]) -> int:
        """Count how often a forward pass calls its recurrence: at least once per layer."""
        calls = 0

        def counted(**operands: Any) -> Any:
            nonlocal calls
            calls += 1
            return compute(**operands)

        with torch.no_grad():
            self.function(counted, self.trainee.initial[0].dtype)(**self.values().operands)
        return calls

    def lower(self, operands: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give the operands that the recurrence gets in its first call."""
        captured: dict[str, Any] = {}

        def capture(**lowered: Any) -> Any:
            captured.update(lowered)
            raise _Captured

        with torch.no_grad(), contextlib.suppress(_Captured):
            self.function(capture, self.trainee.initial[0].dtype)(**operands)
        return captured
