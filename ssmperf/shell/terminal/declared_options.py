"""The command line's options that are declared elsewhere: those of a run, and one per axis of a case."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, get_type_hints

import typer

from ssmperf.engine.cases.axis import Axis
from ssmperf.engine.cases.case import chosen_axes
from ssmperf.engine.plan.option import Option
from ssmperf.engine.plan.run_options import GROUPS

Verb = Callable[..., None]
HEADING = "Axes of a case"  # in the help


def with_axes(verb: Verb) -> Verb:
    """Give a verb that takes more keywords one option per axis of a case."""
    return with_options(verb, map(_of_axis, chosen_axes().values()))


def with_run_options(
    only: Collection[str] | None = None, *, compared: bool = False, **others: Any
) -> Callable[[Verb], Verb]:
    """Give a verb that takes more keywords the options of a run.

    only: names of the options; None means all. compared: whether to leave out those that `ab` does not take.
    others: defaults of this verb, by option.
    """
    options = [
        _of_run(declared, group.PANEL, others.get(name, declared.default))
        for group in GROUPS
        for name, declared in group.declared().items()
        if (only is None or name in only) and (declared.compared or not compared)
    ]
    return functools.partial(with_options, options=options)


def with_options(verb: Verb, options: Iterable[inspect.Parameter]) -> Verb:
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


def _of_run(declared: Option, panel: str | None, default: Any) -> inspect.Parameter:
    """Make a verb's parameter for an option of a run; one that may be repeated has a list of texts."""
    type_ = list[str] if declared.type is list else declared.type
    if declared.type is list or default is None:
        type_, default = type_ | None, None
    option = typer.Option(
        declared.option, help=declared.help, metavar=declared.metavar, rich_help_panel=panel
    )
    return inspect.Parameter(
        declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type_, option]
    )


def _of_axis(axis: Axis) -> inspect.Parameter:
    """Make a verb's parameter for an axis; an axis that takes many values gets comma-separated names."""
    type_ = (str | None) if axis.many else type(axis.default)
    option = typer.Option(axis.option, help=axis.help, rich_help_panel=HEADING)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(
        axis.argument, kind, default=axis.argument_default, annotation=Annotated[type_, option]
    )
