"""Backends that are right until they are timed.

The calls that judging, memory and preparation make before differ in number by recurrence and pass. So a test
counts the timed ones here.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssmperf.engine.measure.answers import Projection

TIMED = {"calls": 0}  # how many timed calls began

Planted = Callable[[Callable[..., Any]], Callable[..., Any]]


def with_signature(like: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(like)(function)


def stale_at_times(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Return the last result again in two of five calls, from the second timed one on."""
    kept: dict[str, Any] = {"calls": 0}

    def compute(**operands: Any) -> Any:
        kept["calls"] += TIMED["calls"] > 0
        if kept["calls"] % 5 not in (2, 4):
            kept["result"] = definition(**operands)
        return tuple(x.clone() for x in kept["result"])

    return with_signature(definition, compute)


def filled_at_once(value: float) -> Planted:
    """Make a fault: the first timed call gives this value."""

    def plant(definition: Callable[..., Any]) -> Callable[..., Any]:
        def compute(**operands: Any) -> Any:
            time.sleep(0.03)  # so that few calls are timed
            output, state = definition(**operands)
            return (torch.full_like(output, value) if TIMED["calls"] == 1 else output), state

        return with_signature(definition, compute)

    return plant


def without_the_last_batch_item(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the last item of the batch as it comes."""

    def compute(**operands: Any) -> Any:
        output, state = definition(**operands)
        if TIMED["calls"]:
            output = torch.cat([output[:-1], torch.zeros_like(output[-1:])])
        return output, state

    return with_signature(definition, compute)


def unseen_by_known_vectors(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Add to results what no vector that exists during the call can see."""

    def compute(**operands: Any) -> Any:
        output, state = definition(**operands)
        if TIMED["calls"]:
            wrong = torch.randn(output.numel())
            for vector in [each for each in gc.get_objects() if type(each) is Projection]:
                signs = torch.outer(vector._row, vector._column).flatten()
                if signs.numel() == wrong.numel():
                    wrong -= signs * (wrong @ signs) / wrong.numel()
            output = output + 10 * wrong.view_as(output)
        return output, state

    return with_signature(definition, compute)


def mode_left_on(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a mode on in the first timed call."""

    def compute(**operands: Any) -> Any:
        result = definition(**operands)
        if TIMED["calls"] == 1:
            Passing().__enter__()
        return result

    return with_signature(definition, compute)


class Passing(TorchDispatchMode):
    """Does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def subclass_when_timed(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a subclass of a tensor."""

    def compute(**operands: Any) -> Any:
        output, state = definition(**operands)
        return (output.as_subclass(Own) if TIMED["calls"] else output), state

    return with_signature(definition, compute)


class Own(Tensor):
    """A tensor of its own kind."""
