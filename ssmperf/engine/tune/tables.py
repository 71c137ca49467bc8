"""Configurations of kernels: curated tables, temporary overrides, and the look-ups of a call.

A kernel looks up its configuration at every call, so that it runs with the one that is in force then:

    TILES = Table("scan/mine", Tiles, {("forward", "half"): Tiles(8, 4)}, candidates=others)
    cut = TILES["forward", "half"]

A configuration is a frozen dataclass whose fields are numbers, texts, truth values or None. Its
`__post_init__` raises ValueError for a configuration that can never run. `using` and `noted` act on the whole
process, not on one thread, since autograd runs the backward pass in its own thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ssmperf.engine import registry
from ssmperf.engine.plan.parts import outlines
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
_local = threading.local()  # note: this thread's look-ups, or nothing


@dataclass(frozen=True)
class Table(Generic[C]):
    """Curated configurations by shape class.

    name: `RECURRENCE/BACKEND`, or `RECURRENCE/BACKEND/NAME` if a backend has several tables.
    type: the dataclass of its configurations.
    rows: configurations by key. A key is a tuple of numbers and short texts that are no numerals and have no
        slash.
    candidates: a key's parts -> the configurations that a search may try for it.
    fits: (configuration, a key's parts) -> whether the configuration can run there, with the others in force.

    Raises:
        DuplicateName: another module has a table of this name.
        UsageError: the name or a key has the wrong form.
    """

    name: str
    type: type[C]
    rows: Mapping[Any, C]  # by Key; a mapping is invariant in its keys, so Key would refuse tuple[str, int]
    candidates: Callable[..., Iterable[C]] | None = None
    fits: Callable[..., bool] = lambda configuration, *key: True

    def __post_init__(self) -> None:
        if len(self.name.split("/")) not in (2, 3):
            raise UsageError(f"a table's name must be RECURRENCE/BACKEND[/NAME], got {self.name!r}")
        for key in self:
            if key_of(text_of(key)) != key:
                raise UsageError(f"{self.name}: {key!r} is no key: its texts must not look like numbers")
        known = _tables.get(self.name)
        if known is not None and known.type.__module__ != self.type.__module__:
            raise DuplicateName(f"the table {self.name} is already defined by {known.type.__module__}")
        _tables[self.name] = self

    def __iter__(self) -> Iterator[Key]:
        return iter(self.rows)

    def __getitem__(self, key: Key) -> C:
        """Look up the configuration in force, and record the look-up (see `noted`). Raises KeyError."""
        found = self.row(key)
        for note in _notes:
            note[self.name, key] = found
        own: dict[Place, Any] | None = getattr(_local, "note", None)
        if own is not None:
            own[self.name, key] = found
        return found

    def row(self, key: Key) -> C:
        """Look up the configuration in force like `[...]`, but without recording the look-up."""
        for layer in reversed(_layers):
            if (self.name, key) in layer:
                return typing.cast(C, layer[self.name, key])
        return self.rows[key]

    def others(self, key: Key) -> list[C]:
        """List the candidates for a key that fit, without duplicates and without the one in force."""
        candidates = dict.fromkeys(self.candidates(*key) if self.candidates else ())
        return [each for each in candidates if each != self.row(key) and self.fits(each, *key)]


@contextlib.contextmanager
def using(rows: Mapping[Place, Any]) -> Iterator[None]:
    """Put rows, by (table name, key), into force in the whole process until the block ends."""
    global _layers
    layer = force(rows)
    try:
        yield
    finally:
        _layers = tuple(each for each in _layers if each is not layer)


def force(rows: Mapping[Place, Any]) -> Mapping[Place, Any]:
    """Put rows, by (table name, key), into force for the rest of the process. Returns the new layer."""
    global _layers
    layer = Layer(rows)
    _layers = (*_layers, layer)
    return layer


@contextlib.contextmanager
def noted() -> Iterator[dict[Place, Any]]:
    """Collect the configurations that any thread looks up until the block ends, by (table name, key)."""
    global _notes
    note: dict[Place, Any] = {}
    _notes = (*_notes, note)
    try:
        yield note
    finally:
        _notes = tuple(each for each in _notes if each is not note)


def in_force() -> tuple[Layer, ...]:
    """Give the overrides in force; equal as long as the same rows are in force."""
    return _layers


@contextlib.contextmanager
def consulting() -> Iterator[dict[Place, Any]]:
    """Collect this thread's look-ups until the block ends, by (table name, key)."""
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
    """Look up a table by name, importing the backend that owns it.

    Raises:
        UnknownName: there is no such backend or table.
        UsageError: the backend cannot be imported here.
    """
    parts = name.split("/")
    if len(parts) in (2, 3):
        problem = registry.import_problem(parts[0], parts[1])
        if problem:
            raise UsageError(f"the configurations of {name} cannot be used here: {parts[1]} {problem}")
    return imported_table(name)


def imported_table(name: str) -> Table[Any]:
    """Look up a table whose backend is already imported. Raises UnknownName."""
    if name not in _tables:
        raise UnknownName("table of configurations", name, _tables)
    return _tables[name]


def changed(name: str, fields: Mapping[str, Any]) -> dict[Place, Any]:
    """Copy the rows of a table that are in force, with some fields changed; nothing if no field is named.

    Raises: as `table` does.
    """
    if not fields:
        return {}
    found = table(name)
    return {(name, key): dataclasses.replace(found.row(key), **fields) for key in found}


def text_of(key: Key) -> str:
    return "/".join(map(str, key))


def key_of(text: str) -> Key:
    return tuple(int(part) if part.isdecimal() else part for part in text.split("/"))


def label_of(place: Place) -> str:
    """Write a place as `table:key`."""
    return f"{place[0]}:{text_of(place[1])}"


def as_json(rows: Mapping[Place, Any]) -> dict[str, dict[str, Any]]:
    """Turn rows into one flat object: their fields by `table:key`."""
    return {label_of(place): dataclasses.asdict(row) for place, row in rows.items()}


def from_json(data: Mapping[str, Any], *, strict: bool = True) -> dict[Place, Any]:
    """Read the object that `as_json` returns, or one that a user wrote, and validate it.

    strict: whether a table that is not registered is an error; otherwise its rows are left out, such as those
        of a plug-in in a process that does not load it.

    Raises:
        UsageError: a table, key or field is unknown, or a value is not valid.
    """
    rows: dict[Place, Any] = {}
    for label, fields in data.items():
        name, colon, text = label.partition(":")
        if not colon:
            raise UsageError(f"a place in a table of configurations must be TABLE:KEY, got {label!r}")
        try:
            known, key = table(name), key_of(text)
        except UnknownName:
            if strict and not outlines.has("backend", name):  # those of an outline are a child's to check
                raise
            continue
        if key not in known.rows:
            raise UnknownName(f"key of the table {name}", text, map(text_of, known))
        rows[name, key] = _make(known.type, fields, label)
    with using(rows):
        for name, key in rows:
            if not _tables[name].fits(rows[name, key], *key):
                raise UsageError(f"{label_of((name, key))}: {rows[name, key]} cannot run there")
    return rows


def _make(type_: type[C], fields: Any, label: str) -> C:
    """Make a configuration from untrusted fields. Raises UsageError."""
    if not isinstance(fields, Mapping):
        raise UsageError(f"{label}: a configuration must be an object, got {fields!r:.80}")
    hints = typing.get_type_hints(type_)
    known = {field.name: hints[field.name] for field in dataclasses.fields(typing.cast(Any, type_))}
    for field, value in fields.items():
        if field not in known:
            raise UnknownName(f"field of {label}", str(field), known)
        allowed = typing.get_args(known[field]) or (known[field],)
        if type(value) not in allowed:
            expected = " or ".join(each.__name__ for each in allowed)
            raise UsageError(f"{label}: {field} must be of type {expected}, got {value!r:.80}")
    try:
        return type_(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{label}: {error}") from error
