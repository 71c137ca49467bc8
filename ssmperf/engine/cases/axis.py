"""Axis: the one declaration of a field of `Case`, from which everything else about the field follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssmperf.errors import UnknownName

METADATA_KEY = "axis"  # in the metadata of a dataclass field


@dataclass(frozen=True, slots=True)
class Axis:
    """How a field of a case is chosen, checked, displayed, repeated and hashed.

    help: help text of its option; None for a field that the user does not choose.
    valid: the legal values; None where they cannot be listed.
    check: raises UsageError for an illegal value.
    read: maps a value as a user writes it to the value itself, such as `bf16` to `bfloat16`.
    keyword: its keyword in `ssmperf.run` and, with dashes, its option; None means the field's name.
    many: whether a selection may name several values, each of which makes a case.
    plural: the selection's keyword for its values; None means the field's name.
    operands: whether the operands depend on it. Cases that differ in such an axis share no operands.
    text: how `str(case)` shows a value that is not the default, such as "{} gates". None if the axis is
        always or never shown.
    always_repeated: whether the command that repeats a case names the value even if it is the default.
    always_hashed: whether the value enters the case's id even if it is the default. An axis that is added
        later leaves its default out of the hash, so that the ids of earlier cases stay the same.
    """

    help: str | None = None
    valid: tuple[str, ...] | None = None
    check: Callable[[Any], None] | None = None
    read: Callable[[Any], Any] = lambda value: value
    keyword: str | None = None
    many: bool = True
    plural: str | None = None
    operands: bool = True
    text: str | None = "{}"
    always_repeated: bool = False
    always_hashed: bool = False
    name: str = ""
    default: Any = None

    @property
    def argument(self) -> str:
        """The keyword in Python."""
        return self.keyword or self.name

    @property
    def argument_default(self) -> Any:
        """The default of its keyword: None where the suite decides, otherwise the default of the case."""
        return None if self.many else self.default

    @property
    def option(self) -> str:
        """The option on the command line."""
        return "--" + self.argument.rstrip("_").replace("_", "-")

    @property
    def label(self) -> str:
        """The name in messages."""
        return self.argument.rstrip("_").replace("_", " ")

    def checked(self, value: Any) -> Any:
        """Return a legal value by its full name; raise UnknownName or UsageError for an illegal one."""
        value = self.read(value)
        if self.valid is not None and value not in self.valid:
            raise UnknownName(self.label, str(value), self.valid)
        if self.check is not None:
            self.check(value)
        return value


def axis(default: Any, **declared: Any) -> Any:
    """Declare a field of `Case` with its axis; `declared` holds fields of `Axis`."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: Axis(default=default, **declared)})


def axes_of(cls: Any) -> dict[str, Axis]:
    """List the axes of a dataclass by field name, in the order of its fields."""
    return {
        field.name: dataclasses.replace(field.metadata[METADATA_KEY], name=field.name)
        for field in dataclasses.fields(cls)
        if METADATA_KEY in field.metadata
    }
