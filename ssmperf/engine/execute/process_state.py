"""The state of a process that a backend can leave changed for its neighbours, as a snapshot.

Two snapshots, before a backend is imported and after its first call, show its left-overs. Most
differences are of kind `restart`: a fresh process cures them. A function mode that is left on, a replaced
clock and a replaced function of the suite are of kind `wrong`: measurements since cannot be trusted.

Libraries change a process honestly when they are loaded: they start pools of threads and helper processes,
add names to modules, add search paths at the end of a list, and torch's compiler sets variables of its own
and wraps three functions. That is no difference. A pool counts only if it keeps running while this process
sleeps.

Not read, because nothing shows it: callbacks of `atexit` and audit hooks, calls patched in machine code,
modes and hooks of other threads than the calling one, hooks on tensors, work left on a GPU, processes that
left this one's descendants, and code that puts everything back before the snapshot is taken.
"""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import operator
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from ssmperf.engine.cases.record import one_line
from ssmperf.engine.machine.activity import (
    MOST_IDLE_SHARE,
    PATIENCE_S,
    children,
    idle_share,
    number_of_threads,
    python_threads,
)
from ssmperf.engine.machine.process_settings import MODES, Extensible, Secret, Unreadable, read_settings
from ssmperf.engine.registry import tables

SUITE = ("cases", "registry", "plan", "layers", "operands", "machine", "judge", "measure", "runs", "tune",
         "execute", "trial", "processes")  # fmt: skip
CLOCKS = ("time", "torch.cuda", "torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph",
          "torch.cuda.graph")  # fmt: skip
# Functions that the suite reaches through other modules than those that its own modules import.
NEIGHBOURS = ("builtins", "torch", "torch.Tensor", "torch._C", "torch._C.TensorBase", "torch.autograd",
              "torch.autograd.graph", "torch.autograd.Function", "torch.nn.Module", "torch.nn.functional",
              "torch.random", "torch.linalg", "torch.fft", "torch.profiler")  # fmt: skip
# torch's compiler wraps them when it is first used.
WRAPPED_BY_TORCH = ("torch.manual_seed", "torch.nn.Module.__init__", "torch.nn.Module.__setstate__")
OWN_STATE = ("_layers", "_notes")  # of ssmperf.engine.tune.tables: which configurations are in force
OF_LIBRARIES = ("tqdm_monitor",)  # threads that libraries start at first use, and that sleep
_SHOWN = {int, float, str, torch.dtype, torch.device, type(None)}  # types whose values are part of a message
_COMPARED = {*_SHOWN, bool, Secret, Unreadable}  # types whose values are compared; all others are by identity
_CALLABLE = (FunctionType, type, ModuleType, property, staticmethod, classmethod, functools.cached_property,
             GetSetDescriptorType, MemberDescriptorType)  # fmt: skip
_CODE = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_CONSTANTS = (int, float, complex, str, bytes, tuple, frozenset)
_MISSING = object()


class DifferenceKind(enum.StrEnum):
    """The kind of a difference: a restart cures it, or the results since are wrong."""

    RESTART = "restart"
    WRONG = "wrong"


