"""Registration, discovery and look-up of everything that has a name: see `KINDS`.

Built-in folders, installed plug-ins (entry points) and plug-in files all come through here. A backend
file of a built-in recurrence is named after its backend and imported when that backend is looked up.
"""

from __future__ import annotations

import contextlib
import functools
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
    from ssmperf.checks import Analytic, Identity
    from ssmperf.recurrence import Backend, Family, ModelEntry, Recurrence

OWN = "ssmperf."  # begins the module names of what is built in
IMPLS = "ssmperf.impls"
MODELS = "ssmperf.impls.models"
IDENTITIES = "ssmperf.impls.identities"
NOT_BACKENDS = ("common", "peers", "analytic")  # shared code, several backends in one, closed forms
KINDS = ("recurrence", "backend", "model", "family", "analytic", "identity", "suite", "report")
PLUGIN = "ssmperf_plugin_"  # begins the module names of plug-in files
ROOMS = ("impls", "suites", "reports")
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
MODEL_NAME = re.compile(r"[a-z][a-z0-9_]*(:[0-9a-z:.-]+)?")  # such as lcsm:e-o-s-a:0.5

E = TypeVar("E")

_tables: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}  # by label: a name, or "of/name"
_origins: dict[tuple[str, str], Origin] = {}
_done: set[str] = set()
_plugins: list[Path] = []
_additions = [0]  # so many calls of `add`
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


def add(kind: str, name: str, entry: Any, code: Any, *, of: str | None = None) -> None:
    """Register an entry that the function or class `code` defines, under its name among those of its owner.

    Raises:
        DuplicateName: the name is taken, be it by a built-in backend file that was not yet imported.
        UsageError: it is no name.
    """
    form = MODEL_NAME if kind == "model" else IDENTIFIER
    if not isinstance(name, str) or not form.fullmatch(name):
        raise UsageError(f"{kind} name {name!r} is no lower snake case name ({form.pattern})")
    label = f"{of}/{name}" if of else name
    module, defined = getattr(code, "__module__", None) or "?", getattr(code, "__qualname__", "?")
    built_in = f"{IMPLS}.{of}"
    if kind == "backend" and of and name in _backend_files(of) and not module.startswith(built_in):
        raise DuplicateName(f"backend {label} is already registered by {built_in}.{name}")
    if label in _tables[kind]:
        known = _origins[kind, label]
        raise DuplicateName(f"{kind} {label} is already registered by {known.module}.{known.name}")
    _additions[0] += 1
    _tables[kind][label] = entry
    _origins[kind, label] = Origin(module, defined, _loading[-1] if _loading else None)


def state() -> tuple[int, int, int]:
    """Another value after each change of what is registered."""
    return id(_tables), len(_origins), _additions[0]


def recurrence(name: str) -> Recurrence:
    """Raises UnknownName."""
    return _get("recurrence", recurrences(), name)


def recurrences() -> dict[str, Recurrence]:
    """All recurrences by name."""
    _discover("impls")
    return dict(_tables["recurrence"])


def model(name: str) -> ModelEntry:
    """A model, or the member of a family that `family:parameters` names.

    Raises:
        UnknownName: no such model or family.
        UsageError: the family has no such member; its message says what is valid.
    """
    known = models()
    if name in known:
        return known[name]
    family: Family | None = _tables["family"].get(name.partition(":")[0])
    if ":" in name and family is not None:
        return family.member(name)
    plain = [other for other in known if ":" not in other]
    raise UnknownName("model", name, [*plain, *(f"{other}:…" for other in sorted(_tables["family"]))])


def models() -> dict[str, ModelEntry]:
    """All models by name, in alphabetical order. Imports every model file (and so torch)."""
    _discover("impls")
    for module in _submodules(MODELS):
        _import_once(module)
    return dict(sorted(_tables["model"].items()))


