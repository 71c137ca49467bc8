"""Registration, discovery and look-up of recurrences, backends, models, suites and report formats.

Built-in folders, installed plug-ins (entry points) and plug-in files all come through here. A backend
file of a built-in recurrence is named after its backend and imported when that backend is looked up.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssmperf.errors import DuplicateName, PluginError, SsmperfError, UnknownName, UsageError

if TYPE_CHECKING:
    from ssmperf.recurrence import Backend, ModelEntry, Recurrence

IMPLS = "ssmperf.impls"
MODELS = "ssmperf.impls.models"
NOT_BACKENDS = ("common", "peers")  # files beside the backends: shared code, and several backends in one

E = TypeVar("E")

_recurrences: dict[str, Recurrence] = {}
_backends: dict[tuple[str, str], Backend] = {}
_models: dict[str, ModelEntry] = {}
_suites: dict[str, Any] = {}
_reports: dict[str, Any] = {}
_origins: dict[tuple[str, str], str] = {}
_done: set[str] = set()
_plugins: list[Path] = []


def _add(table: dict[Any, E], key: Any, kind: str, label: str, entry: E, code: Any) -> None:
    origin = f"{getattr(code, '__module__', '?')}.{getattr(code, '__qualname__', '?')}"
    if key in table:
        raise DuplicateName(f"{kind} {label} is already registered by {_origins[kind, label]}")
    table[key] = entry
    _origins[kind, label] = origin


def add_recurrence(entry: Recurrence) -> None:
    """Raises DuplicateName if the name is taken."""
    _add(_recurrences, entry.name, "recurrence", entry.name, entry, entry.definition)


def add_backend(entry: Backend) -> None:
    """Raises DuplicateName if `of` has a backend of that name, an unimported built-in file included."""
    module = getattr(entry.function, "__module__", "")
    built_in = f"{IMPLS}.{entry.of}.{entry.name}"
    if entry.name in _backend_files(entry.of) and not module.startswith(f"{IMPLS}.{entry.of}"):
        raise DuplicateName(f"backend {entry.of}/{entry.name} is already registered by {built_in}")
    _add(_backends, (entry.of, entry.name), "backend", f"{entry.of}/{entry.name}", entry, entry.function)


def add_model(entry: ModelEntry) -> None:
    """Raises DuplicateName if the name is taken."""
    _add(_models, entry.name, "model", entry.name, entry, entry.cls)


def add_suite(name: str, entry: Any) -> None:
    """Raises DuplicateName if the name is taken."""
    _add(_suites, name, "suite", name, entry, type(entry))


def add_report(name: str, entry: Any) -> None:
    """Raises DuplicateName if the name is taken."""
    _add(_reports, name, "report", name, entry, entry)


def recurrence(name: str) -> Recurrence:
    """Raises UnknownName."""
    return _get("recurrence", recurrences(), name)


def recurrences() -> dict[str, Recurrence]:
    """All recurrences by name."""
    _discover("impls")
    return dict(_recurrences)


def model(name: str) -> ModelEntry:
    """Raises UnknownName."""
    return _get("model", models(), name)


def models() -> dict[str, ModelEntry]:
    """All models by name, in alphabetical order. Imports every model file (and so torch)."""
    _discover("impls")
    for module in _submodules(MODELS):
        _import_once(module)
    return dict(sorted(_models.items()))


def recurrence_of(name: str) -> str:
    """The recurrence that a model lowers to; a recurrence's name is its own. Raises UnknownName."""
    return _owners(name)[-1]


def backend(of: str, name: str) -> Backend:
    """The backend `name` of a recurrence or model; imports its file if it was not yet imported.

    A model falls back to its recurrence's backends.

    Raises:
        UnknownName: neither has a backend of that name.
    """
    _discover("impls")
    for owner in _owners(of):
        if (owner, name) not in _backends and name in _backend_files(owner):
            _import_once(f"{IMPLS}.{owner}.{name}")
        if (owner, name) in _backends:
            return _backends[owner, name]
    raise UnknownName(f"backend of {of}", name, backend_names(of))


def backend_names(of: str) -> list[str]:
    """Names of all backends of a recurrence or model, without importing their files."""
    _discover("impls")
    names: set[str] = set()
    for owner in _owners(of):
        if f"{IMPLS}.{owner}.peers" in _submodules(f"{IMPLS}.{owner}"):
            _import_once(f"{IMPLS}.{owner}.peers")
        names |= _backend_files(owner) | {name for of_, name in _backends if of_ == owner}
    return sorted(names)


