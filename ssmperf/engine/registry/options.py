"""Options of a model or task: keyword arguments that follow its name, as in `pese_lr:n=8`.

They are those keyword-only parameters of a model's class, or of the function that makes a task, that take a
number, a truth value or a text. In the name that a case carries they are in alphabetical order, without those
at their default.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssmperf.engine.registry.declarations import ModelEntry
from ssmperf.errors import UnknownName, UsageError

TYPES: tuple[type, ...] = (bool, int, float, str)
WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ModelOption:
    """A keyword of a model or task; its help is its text in the docstring, or in that of a base class."""

    name: str
    type: type
    default: Any
    help: str = ""

    def parse(self, text: str) -> Any:
        """Read a value. Raises UsageError."""
        try:
            if self.type is bool:
                return WORDS[text]
            return self.type(text)
        except (KeyError, ValueError):
            wanted = "true or false" if self.type is bool else f"of type {self.type.__name__}"
            raise UsageError(f"option {self.name}: {text!r} is not {wanted}") from None


def options_of(make: Callable[..., Any]) -> dict[str, ModelOption]:
    """The options of a class or function by name, in the order of its parameters."""
    hints = typing.get_type_hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
    said: dict[str, str] = {}
    for each in reversed(make.__mro__) if isinstance(make, type) else (make,):
        said |= _said(each.__doc__ or "")
    found = {}
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        hint = hints.get(parameter.name)
        kinds = [kind for kind in TYPES if kind in (hint, *typing.get_args(hint))]
        if kinds:
            name = parameter.name
            found[name] = ModelOption(name, kinds[0], parameter.default, said.get(name, ""))
    return found


def _said(docstring: str) -> dict[str, str]:
    """Read `name: help` from a docstring; lines that are indented further continue the help."""
    found = re.findall(r"^( *)(\w+): (\S.*(?:\n\1 +\S.*)*)$", docstring, re.MULTILINE)
    return {name: " ".join(text.split()) for _, name, text in found}


def configured(entry: ModelEntry, text: str) -> ModelEntry:
    """The entry of a model with options, `NAME=VALUE` separated by colons, under its full name.

    Raises:
        UnknownName: the model has no such option.
        UsageError: a value that its option does not take, or a text of another form.
    """
    full, kept = read_options(entry.name, entry.cls, text)
    return replace(entry, name=full, cls=_bound(entry.cls, full, kept)) if kept else entry


def read_options(owner: str, make: Callable[..., Any], text: str) -> tuple[str, dict[str, Any]]:
    """Read options, `NAME=VALUE` separated by colons: the full name, and the values that are no defaults.

    Raises:
        UnknownName: there is no such option.
        UsageError: a value that its option does not take, or a text of another form.
    """
    known = options_of(make)
    given: dict[str, Any] = {}
    for part in text.split(":"):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{owner}:{text}: options are NAME=VALUE, separated by colons")
        if name not in known:
            raise UnknownName(f"option of {owner}", name, known)
        if name in given:
            raise UsageError(f"{owner}:{text}: the option {name} is given twice")
        given[name] = known[name].parse(value)
    kept = {name: given[name] for name in sorted(given) if given[name] != known[name].default}
    return ":".join([owner, *(f"{name}={_shown(value)}" for name, value in kept.items())]), kept


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bound(cls: Any, name: str, options: Mapping[str, Any]) -> type:
    """Derive a class whose constructor has these options unless it is given others.

    What the layers of a network get of their depth depends on the options, too.
    """

    def create(self: Any, shape: Mapping[str, int], **given: Any) -> None:
        cls.__init__(self, shape, **{**options, **given})

    def depth_options(
        own: Any, shape: Mapping[str, int], layers: int, given: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = super(derived, own).depth_options(shape, layers, {**options, **given})
        return found

    attributes = {
        "__init__": create,
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "name": name,
        "depth_options": classmethod(depth_options),
    }
    derived: Any = type(cls.__name__, (cls,), attributes)
    return derived  # type: ignore[no-any-return]
