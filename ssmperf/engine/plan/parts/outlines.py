"""Outlines: what plug-ins have registered, as plain data for a process that imports none of them.

Declarations that are data stay as they are. Of functions that forecast, an outline has the answers that they
gave for the cases of a plan; any other code is absent, and cannot be called.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.registry import discovery, lookup, tables
from ssmperf.engine.registry.checks import Analytic, Identity
from ssmperf.engine.registry.declarations import Backend, Family, ModelEntry, Recurrence
from ssmperf.engine.registry.sections import Section
from ssmperf.errors import SsmperfError, UnknownName

OUTLINED = "(outline)"  # stands for the module of an entry
ENTRIES: dict[str, Callable[..., Any]] = {
    "recurrence": Recurrence,
    "family": Family,
    "model": ModelEntry,
    "backend": Backend,
    "suite": SimpleNamespace,
    "task": SimpleNamespace,
    "analytic": Analytic,
    "identity": Identity,
}  # by kind, in the order in which they are registered
FORECASTS = ("launches", "serial_steps", "workspace", "saved")  # declarations of a backend

_registered: dict[str, Any] = {}  # the outlines of this process, as plain data
_added: list[tuple[str, str]] = []  # their kinds and labels
_own: set[tuple[str, str]] = set()  # what this process had registered before


class Absent:
    """Stands for code of a plug-in. It has the signature of a function, as far as that is plain data."""

    def __init__(self, parameters: Sequence[Sequence[Any]]) -> None:
        self.__module__ = self.__qualname__ = OUTLINED
        made = (inspect.Parameter(name, kind, default=_default(rest)) for name, kind, *rest in parameters)
        self.__signature__ = inspect.Signature(list(made))

    def __call__(self, *operands: Any, **options: Any) -> Any:
        raise SsmperfError("this is code of a plug-in, which this process does not import")


class Answers:
    """The answers of a function that forecasts, by its arguments.

    function: gives those that are not known yet; None for an outline, whose other answers are 0.
    """

    def __init__(self, function: Callable[..., Any] | None, known: Mapping[str, float | None]) -> None:
        self.function, self.known = function, dict(known)

    def __call__(self, *arguments: Any) -> float | None:
        key = repr(arguments)
        if key not in self.known and self.function is not None:
            answer = self.function(*arguments)
            self.known[key] = None if answer is None else float(answer)
        return self.known.get(key, 0.0)


def note_answers() -> None:
    """Let the forecasts of this process's plug-ins be noted from now on."""
    for kind, label in _of_plugins():
        entry = tables.entries[kind][label]
        if kind == "backend":
            noted = {
                name: Answers(function, {})
                for name in FORECASTS
                if (function := getattr(entry, name)) is not None
            }
            tables.entries[kind][label] = replace(entry, **noted)
        elif kind == "suite" and hasattr(entry, "forecast_s"):
            entry.forecast_s = Answers(entry.forecast_s, {})


def describe(models: Iterable[str]) -> dict[str, Any]:
    """Describe what this process's plug-ins have registered, and their models with options that are named."""
    entries = []
    for kind, label in _of_plugins():
        file = registry.file_of(kind, label)
        declared = _declared(tables.entries[kind][label])
        entries.append([kind, label, declared, None if file is None else str(file)])
    bound = {}
    for name in models:
        with contextlib.suppress(UnknownName):  # a bare recurrence
            if name not in tables.entries["model"] and _is_of_a_plugin("model", name):
                bound[name] = _declared(registry.model(name))
    return {"entries": entries, "models": bound, "files": list(registry.plugins())}


def register(outlines: Mapping[str, Any], moved: Mapping[str, str] | None = None) -> None:
    """Register outlines in this process, instead of those that it has.

    moved: the paths that plug-in files have here, by those that they had; None if they are the same.

    Raises:
        DuplicateName: the name of one is taken by an entry of this package.
    """
    forget()
    _registered.update(outlines)
    for built_in in (registry.models, registry.suites, registry.tasks, registry.identities):
        built_in()
    for kind, label, declared, file in sorted(
        outlines["entries"], key=lambda each: [*ENTRIES].index(each[0])
    ):
        entry = ENTRIES[kind](**{name: _read(value) for name, value in declared.items()})
        if kind == "backend":
            lookup.add_backend(entry, Absent(()))
        elif kind == "model":
            lookup.add_model(entry)
        else:
            of, _, name = label.rpartition("/")
            tables.add(kind, name, entry, Absent(()), of=of or None)
        _added.append((kind, label))
        path = file and Path((moved or {}).get(file, file))
        tables.origins[kind, label] = replace(tables.origins[kind, label], loaded_by=OUTLINED, path=path)
    for name, declared in outlines["models"].items():
        if _is_of_a_plugin("model", name):
            tables.entries["model"][name] = ModelEntry(**{key: _read(each) for key, each in declared.items()})
            _added.append(("model", name))
    discovery.plugin_files[:] = [Path((moved or {}).get(file, file)) for file in outlines["files"]]