class Difference(str):
    """A difference between two snapshots in plain words, with its kind."""

    kind: DifferenceKind

    def __new__(cls, text: str, kind: DifferenceKind = DifferenceKind.RESTART) -> Difference:
        made = super().__new__(cls, text)
        made.kind = kind
        return made


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that `take` has read.

    settings: values by name in words; a value that is a mapping holds one per key.
    modules: objects that Python imports by the names of the modules that are watched.
    names: values of the names in those modules, and in their classes.
    codes: the code, defaults and closure of functions. entries: the fields of what is registered, by label.
    threads: names of Python's threads, by identifier. tasks: the number of all threads of this process.
    children: commands of the processes that this one has started, by process id.
    idle_share: CPU time used while asleep, as a share of one core, or None if it was not measured.
    """

    settings: Mapping[str, Any]
    modules: Mapping[str, Any]
    names: Mapping[str, Mapping[str, Any]]
    codes: Mapping[FunctionType, tuple[Any, ...]]
    entries: Mapping[str, tuple[Any, ...]]
    threads: Mapping[int, str]
    tasks: int
    children: Mapping[int, str]
    idle_share: float | None

    @classmethod
    def take(cls, *, idle_s: float | None = None, patience_s: float = PATIENCE_S) -> Snapshot:
        """Read the state of this process, from its main thread. The first call imports the whole suite.

        idle_s: also sleep this long and see whether something keeps running, again and again for at most
            `patience_s` while something does.
        """
        _import_suite()
        share = None if idle_s is None else idle_share(idle_s, patience_s)
        spaces = _watch()
        return cls(
            settings=read_settings(),
            modules={label: sys.modules.get(label) for label in spaces},
            names={
                label: {name: value for name, value in vars(each.space).items() if name not in OWN_STATE}
                for label, each in spaces.items()
            },
            codes=_codes(spaces.values()),
            entries=dict(_entries()),
            threads=python_threads(),
            tasks=number_of_threads(),
            children=children(os.getpid()),
            idle_share=share,
        )

    def difference(self, later: Snapshot) -> list[Difference]:
        """Name the differences of a later snapshot of the same process, the graver kind first."""
        found = [
            *self._settings(later),
            *self._replaced(later),
            *self._codes(later),
            *self._entries(later),
            *self._running(later),
        ]
        return sorted(dict.fromkeys(found), key=lambda each: each.kind is not DifferenceKind.WRONG)

    def _settings(self, later: Snapshot) -> Iterator[Difference]:
        for words, before in self.settings.items():
            after = later.settings[words]
            kind = DifferenceKind.WRONG if words in MODES else DifferenceKind.RESTART
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                for key in dict.fromkeys([*before, *after]):
                    old, new = before.get(key, _MISSING), after.get(key, _MISSING)
                    if not _same(old, new):
                        yield Difference(_change(f"{words} {key}", old, new), kind)
            elif not _same(before, after):
                yield Difference(_change(words, before, after), kind)

    def _replaced(self, later: Snapshot) -> Iterator[Difference]:
        for label, before in self.modules.items():
            if later.modules[label] is not before:
                yield Difference(f"the module {label} was replaced or removed", DifferenceKind.WRONG)
        for label, names in self.names.items():
            after = later.names[label]
            if names.keys() != after.keys() or not all(map(operator.is_, names.values(), after.values())):
                yield from _replaced_names(label, names, after)

    def _codes(self, later: Snapshot) -> Iterator[Difference]:
        for function, before in self.codes.items():
            after = later.codes.get(function)
            if after is not None and not _identical(before, after):
                where = f"{function.__module__}.{function.__qualname__}"
                yield Difference(f"the code of {where} was replaced", DifferenceKind.WRONG)

    def _entries(self, later: Snapshot) -> Iterator[Difference]:
        for label, before in self.entries.items():
            after = later.entries.get(label)
            if after is None:
                yield Difference(f"the {label} is registered no more", DifferenceKind.WRONG)
            elif not _identical(before, after):
                yield Difference(f"the {label} was changed after it was registered", DifferenceKind.WRONG)

    def _running(self, later: Snapshot) -> Iterator[Difference]:
        for identifier, name in later.threads.items():
            if identifier not in self.threads and name not in OF_LIBRARIES:
                yield Difference(f"the thread {one_line(name)!r} was left behind")
        for pid, command in later.children.items():
            if pid not in self.children:
                yield Difference(f"the process {one_line(command)[:60]!r} was left behind")
        if later.idle_share is not None and later.idle_share > MOST_IDLE_SHARE:
            threads = f"{later.tasks} threads, {self.tasks} before"
            yield Difference(f"a thread keeps running ({later.idle_share:.0%} CPU while idle; {threads})")


def _replaced_names(label: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Compare the values of the names in one module or class."""
    suite = label.startswith("ssmperf.")

    def kind(name: str) -> DifferenceKind:
        return (
            DifferenceKind.WRONG
            if suite or label in CLOCKS or name in _used_names()
            else DifferenceKind.RESTART
        )

    for name, old in before.items():
        new = after.get(name, _MISSING)
        if (
            new is old
            or not _counts(old, suite=suite)
            or _equal(old, new)
            or _by_torch(f"{label}.{name}", new)
        ):
            continue
        yield Difference(f"{label}.{name} was {'removed' if new is _MISSING else 'replaced'}", kind(name))
    hidden = _hidden_names(_spaces[label].space) if suite or isinstance(_spaces[label].space, type) else set()
    for name in (after.keys() - before.keys()) & hidden:
        yield Difference(f"{label}.{name} hides the former {name}", kind(name))


def _hidden_names(space: Any) -> set[str]:
    """List the names that a module finds among the builtins, or a class in its bases."""
    if not isinstance(space, type):
        return set(vars(builtins))
    return {name for base in space.__mro__[1:] for name in vars(base)}


def _counts(value: Any, *, suite: bool) -> bool:
    """Tell whether a name may not change what it means: it can be called, or is a constant of the suite."""
    return callable(value) or isinstance(value, (*_CALLABLE, *_CONSTANTS) if suite else _CALLABLE)


@functools.cache
def _import_suite() -> None:
    """Import the suite's modules once, so that a later import cannot hide that one of them was changed."""
    for folder in SUITE:
        for module in _modules_of(folder):
            importlib.import_module(module)


@functools.cache
def _modules_of(folder: str) -> tuple[str, ...]:
    package = importlib.import_module(f"ssmperf.engine.{folder}")
    return tuple(info.name for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))


@dataclass(frozen=True, slots=True)
class _Space:
    """A module or class that is watched: what it is, and the functions of Python that it had at first."""

    space: Any
    functions: tuple[FunctionType, ...]


_spaces: dict[str, _Space] = {}  # by label; grows as modules of the suite are imported


