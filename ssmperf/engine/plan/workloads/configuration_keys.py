"""Keys: the values of a model's configuration, with the defaults of its class where a key is absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmperf.engine.plan.workloads.user_file import LARGEST_SIZE, shown, whole
from ssmperf.errors import UsageError


@dataclass(frozen=True, slots=True)
class Keys:
    """The values of a configuration by key.

    A name with a dot is a key in a section, such as `linear_attn_config.head_dim`. Methods that take several
    names use the first that is there. If none is, they use the default of the last one. A key whose value is
    null counts as absent.

    path: the configuration's file, for messages.
    owner: the class with its package and version, for messages.
    defaults: those of the class.
    assumed: the defaults that were used, as text; filled by the methods.
    """

    path: Path
    values: Mapping[str, Any]
    owner: str
    defaults: Mapping[str, Any]
    assumed: dict[str, str] = field(default_factory=dict)

    def find(self, *names: str) -> Any:
        """Find the value of the first key that is there, or None.

        Raises:
            UsageError: a section is no object.
        """
        return self._first(names)[1]

    def is_null(self, name: str) -> bool:
        """Tell whether a key is there with the value null."""
        return name in self.values and self.values[name] is None

    def size(self, *names: str, otherwise: Callable[[], int] | None = None) -> int:
        """Read a size.

        otherwise: computes it where the class does so.

        Raises:
            UsageError: it is no whole number in the range of sizes, or absent without a default.
        """
        name, value = self._first(names)
        if value is None:
            value = self.default(name) if otherwise is None else self._computed(name, otherwise())
        return whole(value, f"{self.path}: {name}")

    def factor(self, name: str) -> float:
        """Read a factor between sizes. Raises UsageError where it is no number in their range."""
        value = self._value(name)
        if not _is_number(value) or not 0 < value <= LARGEST_SIZE:
            valid = f"a number above 0 and at most {LARGEST_SIZE:,}"
            raise UsageError(f"{self.path}: {name} must be {valid}, got {shown(value)}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Read a truth value. Raises UsageError where it is none."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise UsageError(f"{self.path}: {name} must be true or false, got {shown(value)}")
        return value

    def bound(self, name: str) -> float | None:
        """Read a lower bound of log gates, None where neither the file nor the class has one.

        Raises:
            UsageError: it is no finite number below 0.
        """
        if self.find(name) is None and self.defaults.get(name) is None:
            return None
        value = self._value(name)
        if not _is_number(value) or not -LARGEST_SIZE <= value < 0:
            raise UsageError(f"{self.path}: {name} must be a number below 0, got {shown(value)}")
        return float(value)

    def items(self, *names: str, of: type = str) -> list[Any] | None:
        """Read a list, None where the file has none. Raises UsageError where it is no list of that type."""
        name, value = self._first(names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(each) is of for each in value):
            kind = "texts" if of is str else "whole numbers"
            raise UsageError(f"{self.path}: {name} must be a list of {kind}, got {shown(value)}")
        return value

    def default(self, name: str) -> Any:
        """Give the class's default and note it. Raises UsageError where it has none."""
        if name not in self.defaults:
            raise UsageError(f"{self.path}: the key {name} is missing, for which {self.owner} has no default")
        value = self.defaults[name]
        self.assumed[name] = f"{value} (default of {self.owner})"
        return value

    def ruled(self, name: str, linear: int, total: int) -> tuple[int, int]:
        """Note that the class's rule decides which layers are linear; return both numbers."""
        self.assumed[name] = f"{linear} of {total} layers linear (rule of {self.owner})"
        return linear, total

    def divided(self, whole_name: str, value: int, by_name: str, by: int) -> int:
        """Divide a width among heads. Raises UsageError where it does not divide."""
        if value % by:
            raise UsageError(f"{self.path}: {whole_name} = {value} is not divisible by {by_name} = {by}")
        return value // by

    def _first(self, names: tuple[str, ...]) -> tuple[str, Any]:
        """Find the first key that is there, or else the last name and None."""
        for name in names:
            section, _, last = name.rpartition(".")
            table = self.values.get(section) if section else self.values
            if table is None:
                continue
            if not isinstance(table, Mapping):
                raise UsageError(f"{self.path}: {section} must be an object {{…}}, got {shown(table)}")
            if table.get(last) is not None:
                return name, table[last]
        return names[-1], None

    def _value(self, name: str) -> Any:
        value = self.find(name)
        return self.default(name) if value is None else value

    def _computed(self, name: str, value: int) -> int:
        self.assumed[name] = f"{value} (computed by {self.owner})"
        return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
