"""Call any function with the operands of a recurrence, whatever names its parameters have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ssmperf.engine.registry.declarations import Recurrence
from ssmperf.errors import Unsupported

BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def taking_names(function: Callable[..., Any], recurrence: Recurrence) -> Callable[..., Any]:
    """Wrap a function so that it takes the recurrence's operands by name.

    It gets them by name if its own parameters have the names of all required operands, and else in the order
    of the recurrence's signature. An `autograd.Function` stands for its `apply`. Operands that are None are
    left out where the function has no parameter for them.

    Calls raise:
        Unsupported: the function has no parameter for an operand.
    """
    if isinstance(function, type) and issubclass(function, torch.autograd.Function):
        function = function.apply
    parameters = _parameters(function)
    names = {each.name for each in parameters if each.kind in BY_NAME}
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
    if not is_apply(function) and names >= set(recurrence.signature.parameters):
        return function  # nothing to bind, and so nothing to add to its time
    if not is_apply(function) and (any_name or names >= set(recurrence.required)):
        return _by_name(function, None if any_name else names)
    return _by_place(function, parameters, recurrence)


def names_taken(function: Callable[..., Any], recurrence: Recurrence) -> set[str]:
    """Name the operands of a recurrence that `taking_names` can pass to a function."""
    all_names = list(recurrence.signature.parameters)
    parameters = _parameters(function)
    names = {each.name for each in parameters if each.kind in BY_NAME}
    any_name = any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters)
    if any_name or (not is_apply(function) and names >= set(recurrence.required)):
        return set(all_names) if any_name else names & set(all_names)
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    order = [name for name in all_names if name not in named]
    return {*order[: sum(each.kind in BY_PLACE for each in parameters)], *(named & set(all_names))}


def is_apply(function: Callable[..., Any]) -> bool:
    """Tell whether a function is the `apply` of an `autograd.Function`, which takes no names."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _by_name(function: Callable[..., Any], names: set[str] | None) -> Callable[..., Any]:
    """Pass operands by name. names: those that the function has, None if it takes any."""

    def call(**operands: Any) -> Any:
        if names is None:
            return function(**operands)
        _refuse(name for name, value in operands.items() if value is not None and name not in names)
        return function(**{name: value for name, value in operands.items() if name in names})

    return call


def _by_place(
    function: Callable[..., Any], parameters: list[inspect.Parameter], recurrence: Recurrence
) -> Callable[..., Any]:
    """Pass operands in the recurrence's order, but those of the function's keyword-only names by name."""
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    order = [each for name, each in recurrence.signature.parameters.items() if name not in named]
    takes = [each for each in parameters if each.kind in BY_PLACE]
    unlimited = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    most = len(order) if unlimited else min(len(takes), len(order))
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
