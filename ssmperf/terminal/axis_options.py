"""The command line's options for the axes of a case, one per axis."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_type_hints

import typer

from ssmperf.cases.axis import Axis
from ssmperf.cases.case import chosen_axes

HEADING = "Axes of a case"  # in the help


def with_axes(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes `**axes` one option per axis of a case."""
    return with_options(verb, map(_option, chosen_axes().values()))


def with_options(verb: Callable[..., None], options: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Give a verb that takes further keywords these options after its own."""
    hints = get_type_hints(verb, include_extras=True)
    kept = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(verb).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    parameters = [*kept, *options]

    @functools.wraps(verb)
    def taking_more(**given: Any) -> None:
        verb(**given)

    taking_more.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking_more.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking_more


def _option(axis: Axis) -> inspect.Parameter:
    """Make a verb's parameter for an axis; an axis that takes many values gets comma-separated names."""
    type_ = (str | None) if axis.many else type(axis.default)
    option = typer.Option(axis.option, help=axis.help, rich_help_panel=HEADING)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        axis.argument, kind, default=axis.argument_default, annotation=Annotated[type_, option]
    )
