"""What a foreign backend has replaced in its process, by snapshots.

Two snapshots, before a plug-in is imported and after a case, show what it replaced: a function of the suite
or one that it calls, a clock, a kernel of torch, or an entry of the registry; and modes that it left on.
Measurements since cannot be trusted. Other settings are not read: a foreign backend has its process to
itself, and harms nobody but itself by them.

Torch's compiler wraps three functions when it is first used. That is no difference. Not seen are calls
patched in machine code, modes of other threads, attributes of instances, and what is put back in time.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import operator
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from ssmperf.engine.machine.process_settings import MODES
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
_CALLABLE = (FunctionType, type, ModuleType, property, staticmethod, classmethod, functools.cached_property,
             GetSetDescriptorType, MemberDescriptorType)  # fmt: skip
_CODE = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_CONSTANTS = (int, float, complex, str, bytes, tuple, frozenset)
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that `take` has read.

    modes: those of torch, by name in words.
    modules: objects that Python imports by the names of the modules that are watched.
    names: values of the names in those modules, and in their classes.
    codes: the code, defaults and closure of functions. entries: the fields of what is registered, by label.
    """

    modes: Mapping[str, Any]
    modules: Mapping[str, Any]
    names: Mapping[str, Mapping[str, Any]]
    codes: Mapping[FunctionType, tuple[Any, ...]]
    entries: Mapping[str, tuple[Any, ...]]

    @classmethod
    def take(cls) -> Snapshot:
        """Read the state of this process, from its main thread. The first call imports the whole suite."""
        _import_suite()
        spaces = _watch()
        return cls(
            modes={words: reader() for words, reader in MODES.items()},
            modules={label: sys.modules.get(label) for label in spaces},
            names={
                label: {name: value for name, value in vars(each.space).items() if name not in OWN_STATE}
                for label, each in spaces.items()
            },
            codes=_codes(spaces.values()),
            entries=dict(_entries()),
        )

    def difference(self, later: Snapshot) -> list[str]:
        """Name the differences of a later snapshot of the same process."""
        return [*self._modes(later), *self._replaced(later), *self._codes(later), *self._entries(later)]

    def _modes(self, later: Snapshot) -> Iterator[str]:
        for words, before in self.modes.items():
            after = later.modes[words]
            if before != after and isinstance(after, Mapping) and after.keys() - before.keys():
                yield f"{words} {', '.join(after.keys() - before.keys())} is on"
            elif before != after:
                yield f"{words} was changed"

    def _replaced(self, later: Snapshot) -> Iterator[str]:
        for label, before in self.modules.items():
            if later.modules[label] is not before:
                yield f"the module {label} was replaced or removed"
        for label, names in self.names.items():
            after = later.names[label]
            if names.keys() != after.keys() or not all(map(operator.is_, names.values(), after.values())):
                yield from _replaced_names(label, names, after)

    def _codes(self, later: Snapshot) -> Iterator[str]:
        for function, before in self.codes.items():
            after = later.codes.get(function)
            if after is not None and not _identical(before, after):
                where = f"{function.__module__}.{function.__qualname__}"
                yield f"the code of {where} was replaced"

    def _entries(self, later: Snapshot) -> Iterator[str]:
        for label, before in self.entries.items():
            after = later.entries.get(label)
            if after is None:
                yield f"the {label} is registered no more"
            elif not _identical(before, after):
                yield f"the {label} was changed after it was registered"


def _replaced_names(label: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Compare the values of the names in one module or class."""
    suite = label.startswith("ssmperf.")
    watched = before if suite or label in CLOCKS else before.keys() & _used_names()
    for name in watched:
        old, new = before[name], after.get(name, _MISSING)
        if (
            new is not old
            and _counts(old, suite=suite)
            and not _equal(old, new)
            and not _by_torch(f"{label}.{name}", new)
        ):
            yield f"{label}.{name} was {'removed' if new is _MISSING else 'replaced'}"
    hidden = _hidden_names(_spaces[label].space) if suite or isinstance(_spaces[label].space, type) else set()
    for name in (after.keys() - before.keys()) & hidden & _used_names():
        yield f"{label}.{name} hides the former {name}"


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
