"""Configurations of kernels: curated tables, other rows for a while, what a call consulted.

A kernel looks its configuration up at every call, so that what is in force now is what it runs with:

    TILES = Table("scan/mine", Tiles, {("forward", "half"): Tiles(8, 4)}, candidates=others)
    cut = TILES["forward", "half"]

A configuration is a frozen dataclass whose fields are numbers, texts, truth values or None, and which refuses
in `__post_init__`, by a ValueError, what can never run. `using` and `noted` hold for the whole process and
not for one thread: a backward pass runs in a thread of autograd's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ssmperf import registry
from ssmperf.errors import DuplicateName, UnknownName, UsageError

C = TypeVar("C")
Key = tuple[str | int, ...]
Place = tuple[str, Key]  # a table's name, and one of its keys


class Layer(dict[Place, Any]):
    """Rows in force instead of others. A layer equals only itself, so that it can be part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


_tables: dict[str, Table[Any]] = {}
_layers: tuple[Layer, ...] = ()  # the last one is on top
_notes: tuple[dict[Place, Any], ...] = ()
_local = threading.local()  # note: what this thread looks up, or nothing


@dataclass(frozen=True)
class Table(Generic[C]):
    """Curated configurations by shape class.

    name: `RECURRENCE/BACKEND`, or `RECURRENCE/BACKEND/NAME` where a backend has several.
    type: the dataclass of its configurations.
    rows: by key, a tuple of short texts and numbers; a text is no numeral and has no slash.
    candidates: of a key's parts: what a search may try there.
    fits: of a configuration and a key's parts: whether it can run there, beside what else is in force.

    Raises:
        DuplicateName: another module has a table of this name.
        UsageError: no such name, or no such keys.
    """

    name: str
    type: type[C]
    rows: Mapping[Any, C]  # by Key; a mapping is invariant in its keys, so Key would refuse tuple[str, int]
    candidates: Callable[..., Iterable[C]] | None = None
    fits: Callable[..., bool] = lambda configuration, *key: True

    def __post_init__(self) -> None:
        if len(self.name.split("/")) not in (2, 3):
            raise UsageError(f"a table's name is RECURRENCE/BACKEND[/NAME], not {self.name!r}")
        for key in self:
            if key_of(text_of(key)) != key:
                raise UsageError(f"{self.name}: {key!r} is no key: its texts must not look like numbers")
        known = _tables.get(self.name)
        if known is not None and known.type.__module__ != self.type.__module__:
            raise DuplicateName(f"the table {self.name} is already made by {known.type.__module__}")
        _tables[self.name] = self

    def __iter__(self) -> Iterator[Key]:
        return iter(self.rows)

    def __getitem__(self, key: Key) -> C:
        """The configuration in force, which is noted (see `noted`). Raises KeyError."""
        found = self.row(key)
        for note in _notes:
            note[self.name, key] = found
        own: dict[Place, Any] | None = getattr(_local, "note", None)
        if own is not None:
            own[self.name, key] = found
        return found

    def row(self, key: Key) -> C:
        """The same without a note, for who asks and does not run it."""
        for layer in reversed(_layers):
            if (self.name, key) in layer:
                return typing.cast(C, layer[self.name, key])
        return self.rows[key]

    def others(self, key: Key) -> list[C]:
        """The candidates of a key that fit, each once, without what is in force."""
        made = dict.fromkeys(self.candidates(*key) if self.candidates else ())
        return [each for each in made if each != self.row(key) and self.fits(each, *key)]


@contextlib.contextmanager
def using(rows: Mapping[Place, Any]) -> Iterator[None]:
    """Let these rows be in force, by (table name, key), in the whole process until the block ends."""
    global _layers
    layer = force(rows)
    try:
        yield
    finally:
        _layers = tuple(each for each in _layers if each is not layer)


def force(rows: Mapping[Place, Any]) -> Mapping[Place, Any]:
    """The same for the rest of the process. Returns the layer that is now on top."""
    global _layers
    layer = Layer(rows)
    _layers = (*_layers, layer)
    return layer


