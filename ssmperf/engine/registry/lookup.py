"""Look up registered things by name, importing their modules first if necessary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.registry import tables
from ssmperf.engine.registry.checks import Analytic, Claim, Identity
from ssmperf.engine.registry.declarations import Backend, Family, ModelEntry, Recurrence, check_names
from ssmperf.engine.registry.discovery import (
    IDENTITIES,
    IMPLS,
    MODELS,
    TASKS,
    backend_files,
    discover,
    from_peers,
    import_all,
    import_once,
    import_several,
    submodules,
)
from ssmperf.engine.registry.options import configured, read_options
from ssmperf.errors import DuplicateName, UnknownName, UsageError


def recurrence(name: str) -> Recurrence:
    """Look up a recurrence. Raises UnknownName."""
    found: Recurrence = tables.get("recurrence", recurrences(), name)
    return found


def recurrences() -> dict[str, Recurrence]:
    """List all recurrences by name."""
    discover("impls")
    return dict(tables.entries["recurrence"])


def model(name: str) -> ModelEntry:
    """Look up a model, a model with options (`pese_lr:n=8`), or a member of a family (`lcsm:1-1-1-0`).

    Raises:
        UnknownName: no such model, option or family.
        UsageError: an illegal value, or no such member of the family; the message says what is valid.
    """
    known = _models()
    if name in known:
        return known[name]
    base, colon, text = name.partition(":")
    family: Family | None = tables.entries["family"].get(base)
    if colon and family is not None:
        return _member(family, name)
    if colon and base in known:
        return _configured(known[base], text)
    plain = [other for other in sorted(known) if ":" not in other]
    raise UnknownName("model", name, [*plain, *(f"{other}:…" for other in sorted(tables.entries["family"]))])


@functools.lru_cache(maxsize=256)  # equal names give one class
def _configured(entry: ModelEntry, text: str) -> ModelEntry:
    return configured(entry, text)


def add_member(family: Family, name: str) -> None:
    """Register a member of a family, which is then listed. Raises UsageError as `Family.make`."""
    entry = _member(family, name)
    tables.add("model", name, entry, entry.cls)


@functools.lru_cache(maxsize=256)  # equal names give one class
def _member(family: Family, name: str) -> ModelEntry:
    tables.check_name("model", name)
    entry = family.make(name)
    entry.cls.name = name  # type: ignore[attr-defined]
    return entry


def add_model(entry: ModelEntry) -> None:
    """Register a model. Raises DuplicateName, or UsageError where its recurrence has no such gate."""
    known = tables.entries["recurrence"].get(entry.recurrence)
    if known is not None:
        kinds = (entry.gate, entry.cost_gate or entry.gate)
        check_names(f"model {entry.name!r}", "gate", kinds, known.gate_kinds)
    tables.add("model", entry.name, entry, entry.cls)


def models() -> dict[str, ModelEntry]:
    """List all models by name, in alphabetical order. Imports every model file, and so torch."""
    return dict(sorted(_models().items()))


def _models() -> dict[str, ModelEntry]:
    """Give the table of models itself, once their files are imported: plans look up many thousand names."""
    discover("impls")
    import_all(MODELS)
    return tables.entries["model"]


def shapes(entry: ModelEntry, preset: str) -> tuple[Shape, ...]:
    """List a model's own shapes of a preset, or those of its recurrence. Raises UsageError."""
    own = entry.presets or recurrence(entry.recurrence).presets
    if preset not in own:
        raise UsageError(f"unknown preset {preset!r} (valid: {', '.join(own)})")
    return own[preset]


def recurrence_of(name: str) -> str:
    """Name the recurrence that a model lowers to; a recurrence's name is its own. Raises UnknownName."""
    return _owners(name)[-1]


def analytics(of: str) -> dict[str, Analytic]:
    """List the closed forms of a recurrence by name."""
    if f"{IMPLS}.{of}.analytic" in submodules(f"{IMPLS}.{of}"):
        import_once(f"{IMPLS}.{of}.analytic")
    return {entry.name: entry for entry in tables.entries["analytic"].values() if entry.of == of}


def identities() -> dict[str, Identity]:
    """List all identities between models and recurrences by name."""
    import_all(IDENTITIES)
    return dict(sorted(tables.entries["identity"].items()))


def add_backend(entry: Backend, code: Any) -> None:
    """Register a backend of a recurrence or model.

    Raises:
        DuplicateName: the name is taken, also by a built-in backend file that has not been imported yet.
        UsageError: the recurrence has no such kind of gate, or gives other operands than the function takes.
    """
    label, built_in = f"{entry.of}/{entry.name}", f"{IMPLS}.{entry.of}"
    module = getattr(code, "__module__", None) or "?"
    if entry.name in backend_files(entry.of) and not module.startswith(built_in):
        raise DuplicateName(f"backend {label} is already registered by {built_in}.{entry.name}")
    own = tables.entries["model"].get(entry.of)
    known = tables.entries["recurrence"].get(own.recurrence if own else entry.of)
    if known is not None:
        check_names(f"backend {entry.name!r}", "gates", entry.gates or (), known.gate_kinds)
        _check_parameters(entry, known)
    if not module.startswith(built_in):
        import_several(entry.of)
    tables.add("backend", entry.name, entry, code, of=entry.of)


