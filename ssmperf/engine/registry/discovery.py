"""Import the code that registers itself: built-in packages, installed plug-ins (entry points), plug-in files.

The file of a built-in backend has the backend's name, and is imported when the backend is looked up. A file
that registers several backends is imported before any backend of its recurrence is looked up or listed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.processes import surroundings
from ssmperf.engine.registry import tables
from ssmperf.errors import PluginError, SsmperfError, UnknownName

IMPLS = "ssmperf.impls"
MODELS = "ssmperf.impls.models"
IDENTITIES = "ssmperf.impls.identities"
SUITES = "ssmperf.suites"
TASKS = f"{SUITES}.tasks"
CLAIMS = f"{SUITES}.claims"
PEERS = "peers"
SEVERAL = ("scans", PEERS)  # files that register several backends each
NOT_BACKENDS = ("common", *SEVERAL, "analytic")  # files that are named after no backend
INSTALLED = "installed plug-in "  # begins the registry's name for an entry point's target
PLUGIN = "ssmperf_plugin_"  # prefix of the module names of plug-in files
BEING_LOADED = "SSMPERF_BEING_LOADED"  # variable with the plug-in files that are being loaded, one per line
BUILT_IN = ("impls", "suites", "reports")  # packages beside this one
GROUPS = (*BUILT_IN, "claims")  # of entry points

PACKAGE = Path(__file__).parents[2]

plugin_files: list[Path] = []
_discovered: set[str] = set()  # packages of which all is imported
_begun: set[str] = set()  # and those of which something is
_importing = threading.RLock()
_takes_installed = True


class BesideThePackage:
    """Finds impls, suites and reports of a checkout beside its package, as `sys.meta_path` asks.

    An editable install would give those of the checkout that is installed, whose core may be another one.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        parent, _, last = name.rpartition(".")
        if parent != PACKAGE.name or last not in BUILT_IN:
            return None
        if not (PACKAGE.parent / "pyproject.toml").is_file():
            return None
        folder = PACKAGE.parent / last
        places = [str(folder)]
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=places
        )


sys.meta_path.insert(0, BesideThePackage)


def discover(package: str) -> None:
    """Import what registers itself in a built-in package, or claims, and the plug-ins of its group, once."""
    if package in _discovered:
        return
    with _importing:
        if package in _begun:  # in this thread, by what it imports
            return
        _begun.add(package)
        try:
            for module in _registering(package):
                import_once(module)
            for point in _entry_points(f"ssmperf.{package}"):
                _load_entry_point(point)
            _discovered.add(package)
        except BaseException:
            _begun.discard(package)
            raise


def import_built_in() -> None:
    """Import the built-in models, backends and suites without installed plug-ins, for processes to fork."""
    for package in ("impls", "suites"):
        for module in _registering(package):
            import_once(module)
    import_all(MODELS)


def take_installed(*, taken: bool) -> None:
    """Load installed plug-ins in this process from now on, or none."""
    global _takes_installed
    _takes_installed = taken
    for package in GROUPS if taken else ():
        _discovered.discard(package)
        _begun.discard(package)


def has_installed() -> bool:
    """Tell whether there are installed plug-ins, without importing them."""
    return any(True for group in GROUPS for _ in _entry_points(f"ssmperf.{group}"))


def import_all(package: str) -> None:
    """Import the members of a built-in package, once: plans ask for them many thousand times."""
    if package not in _discovered:
        for module in submodules(package):
            import_once(module)
        _discovered.add(package)


@functools.cache
def submodules(package: str) -> list[str]:
    """List the full names of a built-in package's modules. Folders are read once per process."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [
        f"{package}.{info.name}"
        for info in pkgutil.iter_modules(spec.submodule_search_locations)
        if not info.name.startswith("_")
    ]


def _registering(package: str) -> list[str]:
    """List the modules that register what a group has: direct members, of reports those in every folder."""
    if package == "reports":
        return _tree(f"ssmperf.{package}")
    direct = submodules(CLAIMS if package == "claims" else f"ssmperf.{package}")
    return [module for module in direct if module != MODELS]


def _tree(package: str) -> list[str]:
    """List a package's modules and those of its packages; a plain module has none."""
    return [module for direct in submodules(package) for module in (direct, *_tree(direct))]


@functools.cache
def backend_files(owner: str) -> frozenset[str]:
    """List the backends that have their own file in a recurrence's folder, which is read once per process."""
    if owner == "models" or not owner.isidentifier() or importlib.util.find_spec(IMPLS) is None:
        return frozenset()
    return frozenset(
        {module.rpartition(".")[2] for module in submodules(f"{IMPLS}.{owner}")} - set(NOT_BACKENDS)
    )


