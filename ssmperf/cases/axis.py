"""Axis: what is declared once about a field of `Case`, and drives everything else that is done with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssmperf.errors import UnknownName

KEY = "axis"  # of a dataclass field's metadata


@dataclass(frozen=True, slots=True)
class Axis:
    """How a field of a case is chosen, checked, shown and repeated.

    help: what the option's help says of it; None for a field that the user does not choose.
    valid: its legal values; None where there is no list. check: raises UsageError for an illegal value.
    keyword: of `ssmperf.run` and, with dashes, of the command line; the field's name if None.
    many: whether a selection may name several values, each of which makes a case.
    plural: what a selection calls its values; the field's name if None.
    operands: whether the operands depend on it, so that cases that differ in it share none.
    shown: how `str(case)` shows a value that is not the default; None where it is always or never shown.
    repeated: whether the command that repeats a case names it even at its default.
    founding: whether the id is a hash of it even at its default. A later axis must not change the ids of
        cases that were there before it, so there its default is left out of the hash.
    """

    help: str | None = None
    valid: tuple[str, ...] | None = None
    check: Callable[[Any], None] | None = None
    keyword: str | None = None
    many: bool = True
    plural: str | None = None
    operands: bool = True
    shown: str | None = "{}"
    repeated: bool = False
    founding: bool = False
    name: str = ""
    default: Any = None

    @property
    def argument(self) -> str:
        """Its keyword in Python."""
        return self.keyword or self.name

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return "--" + self.argument.rstrip("_").replace("_", "-")

    @property
    def words(self) -> str:
        """Its name in messages."""
        return self.argument.rstrip("_").replace("_", " ")

    def checked(self, value: Any) -> Any:
        """Give the value back if it is legal. Raises UnknownName, or what `check` raises."""
        if self.valid is not None and value not in self.valid:
            raise UnknownName(self.words, str(value), self.valid)
        if self.check is not None:
            self.check(value)
        return value


def axis(default: Any, **declared: Any) -> Any:
    """Declare a field of `Case` with its axis; see `Axis` for what can be declared."""
    return dataclasses.field(default=default, metadata={KEY: Axis(default=default, **declared)})


def axes_of(cls: Any) -> dict[str, Axis]:
    """The axes of a dataclass by field name, in the order of its fields."""
    return {
        field.name: dataclasses.replace(field.metadata[KEY], name=field.name)
        for field in dataclasses.fields(cls)
        if KEY in field.metadata
    }
