"""Synthetic learning tasks: each module of this folder holds one task, its `TASK`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

IGNORED = -100  # a target that is not scored


@dataclass(frozen=True, slots=True)
class Examples:
    """Sequences of a task, all (rows, T) int64.

    tokens: the inputs.
    targets: the class at each step, or IGNORED.
    reaches: the number of tokens on which each target depends.
    """

    tokens: Tensor
    targets: Tensor
    reaches: Tensor


@dataclass(frozen=True, slots=True)
class Task:
    """A task to learn. `sample(rows, T, seed)` draws examples, the same for the same arguments."""

    name: str
    vocabulary: int
    classes: int
    sample: Callable[[int, int, int], Examples]


@functools.cache
def tasks() -> dict[str, Task]:
    """Import all tasks; give them by name, in alphabetical order."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {module.TASK.name: module.TASK for module in modules}