def import_several(owner: str) -> None:
    """Import the files of a recurrence that register several backends each, once."""
    if not owner.isidentifier() or importlib.util.find_spec(IMPLS) is None:
        return
    present = submodules(f"{IMPLS}.{owner}")
    for name in SEVERAL:
        if f"{IMPLS}.{owner}.{name}" in present:
            import_once(f"{IMPLS}.{owner}.{name}")


def import_once(module: str) -> None:
    """Import a built-in module; everything that it registers counts as built in."""
    with _importing:  # a module is in `sys.modules` before it has registered anything
        if module in sys.modules:
            return
        tables.loading.append(module)
        try:
            importlib.import_module(module)
        finally:
            tables.loading.pop()


def load_plugin_apart(path: str | os.PathLike[str]) -> None:
    """Import a plug-in file in a thread of its own, which alone keeps a niceness that the file sets.

    Raises:
        PluginError, DuplicateName, UnknownName: as `load_plugin`.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(load_plugin, path).result()


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Import a plug-in file, which registers its contents. This runs the file's code.

    A file that has already registered something in this process, such as the running script, is not run
    again, but workers will load it. One that an installed package has brought, as this file or as a copy of
    it, is not run again either. A file that fails leaves nothing registered. Modules beside it are found.

    Raises:
        PluginError: the file is missing, raises or exits on import, or starts ssmperf with itself as plug-in.
        DuplicateName: the file registers a name that is taken.
        UnknownName: it registers something of a recurrence or model that nothing so far has registered.
    """
    try:
        file = Path(path).resolve()
        exists = file.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, too long a name, a zero byte
        raise PluginError(f"plug-in {path}: {getattr(error, 'strerror', None) or error}") from error
    if file in plugin_files:
        return
    if not exists:
        raise PluginError(f"plug-in {path}: no such file")
    if str(file) in os.environ.get(BEING_LOADED, "").split("\n"):
        raise PluginError(f"plug-in {path}: it starts ssmperf with itself as a plug-in while it is loaded")
    discover("impls")
    if _installed_copy(file):
        return
    if _share_with_workers(file):
        plugin_files.append(file)
        return
    numbered = (f"{PLUGIN}{file.stem}_{number}" for number in itertools.count(len(plugin_files)))
    name = next(each for each in numbered if each not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"plug-in {path}: not a Python file")
    surroundings.open_folder(file)
    with _all_or_nothing(f"plug-in {path}"), _noted_in_environment(file):
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        before = set(tables.origins)
        spec.loader.exec_module(module)
        _check_owners(set(tables.origins) - before)
    plugin_files.append(file)


def _check_owners(added: set[tuple[str, str]]) -> None:
    """Raise UnknownName for a model of no recurrence, and for a backend of no recurrence or model."""
    for kind, label in sorted(added):
        entry = tables.entries[kind][label]
        if kind == "model" and entry.recurrence not in tables.entries["recurrence"]:
            raise UnknownName(f"recurrence of model {label}", entry.recurrence, tables.entries["recurrence"])
        if kind == "backend" and entry.of not in tables.entries["recurrence"]:
            import_all(MODELS)
            base = entry.of.partition(":")[0]
            known = {name for table in ("recurrence", "model", "family") for name in tables.entries[table]}
            if base not in known:
                raise UnknownName(f"recurrence or model of backend {entry.name}", entry.of, known)


def plugins() -> tuple[str, ...]:
    """List the plug-in files loaded so far, so that a worker can load them too."""
    return tuple(map(str, plugin_files))


def hidden_from_workers(kind: str, label: str) -> str | None:
    """Say why a worker process cannot find a registered entry, or return None if it can.

    kind, label: those of the entry, such as ("backend", "scan/blelloch") or ("model", "gla").
    """
    origin = _origin(kind, label)
    if origin is None or origin.loaded_by or _built_in(origin.module) or _installed(origin.module):
        return None
    file = str(origin.file) if origin.file else "FILE, a file that registers it"
    return f"the {kind} {label} is registered in this process only: for its workers, pass plugin={file}"


def foreign(kind: str, label: str) -> bool:
    """Tell whether an entry is other people's code: from a plug-in, or around a kernel of another package."""
    origin = _origin(kind, label)
    return origin is not None and (not _built_in(origin.module) or origin.module.endswith(f".{PEERS}"))


def from_outside(kind: str, label: str) -> bool:
    """Tell whether an entry is not built in: from a plug-in file, or from an installed one."""
    origin = _origin(kind, label)
    return origin is not None and not _built_in(origin.module)