def backends(of: str) -> list[Backend]:
    """All backends of a recurrence or model that can be imported here, by name."""
    found = []
    for name in backend_names(of):
        try:
            found.append(backend(of, name))
        except ImportError:
            continue  # reported by `import_problem`
    return found


def import_problem(of: str, name: str) -> str | None:
    """Why a backend's file cannot be imported here (a missing package), or None."""
    try:
        backend(of, name)
    except ImportError as error:
        return f"needs {error.name or error}, which cannot be imported"
    return None


def all_backend_names() -> list[str]:
    """Names of the backends of all recurrences and models."""
    owners = {*recurrences(), *(of for of, _ in _backends)}
    return sorted({name for owner in owners for name in backend_names(owner)})


def suite(name: str) -> Any:
    """Raises UnknownName."""
    return _get("suite", suites(), name)


def suites() -> dict[str, Any]:
    """All suites by name."""
    _discover("suites")
    return dict(sorted(_suites.items()))


def report(name: str) -> Any:
    """Raises UnknownName."""
    return _get("report format", reports(), name)


def reports() -> dict[str, Any]:
    """All report formats by name."""
    _discover("reports")
    return dict(sorted(_reports.items()))


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Import a plug-in file, which registers what it brings. This runs the file's code.

    Raises:
        PluginError: the file is missing or raises on import.
        DuplicateName: it registers a name that is taken.
    """
    file = Path(path).resolve()
    if file in _plugins:
        return
    if not file.is_file():
        raise PluginError(f"plug-in {path}: no such file")
    _discover("impls")
    name = f"ssmperf_plugin_{file.stem}_{len(_plugins)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"plug-in {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SsmperfError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise PluginError(f"plug-in {path}: {type(error).__name__}: {error}") from error
    _plugins.append(file)


def plugins() -> list[Path]:
    """The plug-in files loaded so far, for a worker to load them too."""
    return list(_plugins)


def _get(kind: str, table: dict[str, E], name: str) -> E:
    if name not in table:
        raise UnknownName(kind, name, table)
    return table[name]


def _owners(of: str) -> list[str]:
    """A model's own backends come before its recurrence's."""
    if of in recurrences():
        return [of]
    entries = models()
    if of in entries:
        return [of, entries[of].recurrence]
    raise UnknownName("model or recurrence", of, {*entries, *_recurrences})


def _submodules(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [f"{package}.{info.name}" for info in pkgutil.iter_modules(spec.submodule_search_locations)]


def _backend_files(owner: str) -> set[str]:
    if not owner.isidentifier() or importlib.util.find_spec(IMPLS) is None:
        return set()
    if owner == "models":
        return set()
    names = {module.rpartition(".")[2] for module in _submodules(f"{IMPLS}.{owner}")}
    return {name for name in names - set(NOT_BACKENDS) if not name.startswith("_")}


def _discover(room: str) -> None:
    """Import a built-in room's direct members, and installed plug-ins of its entry-point group, once."""
    if room in _done:
        return
    _done.add(room)
    try:
        for module in _submodules(f"ssmperf.{room}"):
            if module != MODELS:
                _import_once(module)
        for point in _entry_points(f"ssmperf.{room}"):
            _load_entry_point(point)
    except BaseException:
        _done.discard(room)
        raise


def _entry_points(group: str) -> Iterator[importlib.metadata.EntryPoint]:
    yield from importlib.metadata.entry_points(group=group)


def _load_entry_point(point: importlib.metadata.EntryPoint) -> None:
    try:
        loaded = point.load()
        if isinstance(loaded, Callable):  # type: ignore[arg-type]
            loaded()
    except SsmperfError:
        raise
    except Exception as error:
        raise PluginError(f"installed plug-in {point.value}: {type(error).__name__}: {error}") from error


def _import_once(module: str) -> None:
    if module not in sys.modules:
        importlib.import_module(module)


def check_backend_names(names: list[str]) -> None:
    """Raises UnknownName for a name that is no backend of anything."""
    known = all_backend_names()
    for name in names:
        if name not in known:
            raise UnknownName("backend", name, known)
    if not names:
        raise UsageError(f"no backend named (known: {', '.join(known)})")