def registered() -> dict[str, Any]:
    """Give the outlines that this process has instead of plug-ins; none if it has loaded its plug-ins."""
    return dict(_registered)


def has(kind: str, label: str) -> bool:
    """Tell whether an entry of this process is an outline."""
    return (kind, label) in _added


def concern(case: Case) -> bool:
    """Tell whether plug-ins have a part in a case: its suite, subject, task, known answer or backend."""
    labels = [("suite", case.suite), ("recurrence", case.recurrence), *source_entries(case)]
    labels += [("model", case.model)] if case.model else []
    owners = dict.fromkeys((case.owner, case.owner.partition(":")[0], case.recurrence))
    labels += [("backend", f"{owner}/{case.backend}") for owner in owners]
    return any(_is_of_a_plugin(*each) for each in labels)


def source_entries(case: Case) -> list[tuple[str, str]]:
    """Name the entry that a case's operands come from, where that is a task, a closed form or an identity."""
    kind, _, name = case.operand_source.partition("/")
    label = f"{case.recurrence}/{name}" if kind == "analytic" else name.partition(":")[0]
    return [(kind, label)] if kind in ("task", "analytic", "identity") else []


def forget() -> None:
    """Drop the outlines of this process."""
    for kind, label in _added:
        tables.entries[kind].pop(label, None)
        tables.origins.pop((kind, label), None)
    if _registered:
        discovery.plugin_files.clear()
    _added.clear()
    _registered.clear()


def begin() -> None:
    """Drop the outlines of this process; what it has registered itself is no plug-in's."""
    forget()
    _own.clear()
    _own.update(tables.origins)


def _is_of_a_plugin(kind: str, label: str) -> bool:
    """Tell whether plug-ins have registered an entry, or an outline of them stands for it."""
    without_options = "/".join(part.partition(":")[0] for part in label.split("/"))
    return registry.from_outside(kind, label) and (kind, without_options) not in _own


def _of_plugins() -> list[tuple[str, str]]:
    return [key for key in tables.origins if key[0] in ENTRIES and _is_of_a_plugin(*key)]


def _declared(entry: Any) -> dict[str, Any]:
    """Describe the declarations of an entry. Those of a suite are attributes; its methods are left out."""
    if isinstance(entry, (Recurrence, Family, ModelEntry, Backend, Analytic, Identity)):
        return {each.name: _plain(getattr(entry, each.name)) for each in fields(entry)}
    names = () if inspect.isfunction(entry) else (name for name in dir(entry) if not name.startswith("_"))
    values = {name: getattr(entry, name) for name in names}
    return {
        name: _plain(value)
        for name, value in values.items()
        if isinstance(value, Answers) or not callable(value)
    }


def _plain(value: Any) -> Any:
    """Turn a declared value into plain data, which `_read` reads again."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, Shape):
        return {"shape": dict(value)}
    if isinstance(value, Section):
        return {"section": value.to_json()}
    if isinstance(value, Answers):
        return {"answers": value.known}
    if isinstance(value, Mapping):
        return {"values": {str(name): _plain(each) for name, each in value.items()}}
    return {"code": _parameters(value)}


def _parameters(code: Any) -> list[list[Any]]:
    """Describe the parameters of a function: name, kind and the default, if there is one."""
    try:
        found = inspect.signature(code).parameters.values()
    except (TypeError, ValueError):  # no function, or one in C
        return []
    empty = inspect.Parameter.empty
    return [
        [each.name, int(each.kind), *([] if each.default is empty else [_plain(each.default)])]
        for each in found
    ]


def _default(given: Sequence[Any]) -> Any:
    return _read(given[0]) if given else inspect.Parameter.empty


def _read(value: Any) -> Any:
    """Undo `_plain`; lists become tuples, and code is absent."""
    if isinstance(value, list):
        return tuple(map(_read, value))
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "shape":
        return Shape(held)
    if kind == "section":
        return Section.from_json(held)
    if kind == "answers":
        return Answers(None, held)
    if kind == "values":
        return {name: _read(each) for name, each in held.items()}
    return Absent(held)