@contextlib.contextmanager
def noted() -> Iterator[dict[Place, Any]]:
    """Collect what is looked up until the block ends, by (table name, key), in whatever thread."""
    global _notes
    note: dict[Place, Any] = {}
    _notes = (*_notes, note)
    try:
        yield note
    finally:
        _notes = tuple(each for each in _notes if each is not note)


def in_force() -> tuple[Layer, ...]:
    """What decides, beside the tables, which rows are in force: equal as long as they are the same."""
    return _layers


@contextlib.contextmanager
def consulting() -> Iterator[dict[Place, Any]]:
    """Collect what this thread looks up until the block ends, by (table name, key)."""
    before = getattr(_local, "note", None)
    found: dict[Place, Any] = {}
    _local.note = found
    try:
        yield found
    finally:
        _local.note = before
        if before is not None:
            before.update(found)


def note_again(consulted: Mapping[Place, Any]) -> None:
    """Note rows that were looked up before and are used again (see `noted`)."""
    for each in _notes:
        each.update(consulted)


def table(name: str) -> Table[Any]:
    """A table by name; imports the backend whose it is.

    Raises:
        UnknownName: no such backend or table.
        UsageError: the backend cannot be imported here.
    """
    parts = name.split("/")
    if len(parts) in (2, 3):
        problem = registry.import_problem(parts[0], parts[1])
        if problem:
            raise UsageError(f"the configurations of {name} cannot be used here: {parts[1]} {problem}")
    return named(name)


def named(name: str) -> Table[Any]:
    """A table whose backend was imported. Raises UnknownName."""
    if name not in _tables:
        raise UnknownName("table of configurations", name, _tables)
    return _tables[name]


def text_of(key: Key) -> str:
    return "/".join(map(str, key))


def key_of(text: str) -> Key:
    return tuple(int(part) if part.isdecimal() else part for part in text.split("/"))


def label_of(place: Place) -> str:
    """`table:key`."""
    return f"{place[0]}:{text_of(place[1])}"


def as_json(rows: Mapping[Place, Any]) -> dict[str, dict[str, Any]]:
    """Rows as one flat object: their fields by `table:key`."""
    return {label_of(place): dataclasses.asdict(row) for place, row in rows.items()}


def from_json(data: Mapping[str, Any]) -> dict[Place, Any]:
    """What `as_json` gave, or anybody wrote, checked against the tables.

    Raises:
        UsageError: an unknown table, key or field, or a value that cannot be.
    """
    rows: dict[Place, Any] = {}
    for label, fields in data.items():
        name, colon, text = label.partition(":")
        if not colon:
            raise UsageError(f"{label!r} is no place in a table of configurations: TABLE:KEY")
        known, key = table(name), key_of(text)
        if key not in known.rows:
            raise UnknownName(f"key of the table {name}", text, map(text_of, known))
        rows[name, key] = _checked(known.type, fields, label)
    with using(rows):
        for name, key in rows:
            if not _tables[name].fits(rows[name, key], *key):
                raise UsageError(f"{label_of((name, key))}: {rows[name, key]} cannot run there")
    return rows


def _checked(type_: type[C], fields: Any, label: str) -> C:
    """A configuration of outside fields."""
    if not isinstance(fields, Mapping):
        raise UsageError(f"{label}: a configuration is an object, got {fields!r:.80}")
    hints = typing.get_type_hints(type_)
    known = {field.name: hints[field.name] for field in dataclasses.fields(typing.cast(Any, type_))}
    for field, value in fields.items():
        if field not in known:
            raise UnknownName(f"field of {label}", str(field), known)
        allowed = typing.get_args(known[field]) or (known[field],)
        if type(value) not in allowed:
            wanted = " or ".join(each.__name__ for each in allowed)
            raise UsageError(f"{label}: {field} is {value!r:.80}, not of type {wanted}")
    try:
        return type_(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{label}: {error}") from error
