"""Registration, discovery and look-up of recurrences, backends, models, suites and report formats.

Built-in folders, installed plug-ins (entry points) and plug-in files all come through here. A backend
file of a built-in recurrence is named after its backend and imported when that backend is looked up.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssmperf.errors import DuplicateName, PluginError, SsmperfError, UnknownName, UsageError

if TYPE_CHECKING:
    from ssmperf.recurrence import Backend, ModelEntry, Recurrence

IMPLS = "ssmperf.impls"
MODELS = "ssmperf.impls.models"
NOT_BACKENDS = ("common", "peers")  # files beside the backends: shared code, and several backends in one
PLUGIN = "ssmperf_plugin_"  # begins the module names of plug-in files
ROOMS = ("impls", "suites", "reports")
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
MODEL_NAME = re.compile(r"[a-z][a-z0-9_]*(:[0-9a-z:.-]+)?")  # such as lcsm:e-o-s-a:0.5

E = TypeVar("E")

_recurrences: dict[str, Recurrence] = {}
_backends: dict[tuple[str, str], Backend] = {}
_models: dict[str, ModelEntry] = {}
_suites: dict[str, Any] = {}
_reports: dict[str, Any] = {}
_origins: dict[tuple[str, str], Origin] = {}
_done: set[str] = set()
_plugins: list[Path] = []
_loading: list[str] = []  # what is being imported from here, innermost last: modules, plug-ins


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a registered thing is defined, and what was being loaded then (None: nothing from here)."""

    module: str
    name: str
    loaded_by: str | None

    @property
    def file(self) -> Path | None:
        path = getattr(sys.modules.get(self.module), "__file__", None)
        return Path(path).resolve() if path else None


def _add(table: dict[Any, E], key: Any, kind: str, label: str, entry: E, code: Any) -> None:
    if key in table:
        known = _origins[kind, label]
        raise DuplicateName(f"{kind} {label} is already registered by {known.module}.{known.name}")
    table[key] = entry
    module, name = getattr(code, "__module__", None) or "?", getattr(code, "__qualname__", "?")
    _origins[kind, label] = Origin(module, name, _loading[-1] if _loading else None)


def _check_name(kind: str, name: str, form: re.Pattern[str] = IDENTIFIER) -> None:
    if not isinstance(name, str) or not form.fullmatch(name):
        raise UsageError(f"{kind} name {name!r} is no lower snake case name ({form.pattern})")


def add_recurrence(entry: Recurrence) -> None:
    """Raises DuplicateName if the name is taken, UsageError if it is no name."""
    _check_name("recurrence", entry.name)
    _add(_recurrences, entry.name, "recurrence", entry.name, entry, entry.definition)


def add_backend(entry: Backend) -> None:
    """Raises DuplicateName if `of` has a backend of that name, an unimported built-in file included."""
    _check_name("backend", entry.name)
    module = getattr(entry.function, "__module__", "")
    built_in = f"{IMPLS}.{entry.of}.{entry.name}"
    if entry.name in _backend_files(entry.of) and not module.startswith(f"{IMPLS}.{entry.of}"):
        raise DuplicateName(f"backend {entry.of}/{entry.name} is already registered by {built_in}")
    _add(_backends, (entry.of, entry.name), "backend", f"{entry.of}/{entry.name}", entry, entry.function)


def add_model(entry: ModelEntry) -> None:
    """Raises DuplicateName if the name is taken, UsageError if it is no name."""
    _check_name("model", entry.name, MODEL_NAME)
    _add(_models, entry.name, "model", entry.name, entry, entry.cls)