def from_peers(label: str) -> bool:
    """Tell whether a backend, OWNER/NAME, is built in around a kernel of another package."""
    origin = tables.origins.get(("backend", label))
    return origin is not None and _built_in(origin.module) and origin.module.endswith(f".{PEERS}")


def plugins_of(kind: str, label: str) -> tuple[str, ...]:
    """List the plug-in files that must be loaded for an entry: none for a built-in or installed one."""
    origin = _origin(kind, label)
    if origin is None or _built_in(origin.module):
        return ()
    # an entry of a module that a plug-in has imported could come from any of them
    own = tuple(str(file) for file in plugin_files if file == origin.file)
    return own or plugins()


def file_of(kind: str, label: str) -> Path | None:
    """Find the file in which an entry is defined that is not built in; None for a built-in one."""
    origin = _origin(kind, label)
    return None if origin is None or _built_in(origin.module) else origin.file


def forget(keys: set[tuple[str, str]], modules: set[str]) -> None:
    """Drop registered entries and the modules that defined one; built-in entries stay."""
    foreign = {key: tables.origins[key] for key in keys if not _built_in(tables.origins[key].loaded_by or "")}
    for kind, label in foreign:
        del tables.origins[kind, label]
        del tables.entries[kind][label]
    for module in modules:
        if module.startswith(PLUGIN) or module in {origin.module for origin in foreign.values()}:
            del sys.modules[module]


def _share_with_workers(file: Path) -> bool:
    """Mark the entries that a file registered in this process as known to workers; False without any."""
    own = [key for key, origin in tables.origins.items() if not origin.loaded_by and origin.file == file]
    for key in own:
        tables.origins[key] = replace(tables.origins[key], loaded_by=str(file))
    return bool(own)


def _installed_copy(file: Path) -> bool:
    """Tell whether an entry point has loaded this very file, or one of the same name and contents."""
    loaded = {
        origin.file
        for origin in tables.origins.values()
        if (origin.loaded_by or "").startswith(INSTALLED) and origin.file and origin.file.name == file.name
    }
    return any(each == file or each.read_bytes() == file.read_bytes() for each in loaded)


def _origin(kind: str, label: str) -> tables.Definition | None:
    """Find where an entry is defined: one with options or a code, by the part before the colon."""
    base = label.partition(":")[0]
    found = tables.origins.get((kind, label)) or tables.origins.get((kind, base))
    return found or (tables.origins.get(("family", base)) if kind == "model" else None)


def _built_in(module: str) -> bool:
    return module.startswith("ssmperf.")


def _installed(module: str) -> bool:
    points = [point for group in GROUPS for point in _entry_points(f"ssmperf.{group}")]
    return any(module == point.module or module.startswith(f"{point.module}.") for point in points)


@contextlib.contextmanager
def _all_or_nothing(source: str) -> Iterator[None]:
    """Import foreign code; if that fails, forget its registrations and the modules that made them.

    Raises:
        PluginError: the code raised or exited. Errors of ssmperf and a lack of memory pass unchanged.
    """
    modules, known, discovered = set(sys.modules), set(tables.origins), set(_discovered)
    loaded = len(plugin_files)
    tables.loading.append(source)
    try:
        with surroundings.watched():
            yield
    except BaseException as error:
        forget(set(tables.origins) - known, set(sys.modules) - modules)
        _discovered.intersection_update(discovered)
        del plugin_files[loaded:]
        if isinstance(error, (SsmperfError, KeyboardInterrupt, MemoryError)):
            raise
        text = f"it exited ({error})" if isinstance(error, SystemExit) else failure_of(error).reason
        raise PluginError(f"{source}: {text}") from error
    finally:
        tables.loading.pop()


@contextlib.contextmanager
def _noted_in_environment(file: Path) -> Iterator[None]:
    """Let this process and those that the block starts know that a plug-in is being loaded."""
    before = os.environ.get(BEING_LOADED)
    os.environ[BEING_LOADED] = str(file) if before is None else f"{before}\n{file}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BEING_LOADED]
        else:
            os.environ[BEING_LOADED] = before


def _entry_points(group: str) -> Iterator[importlib.metadata.EntryPoint]:
    if _takes_installed:
        yield from importlib.metadata.entry_points(group=group)


def _load_entry_point(point: importlib.metadata.EntryPoint) -> None:
    with _all_or_nothing(f"{INSTALLED}{point.value}"):
        loaded = point.load()
        if callable(loaded):
            loaded()