def recurrence_of(name: str) -> str:
    """The recurrence that a model lowers to; a recurrence's name is its own. Raises UnknownName."""
    return _owners(name)[-1]


def analytics(of: str) -> dict[str, Analytic]:
    """The closed-form cases of a recurrence by name."""
    if f"{IMPLS}.{of}.analytic" in _submodules(f"{IMPLS}.{of}"):
        _import_once(f"{IMPLS}.{of}.analytic")
    return {entry.name: entry for entry in _tables["analytic"].values() if entry.of == of}


def identities() -> dict[str, Identity]:
    """All identities between models and recurrences by name."""
    for module in _submodules(IDENTITIES):
        _import_once(module)
    return dict(sorted(_tables["identity"].items()))


def backend(of: str, name: str) -> Backend:
    """The backend `name` of a recurrence or model; imports its file if it was not yet imported.

    A model falls back to its recurrence's backends.

    Raises:
        UnknownName: neither has a backend of that name.
    """
    known = backend_names(of)  # this imports peers.py, whose backends have no file of their own
    for owner in _owners(of):
        label = f"{owner}/{name}"
        if label not in _tables["backend"] and name in _backend_files(owner):
            _import_once(f"{IMPLS}.{owner}.{name}")
        if label in _tables["backend"]:
            found: Backend = _tables["backend"][label]
            return found
    raise UnknownName(f"backend of {of}", name, known)


def backend_names(of: str) -> list[str]:
    """Names of all backends of a recurrence or model, without importing their files."""
    _discover("impls")
    names: set[str] = set()
    for owner in _owners(of):
        if owner.isidentifier() and f"{IMPLS}.{owner}.peers" in _submodules(f"{IMPLS}.{owner}"):
            _import_once(f"{IMPLS}.{owner}.peers")
        names |= _backend_files(owner) | {
            entry.name for entry in _tables["backend"].values() if entry.of == owner
        }
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
    owners = {*recurrences(), *(entry.of for entry in _tables["backend"].values())}
    return sorted({name for owner in owners for name in backend_names(owner)})


def suite(name: str) -> Any:
    """Raises UnknownName."""
    return _get("suite", suites(), name)


def suites() -> dict[str, Any]:
    """All suites by name."""
    _discover("suites")
    return dict(sorted(_tables["suite"].items()))


def report(name: str, of: str | None = None) -> Any:
    """Raises UnknownName."""
    return _get("report format", reports(of), name)


def reports(of: str | None = None) -> dict[str, Any]:
    """All report formats of runs, or of what else there are reports of, by name."""
    _discover("reports")
    split = {label: label.rpartition("/") for label in sorted(_tables["report"])}
    return {name: _tables["report"][label] for label, (own, _, name) in split.items() if own == (of or "")}


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
    if origin is None or origin.loaded_by or origin.module.startswith(OWN) or _installed(origin.module):
        return None
    file = str(origin.file) if origin.file else "FILE, a file that registers it"
    return f"the {kind} {label} is registered in this process only: for its workers, pass plugin={file}"


def _share(file: Path) -> bool:
    """Mark what a file has registered in this process as known to the workers; False if it is nothing."""
    own = [key for key, origin in _origins.items() if not origin.loaded_by and origin.file == file]
    for key in own:
        _origins[key] = replace(_origins[key], loaded_by=str(file))
    return bool(own)


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
    foreign = {key: _origins[key] for key in keys if not (_origins[key].loaded_by or "").startswith(OWN)}
    for kind, label in foreign:
        del _origins[kind, label]
        del _tables[kind][label]
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
    try:
        return [of, model(of).recurrence]
    except UnknownName:
        raise UnknownName("model or recurrence", of, {*models(), *recurrences()}) from None


@functools.cache
def _submodules(package: str) -> list[str]:
    """Full names of a built-in package's modules; folders are read once a process."""
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
            if module != MODELS and not module.rpartition(".")[2].startswith("_"):
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