def add_suite(name: str, entry: Any) -> None:
    """Raises DuplicateName if the name is taken, UsageError if it is no name."""
    _check_name("suite", name)
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

    A file that has registered something here already, such as the running script, is not run again: it
    is noted for the workers. A file that fails leaves nothing registered.

    Raises:
        PluginError: the file is missing, or raises or exits on import.
        DuplicateName: it registers a name that is taken.
    """
    file = Path(path).resolve()
    if file in _plugins:
        return
    if not file.is_file():
        raise PluginError(f"plug-in {path}: no such file")
    _discover("impls")
    if _share(file):
        _plugins.append(file)
        return
    name = f"{PLUGIN}{file.stem}_{len(_plugins)}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"plug-in {path}: not a Python file")
    with _all_or_nothing(f"plug-in {path}"):
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    _plugins.append(file)


def plugins() -> tuple[str, ...]:
    """The plug-in files loaded so far, for a worker to load them too."""
    return tuple(map(str, _plugins))


def loading() -> bool:
    """Whether a plug-in or a built-in file is being imported right now."""
    return bool(_loading)


def confined(kind: str, label: str) -> str | None:
    """Why a worker process does not find a registered thing, or None if it does.

    kind, label: as in errors, such as ("backend", "scan/blelloch") or ("model", "gla").
    """
    origin = _origins.get((kind, label))
    if origin is None or origin.loaded_by or _built_in(origin.module) or _installed(origin.module):
        return None
    file = str(origin.file) if origin.file else "FILE, a file that registers it"
    return f"the {kind} {label} is registered in this process only: for its workers, pass plugin={file}"


def _share(file: Path) -> bool:
    """Mark what a file has registered in this process as known to the workers; False if it is nothing."""
    own = [key for key, origin in _origins.items() if not origin.loaded_by and origin.file == file]
    for key in own:
        _origins[key] = replace(_origins[key], loaded_by=str(file))
    return bool(own)


def _built_in(module: str) -> bool:
    return module.startswith("ssmperf.")


def _installed(module: str) -> bool:
    points = [point for room in ROOMS for point in _entry_points(f"ssmperf.{room}")]
    return any(module == point.module or module.startswith(f"{point.module}.") for point in points)


@contextlib.contextmanager
def _all_or_nothing(what: str) -> Iterator[None]:
    """Import somebody's code; if that fails, forget what it registered, and the modules that did.

    Raises:
        PluginError: it raised or exited. Errors of this package pass as they are.
    """
    modules, known, done, loaded = set(sys.modules), set(_origins), set(_done), len(_plugins)
    _loading.append(what)
    try:
        yield
    except BaseException as error:
        _forget(set(_origins) - known, set(sys.modules) - modules)
        _done.intersection_update(done)
        del _plugins[loaded:]
        if isinstance(error, (SsmperfError, KeyboardInterrupt)):
            raise
        text = f"it exited ({error})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        raise PluginError(f"{what}: {text}") from error
    finally:
        _loading.pop()


def _forget(keys: set[tuple[str, str]], modules: set[str]) -> None:
    """Drop these entries and those of the modules that defined one; what is built in stays."""
    foreign = {key: _origins[key] for key in keys if not _built_in(_origins[key].loaded_by or "")}
    tables: dict[str, dict[Any, Any]] = {
        "recurrence": _recurrences,
        "model": _models,
        "suite": _suites,
        "report": _reports,
    }
    for kind, label in foreign:
        del _origins[kind, label]
        if kind == "backend":
            of, _, name = label.partition("/")
            del _backends[of, name]
        else:
            del tables[kind][label]
    for module in modules:
        if module.startswith(PLUGIN) or module in {origin.module for origin in foreign.values()}:
            del sys.modules[module]


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
    if owner == "models" or not owner.isidentifier() or importlib.util.find_spec(IMPLS) is None:
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
    with _all_or_nothing(f"installed plug-in {point.value}"):
        loaded = point.load()
        if callable(loaded):
            loaded()


def _import_once(module: str) -> None:
    if module not in sys.modules:
        _loading.append(module)
        try:
            importlib.import_module(module)
        finally:
            _loading.pop()


def check_backend_names(names: Iterable[str]) -> None:
    """Raises UnknownName for a name that is no backend of anything."""
    known = all_backend_names()
    for name in names:
        if name not in known:
            raise UnknownName("backend", name, known)