def _check_parameters(entry: Backend, recurrence: Recurrence) -> None:
    """Raise UsageError where a backend cannot be called with the recurrence's operands, by their names."""
    try:
        own = inspect.signature(entry.function).parameters.values()
    except (TypeError, ValueError):  # a function in C tells no parameters
        return
    open_ended = {each.name for each in own if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
    needed = [each.name for each in own if each.default is each.empty and each.name not in open_ended]
    takes = {each.name for each in own}
    if any(each.kind is each.VAR_KEYWORD for each in own):
        takes |= set(recurrence.required)
    lacking = [f"takes no {name}" for name in recurrence.required if name not in takes]
    lacking += [f"needs {name}" for name in needed if name not in recurrence.tensors]
    if lacking:
        raise UsageError(
            f"backend {entry.name!r}: its function {lacking[0]}; "
            f"{recurrence.name} gives, by name, {', '.join(recurrence.tensors)}"
        )


def backend(of: str, name: str) -> Backend:
    """Look up a backend of a recurrence or model, importing its file if necessary.

    A model falls back to its recurrence's backends.

    Raises:
        UnknownName: neither has a backend of that name.
    """
    discover("impls")
    owners = _owners(of)
    for owner in owners:
        import_several(owner)
    for owner in owners:
        label = f"{owner}/{name}"
        if label not in tables.entries["backend"] and name in backend_files(owner):
            import_once(f"{IMPLS}.{owner}.{name}")
        if label in tables.entries["backend"]:
            found: Backend = tables.entries["backend"][label]
            return found
    raise UnknownName(f"backend of {of}", name, backend_names(of))


def backend_names(of: str) -> list[str]:
    """List the backends of a recurrence or model; only files that register several are imported."""
    discover("impls")
    names: set[str] = set()
    for owner in _owners(of):
        import_several(owner)
        registered = {entry.name for entry in tables.entries["backend"].values() if entry.of == owner}
        names |= backend_files(owner) | registered
    return sorted(names)


def is_peer(of: str, name: str) -> bool:
    """Tell whether a listed backend is a built-in one around other people's kernel."""
    return any(from_peers(f"{owner}/{name}") for owner in _owners(of))


def backends(of: str) -> list[Backend]:
    """List the backends of a recurrence or model that can be imported here, in alphabetical order."""
    found = []
    for name in backend_names(of):
        try:
            found.append(backend(of, name))
        except ImportError:
            continue  # reported by `import_problem`
    return found


def import_problem(of: str, name: str) -> str | None:
    """Say why a backend's file cannot be imported here (a missing package), or return None."""
    try:
        backend(of, name)
    except ImportError as error:
        return f"needs {error.name or error}, which cannot be imported"
    return None


def all_backend_names() -> list[str]:
    """List the names of the backends of all recurrences and models."""
    owners = {*recurrences(), *(entry.of for entry in tables.entries["backend"].values())}
    return sorted({name for owner in owners for name in backend_names(owner)})


def check_backend_names(names: Iterable[str]) -> None:
    """Raise UnknownName for a name that is no backend of anything."""
    known = all_backend_names()
    for name in names:
        if name not in known:
            raise UnknownName("backend", name, known)


def suite(name: str) -> Any:
    """Look up a suite. Raises UnknownName."""
    return tables.get("suite", suites(), name)


def suites() -> dict[str, Any]:
    """List all suites by name."""
    discover("suites")
    return dict(sorted(tables.entries["suite"].items()))


def task(name: str) -> Any:
    """Make a task by its name, with options if it has some (`mqar:vocabulary=64`): a `ssmperf.Task`.

    Its name is the given one with its options in alphabetical order, without those at their default.

    Raises:
        UnknownName: there is no such task or option.
        UsageError: an option does not take the value, or the function makes no task.
    """
    base, colon, text = name.partition(":")
    make: Callable[..., Any] = tables.get("task", tasks(), base)
    full, options = read_options(base, make, text) if colon else (base, {})
    made = make(**options)
    if not callable(getattr(made, "sample", None)):
        raise UsageError(f"task {full}: {base} must return a ssmperf.Task, got {made!r:.80}")
    return replace(made, name=full)


def tasks() -> dict[str, Any]:
    """List the functions that make tasks, by name."""
    discover("suites")
    import_all(TASKS)
    return dict(sorted(tables.entries["task"].items()))


def claim(name: str) -> Claim:
    """Look up a claim of a paper. Raises UnknownName."""
    found: Claim = tables.get("claim", claims(), name)
    return found


def claims() -> dict[str, Claim]:
    """List all claims of papers by name."""
    discover("claims")
    return dict(sorted(tables.entries["claim"].items()))


def report(name: str, of: str | None = None) -> Any:
    """Look up a report format. Raises UnknownName."""
    return tables.get("report format", reports(of), name)


def reports(of: str | None = None) -> dict[str, Any]:
    """List all report formats by name: those of runs, or of another subject such as "comparison"."""
    discover("reports")
    split = {label: label.rpartition("/") for label in sorted(tables.entries["report"])}
    return {
        name: tables.entries["report"][label] for label, (own, _, name) in split.items() if own == (of or "")
    }


def _owners(of: str) -> list[str]:
    """List the owners of a model's backends: the model itself, then its recurrence."""
    discover("impls")
    if not isinstance(of, str):
        raise UnknownName("model or recurrence", of, {*models(), *recurrences()})
    if of in tables.entries["recurrence"]:
        return [of]
    base = of.partition(":")[0]
    if base not in _models() and base not in tables.entries["family"]:
        raise UnknownName("model or recurrence", of, {*models(), *recurrences()})
    return list(dict.fromkeys([of, base, model(of).recurrence]))
