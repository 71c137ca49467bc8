"""The command line's options for the axes of a case, one per axis."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from ssmperf.cases.axis import Axis
from ssmperf.cases.case import chosen_axes

HEADING = "Axes of a case"  # in the help


def with_axes(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes `**axes` one option per axis of a case."""
    hints = get_type_hints(verb, include_extras=True)
    kept = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(verb).parameters.values()
        if each.kind is not each.VAR_KEYWORD
    ]
    parameters = [*kept, *map(_option, chosen_axes().values())]

    @functools.wraps(verb)
    def taking_axes(**given: Any) -> None:
        verb(**given)

    taking_axes.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking_axes.__annotations__ = {each.name: each.annotation for each in parameters}
    return taking_axes


def _option(axis: Axis) -> inspect.Parameter:
    """Make a verb's parameter for an axis; an axis that takes many values gets comma-separated names."""
    type_ = (str | None) if axis.many else type(axis.default)
    option = typer.Option(axis.option, help=axis.help, rich_help_panel=HEADING)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        axis.argument, kind, default=axis.argument_default, annotation=Annotated[type_, option]
    )
