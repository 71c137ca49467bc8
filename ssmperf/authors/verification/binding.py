"""Call any function with the operands of a recurrence, whatever names its parameters have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ssmperf.engine.registry.declarations import Recurrence
from ssmperf.errors import Unsupported

BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Binding:
    """How a function takes a recurrence's operands: by name, or in an order.

    names: what it takes by name; None for any name. places: what it takes by position, in this order.
    """

    names: frozenset[str] | None
    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], recurrence: Recurrence) -> Binding:
        """By name if its own names are those of all required operands, else in the signature's order."""
        own = _parameters(function)
        kinds = {each.kind for each in own}
        names = frozenset(each.name for each in own if each.kind in BY_NAME)
        if not is_apply(function) and inspect.Parameter.VAR_KEYWORD in kinds:
            return cls(None)
        if not is_apply(function) and names >= set(recurrence.required):
            return cls(names)
        named = frozenset(each.name for each in own if each.kind is each.KEYWORD_ONLY)
        order = [name for name in recurrence.signature.parameters if name not in named]
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            order = order[: sum(each.kind in BY_PLACE for each in own)]
        return cls(named, tuple(order))


def taking_names(function: Callable[..., Any], recurrence: Recurrence) -> Callable[..., Any]:
    """Wrap a function so that it takes the recurrence's operands by name: see `Binding`.

    An `autograd.Function` stands for its `apply`. Operands that are None are left out where the function has
    no parameter for them.

    Calls raise:
        Unsupported: the function has no parameter for an operand.
    """
    function = _applied(function)
    binding = Binding.of(function, recurrence)
    if binding.places:
        return _by_place(function, binding, recurrence)
    if binding.names is None or binding.names >= set(recurrence.signature.parameters):
        return function  # nothing to bind, and so nothing to add to its time
    return _by_name(function, binding.names)


def names_taken(function: Callable[..., Any], recurrence: Recurrence) -> set[str]:
    """Name the operands of a recurrence that `taking_names` can pass to a function."""
    binding, names = Binding.of(_applied(function), recurrence), set(recurrence.signature.parameters)
    return names if binding.names is None else names & {*binding.names, *binding.places}


def is_apply(function: Callable[..., Any]) -> bool:
    """Tell whether a function is the `apply` of an `autograd.Function`, which takes no names."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _applied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the `apply` of an `autograd.Function`, and any other function as it is."""
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        return function.apply
    return function


def _by_name(function: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """Pass operands by name. names: those that the function has."""

    def call(**operands: Any) -> Any:
        _refuse(name for name, value in operands.items() if value is not None and name not in names)
        return function(**{name: value for name, value in operands.items() if name in names})

    return call


def _by_place(function: Callable[..., Any], binding: Binding, recurrence: Recurrence) -> Callable[..., Any]:
    """Pass operands in the recurrence's order, but those of the function's keyword-only names by name."""
    named = binding.names or frozenset()
    order = [each for name, each in recurrence.signature.parameters.items() if name not in named]
    takes = [each for each in _parameters(function) if each.kind in BY_PLACE]
    most = len(binding.places)
    least = min(sum(each.default is each.empty for each in takes), len(order))

    def call(**operands: Any) -> Any:
        given = [place for place, each in enumerate(order, 1) if operands.get(each.name) is not None]
        _refuse(order[place - 1].name for place in given if place > most)
        count = max([least, *given])
        return function(
            *(_value(operands, each) for each in order[:count]),
            **{name: operands[name] for name in named & operands.keys()},
        )

    return call


def _value(operands: Mapping[str, Any], parameter: inspect.Parameter) -> Any:
    default = None if parameter.default is parameter.empty else parameter.default
    return operands.get(parameter.name, default)


def _refuse(names: Iterable[str]) -> None:
    missing = ", ".join(names)
    if missing:
        raise Unsupported(f"the function has no parameter for {missing}")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """List a function's parameters; any by position, if they cannot be found out."""
    looked_at: Any = function
    if is_apply(function):
        owner: Any = function.__self__  # type: ignore[attr-defined]
        looked_at = owner.forward
    elif isinstance(function, torch.nn.Module):
        looked_at = function.forward
    try:
        parameters = list(inspect.signature(looked_at).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL)]
    if is_apply(function) and owner.setup_context is torch.autograd.Function.setup_context:
        return parameters[1:]  # without the context
    return parameters
