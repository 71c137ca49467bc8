"""Option: the one declaration of an option of a run, from which everything else about it follows.

The command line of `run`, `ab` and `bisect`, the keywords of `ssmperf.run`, the checks, the command that
repeats a case, what workers get and what `run.json` has are all read from the fields of a group of options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

from ssmperf.errors import UsageError

METADATA_KEY = "option"  # in the metadata of a dataclass field


@dataclass(frozen=True, slots=True)
class Option:
    """How an option is written, read, repeated and stored.

    help: what it is, for the command line and for `help(ssmperf.run)`.
    type: what the command line reads: bool for a flag, list for one that may be repeated.
    metavar: what stands for its value in the help; None for the usual.
    read: makes the value from what a user wrote, or leaves a value as it is. It gets the option's spelling
        for its messages, and raises UsageError for what is illegal. None is not read: it means the default
        of the suite, the preset or the machine.
    write: writes the value so that `read` gives it again.
    repeated: whether the command that repeats a case has it where it is not the default.
    compared: whether `ab` and `bisect` take it, too.
    stored: whether `run.json` has it under `options`; the others have places of their own.
    """

    help: str
    type: Any
    metavar: str | None = None
    read: Callable[[str, Any], Any] = lambda option, value: value
    write: Callable[[Any], str] = str
    repeated: bool = True
    compared: bool = False
    stored: bool = True
    name: str = ""
    default: Any = None

    @property
    def option(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    def words(self, value: Any) -> list[str]:
        """Write a value for the command line."""
        if self.type is bool:
            return [self.option]
        return [
            word
            for each in (value if self.type is list else [value])
            for word in (self.option, self.write(each))
        ]


def option(default: Any, **declared: Any) -> Any:
    """Declare a field of a group with its option; `declared` holds fields of `Option`."""
    return dataclasses.field(default=default, metadata={METADATA_KEY: Option(default=default, **declared)})


def count(most: int) -> Callable[[str, Any], Any]:
    """Make a reader of whole numbers from 1 to `most`."""

    def read(option: str, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise UsageError(f"{option} must be a whole number, got {value!r}")
        if not 1 <= int(value) <= most:
            raise UsageError(f"{option} must lie between 1 and {most}, got {value}")
        return value

    return read


@dataclass(frozen=True, slots=True)
class Options:
    """A group of options. Subclasses are frozen dataclasses whose fields are declared by `option`.

    PANEL: its heading in the help; None for that of the verb.

    Raises:
        UsageError: a value is illegal.
    """

    PANEL: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for name, declared in self.declared().items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, declared.read(declared.option, value))

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """List the options by name, in the order of the fields."""
        return {
            field.name: dataclasses.replace(field.metadata[METADATA_KEY], name=field.name)
            for field in dataclasses.fields(cls)
            if METADATA_KEY in field.metadata
        }

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> Self:
        """Make the group from those of some keywords that are its options, and remove these.

        None means the default.
        """
        found = {name: given.pop(name) for name in cls.declared() if name in given}
        return cls(**{name: value for name, value in found.items() if value is not None})

    @property
    def words(self) -> tuple[str, ...]:
        """The options for a command that repeats a case."""
        return tuple(
            word
            for name, declared in self.declared().items()
            if declared.repeated and (value := getattr(self, name)) != declared.default
            for word in declared.words(value)
        )

    def to_json(self) -> dict[str, Any]:
        """Give the options that are stored, unless they are None."""
        values = {name: getattr(self, name) for name, each in self.declared().items() if each.stored}
        return {name: value for name, value in values.items() if value is not None}

    def for_workers(self) -> dict[str, Any]:
        """Give all options as plain data, for a process of the same version: see `from_json`."""
        return {name: getattr(self, name) for name in self.declared()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Make the group of what `to_json` or `for_workers` gave."""
        return cls(**data)