def _watch() -> dict[str, _Space]:
    """Watch the suite's modules and classes, and the modules whose functions it calls."""
    main = sys.modules["__main__"]
    own = getattr(getattr(main, "__spec__", None), "name", "")
    found = [(name, module) for name, module in list(sys.modules.items()) if name.startswith("ssmperf.")]
    if own.startswith("ssmperf."):
        found.append((f"{own} (__main__)", main))
    for name, module in found:
        if name in _spaces:
            continue
        _spaces[name] = _Space(module, _python_functions(vars(module).values()))
        for label, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                _spaces[f"{name}.{label}"] = _Space(value, _python_functions(vars(value).values()))
    for name in dict.fromkeys((*CLOCKS, *NEIGHBOURS, *_imported_by_suite())):
        if name not in _spaces:
            space = _resolve(name)
            used = _used_names() & vars(space).keys()
            functions = (vars(space)[each] for each in used)
            _spaces[name] = _Space(space, tuple(f for f in functions if isinstance(f, FunctionType)))
    return dict(_spaces)


@functools.cache
def _imported_by_suite() -> tuple[str, ...]:
    """Name the modules of others that the suite's modules import; read once, before any backend runs."""
    found = {
        value.__name__
        for folder in SUITE
        for name in _modules_of(folder)
        for value in vars(sys.modules[name]).values()
        if isinstance(value, ModuleType)
    }
    return tuple(sorted(name for name in found if not name.startswith("ssmperf")))


def _resolve(name: str) -> Any:
    """Get a module, or a class in one, by its dotted name."""
    if name in sys.modules:
        return sys.modules[name]
    module, _, label = name.rpartition(".")
    return getattr(_resolve(module), label)


@functools.cache
def _used_names() -> frozenset[str]:
    """List the names that the suite's functions mention; read once, before any backend runs."""
    own = [space.functions for name, space in _spaces.items() if name.startswith("ssmperf.")]
    codes = [function.__code__ for functions in own for function in functions]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return frozenset(names)


def _python_functions(values: Iterable[Any]) -> tuple[FunctionType, ...]:
    """Find the functions of Python that attributes of a module or class consist of."""
    found: list[FunctionType] = []
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, FunctionType):
            found.append(value)
        elif isinstance(value, (staticmethod, classmethod)):
            left.append(value.__func__)
        elif isinstance(value, property):
            left += [value.fget, value.fset, value.fdel]
        elif isinstance(value, functools.cached_property):
            left.append(value.func)
        elif callable(value) and not isinstance(value, type):
            left.append(getattr(value, "__wrapped__", None))
    return tuple(found)


def _codes(spaces: Iterable[_Space]) -> dict[FunctionType, tuple[Any, ...]]:
    """Give the behaviour of functions: code, defaults, and the variables that they close over."""
    functions = [function for space in spaces for function in space.functions]
    found: dict[FunctionType, tuple[Any, ...]] = dict(zip(functions, map(_CODE, functions), strict=True))
    for function, (*parts, named, closure) in found.items():
        if named or closure:
            found[function] = (*parts, *(named or {}).values(), *map(_contents, closure or ()))
    return found


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _entries() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Give the fields of registered entries."""
    for kind, table in tables.entries.items():
        for label, entry in list(table.items()):
            fields = getattr(entry, "__dataclass_fields__", ())
            yield f"{kind} {label}", (entry, *(getattr(entry, name) for name in fields))


def _equal(old: Any, new: Any) -> bool:
    """Tell whether a constant has an equal one in its place."""
    return isinstance(old, _CONSTANTS) and type(old) is type(new) and bool(old == new)


def _identical(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    return len(before) == len(after) and all(map(operator.is_, before, after))


def _by_torch(where: str, new: Any) -> bool:
    """Tell whether torch's compiler has wrapped this function, as it does when it is first used."""
    wrappers = (sys.modules.get(name) for name in ("torch._compile", "torch._dynamo.mutation_guard"))
    scope = getattr(new, "__globals__", None)
    return where in WRAPPED_BY_TORCH and any(module and scope is vars(module) for module in wrappers)


def _same(before: Any, after: Any) -> bool:
    """Tell whether a setting is as before. An object's own idea of equality is not asked."""
    if type(before) is not type(after):
        return False
    if isinstance(before, (tuple, Extensible)):
        kept = after[: len(before)] if isinstance(before, Extensible) else after
        return len(before) == len(kept) and all(map(_same, before, kept))
    return before is after or (type(before) in _COMPARED and bool(before == after))


def _change(words: str, before: Any, after: Any) -> str:
    """Say how a setting has changed."""
    if isinstance(after, Unreadable):
        return f"{words} cannot be read ({after.reason})"
    if after is _MISSING:
        return f"{words} was removed"
    if isinstance(after, bool):
        return f"{words} is {'on' if after else 'off'}"
    if before is _MISSING:
        return f"{words} was added"
    if _is_shown(before) and _is_shown(after):
        return one_line(f"{words} is {after}, not {before}")
    return f"{words} changed"


def _is_shown(value: Any) -> bool:
    return type(value) in _SHOWN or (type(value) is tuple and all(map(_is_shown, value)))
