"""One launch of a kernel of Triton, with everything but its memory decided when it is made.

A call of a jit function binds its arguments, specialises them and looks the compiled kernel up, which takes
tens of microseconds. Here that happens once; a call passes addresses to the compiled kernel's launcher. The
interpreter has no compiled kernel: there a launch is a call of the jit function on tensors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton import knobs
from triton.runtime._async_compile import AsyncCompileMode, active_mode
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from .keys import settle_key
from .parsing import parse_in_turn
from .slots import Packed, Parameter, Pick, Places, Slot, Step, pack, picker

INTEGER = re.compile(r"[iu](1|8|16|32|64)")
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)")


@dataclass(frozen=True, slots=True)
class Blocks:
    """A slot that a kernel reads in blocks, by a tensor descriptor: the rows of a contiguous matrix."""

    slot: Slot
    shape: tuple[int, int]
    block: tuple[int, int]

    def descriptor(self, base: Any) -> TensorDescriptor:
        return TensorDescriptor(base, list(self.shape), [self.shape[1], 1], list(self.block))


@contextmanager
def compiling_together(beside: Callable[[], object] | None = None) -> Iterator[None]:
    """Compile kernels in the background until the block ends, which waits for all of them.

    Most of a compilation holds no lock of Python's. A failed one raises when its launch is settled.

    beside: something else to do meanwhile; its result and its failure are dropped.
    """
    if active_mode.get() is not None:  # the caller's own
        yield
        return
    try:
        pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        with pool, AsyncCompileMode(pool, ignore_errors=True):
            if beside is not None:
                pool.submit(beside)
            yield
    finally:
        active_mode.set(None)  # which an interrupt while it waits leaves undone


class Launch(Step):
    """A kernel, its grid and its arguments: slots, blocks of slots, None, constants, and tuples of these.

    It is ready after `settle`; until then the kernel may be compiled in the background.

    Raises:
        RuntimeError: a hook of Triton refused to compile the kernel.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], arguments: Sequence[Any], constants: dict[str, Any]
    ) -> None:
        self.kernel, self.arguments, self.constants = kernel, tuple(arguments), constants
        self.grid = (*grid, 1, 1)[:3]
        self.uses = frozenset(slots_in((*arguments, *constants.values())))
        self.run: Callable[..., object] | None = None
        self.function: Any = None
        self.compiled: Any = self._compile() if isinstance(kernel, JITFunction) else None

    def settle(self) -> None:
        """Wait for the compiled kernel. Raises the error of its compilation."""
        if self.compiled is not None:
            if hasattr(self.compiled, "result"):
                self.compiled = self.compiled.result()
            self._order()

    def _compile(self) -> Any:
        parse_in_turn()
        settle_key(self.kernel)
        arguments, constants = self._given(lambda slot: slot)
        compiled = self.kernel.run(*arguments, grid=self.grid, warmup=True, **constants)
        if compiled is None:
            raise RuntimeError(f"a hook kept Triton from compiling {self.kernel.__name__}")
        return compiled

    def _given(self, memory: Callable[[Slot], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the arguments of a call of the jit function, with something in the place of each slot."""
        named = {name: resolved(x, memory) for name, x in self.constants.items()}
        return resolved(self.arguments, memory), named

    def _order(self) -> None:
        """Decide where each argument of the compiled kernel, in the order of its signature, comes from.

        A call has a pool of the slots' addresses, the descriptors and the constants, and then the tuples,
        each of which is picked from the pool before it.
        """
        named = {name: x for name, x in self.constants.items() if name in self.kernel.arg_names}
        bound = self.kernel.signature.bind(*self.arguments, **named)
        bound.apply_defaults()
        self.values = values = list(bound.arguments.values())
        self.most = max(self.uses, default=-1) + 1
        flat: list[Any] = []
        flatten(values, flat)
        descriptors = [each for each in flat if isinstance(each, Blocks)]
        self.blocks = [(each.slot.index, each.descriptor(each.slot)) for each in descriptors]
        self.fixed = [each for each in flat if not isinstance(each, (Slot, Blocks))]
        self.groups: list[Pick] = []
        places = {"blocks": self.most, "fixed": self.most + len(descriptors)}
        groups_at = places["fixed"] + len(self.fixed)

        def place(value: Any) -> int:
            """The place of a value in the pool; tuples go in as groups."""
            if isinstance(value, Slot):
                return value.index
            if isinstance(value, tuple):
                self.groups.append(picker([place(each) for each in value]))
                return groups_at + len(self.groups) - 1
            kind = "blocks" if isinstance(value, Blocks) else "fixed"
            places[kind] += 1
            return places[kind] - 1

        self.pick = picker([place(value) for value in values])

    def obstacle(self) -> str:
        if self.compiled is None:
            return "kernels are interpreted, or not run at all"
        return obstacle(self.compiled, self.parameters())

    def packed(self, places: Places) -> Packed | None:
        if 0 in self.grid:
            return None
        metadata = self.compiled.metadata
        scratch = [("i64", 0)] * 2  # of which it has none
        threads = metadata.num_warps * metadata.target.warp_size
        given = [*self.parameters(), *scratch]
        return pack(self.load_alone(), self.grid, threads, metadata.shared, given, places)

    def parameters(self) -> list[Parameter]:
        """Parameters of the compiled kernel."""
        found: list[Parameter] = []

        def add(kind: Any, value: Any) -> None:
            if isinstance(kind, tuple):
                for each, part in zip(kind, value, strict=True):
                    add(each, part)
            elif kind != "constexpr":
                found.append((kind, value))

        signature = self.compiled.src.signature
        for name, value in zip(self.kernel.arg_names, self.values, strict=True):
            add(signature[name], value)
        return found

    def load(self) -> Callable[..., object]:
        """Load the compiled kernel on the current device, if it is not there, and give its launcher."""
        if self.run is None:
            run = self.compiled.run
            self.function = self.compiled.function
            self.run = run  # last: another thread may look at it now
        return self.run

    def load_alone(self) -> Any:
        """Load the compiled kernel on the current device, if it is not there, and give its function.

        This is for launches that are made together. They need no launcher of Triton's, which up to Triton 3.6
        is C of its own for each signature, a quarter of a second to compile.
        """
        if any(map(calls, (knobs.runtime.kernel_load_start_hook, knobs.runtime.kernel_load_end_hook))):
            self.load()
        elif self.compiled.function is None:
            load_function(self.compiled)
        return self.compiled.function

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        """Enqueue it on a stream of the current device."""
        if self.compiled is None:
            arguments, constants = self._given(lambda slot: typed(tensors[slot.index], slot))
            self.kernel[self.grid](*arguments, **constants)
            return
        pool = (
            [*pointers[: self.most], *self.fixed] if not self.blocks else self._described(tensors, pointers)
        )
        for group in self.groups:
            pool.append(group(pool))
        enqueue(self, stream, self.pick(pool))

    def _described(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None]) -> list[Any]:
        made = []
        for index, template in self.blocks:
            descriptor = object.__new__(TensorDescriptor)  # checked once; only the memory differs
            descriptor.__dict__ = template.__dict__ | {"base": tensors[index]}
            made.append(descriptor)
        return [*pointers[: self.most], *made, *self.fixed]


def load_function(compiled: Any) -> None:
    """Load a compiled kernel on the current device, as Triton does, but make no launcher for it.

    Raises:
        OutOfResources: it wants more shared memory or threads than the device has for a program.
    """
    device, metadata = driver.active.get_current_device(), compiled.metadata
    most = driver.active.utils.get_device_properties(device)["max_shared_mem"]
    if metadata.shared > most:
        raise OutOfResources(metadata.shared, most, "shared memory")
    _, function, *resources = driver.active.utils.load_binary(
        compiled.name, compiled.kernel, metadata.shared, device
    )
    compiled.n_regs, compiled.n_spills, compiled.n_max_threads = resources
    threads = metadata.num_warps * metadata.target.warp_size
    if threads > compiled.n_max_threads:
        raise OutOfResources(threads, compiled.n_max_threads, "threads")
    compiled.function = function


def hooks() -> tuple[Any, Any]:
    """Triton's hooks before and after each launch; None in place of one, or of a chain of none."""
    found = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    enter, leave = (hook if calls(hook) else None for hook in found)
    return enter, leave


def calls(hook: Any) -> bool:
    """Whether a hook of Triton does anything: one may be None, or a chain of none."""
    return hook is not None and bool(getattr(hook, "calls", True))


def enqueue(launch: Launch, stream: int, arguments: tuple[Any, ...]) -> None:
    """Hand the compiled kernel to the driver, as `JITFunction.run` does at its end."""
    compiled, run = launch.compiled, launch.load()
    enter, leave = hooks()
    metadata = None
    if enter is not None or leave is not None:
        metadata = compiled.launch_metadata(launch.grid, stream, *arguments)
    run(*launch.grid, stream, launch.function, compiled.packed_metadata, metadata, enter, leave, *arguments)


def resolved(value: Any, memory: Callable[[Slot], Any]) -> Any:
    """An argument, or a tuple of them, with something in the place of each slot."""
    if isinstance(value, Slot):
        return memory(value)
    if isinstance(value, Blocks):
        return value.descriptor(memory(value.slot))
    if isinstance(value, tuple):
        inner = [resolved(each, memory) for each in value]
        return type(value)._make(inner) if hasattr(value, "_make") else tuple(inner)
    return value


def typed(x: Tensor | None, slot: Slot) -> Tensor:
    """The tensor of a slot, read as the slot's dtype."""
    assert x is not None
    return x if x.dtype == slot.dtype else x.view(slot.dtype)


def flatten(values: Sequence[Any], to: list[Any]) -> None:
    """Add the values to a list, those in tuples one by one, in the order in which `_order` places them."""
    for value in values:
        if isinstance(value, tuple):
            flatten(value, to)
        else:
            to.append(value)


def slots_in(values: Sequence[Any]) -> list[int]:
    flat: list[Any] = []
    flatten(values, flat)
    found = [each.slot if isinstance(each, Blocks) else each for each in flat]
    return [each.index for each in found if isinstance(each, Slot)]


def obstacle(compiled: Any, parameters: Sequence[Parameter]) -> str:
    """Say why a kernel that Triton compiled must go through Triton's own launcher; nothing if it need not."""
    metadata = compiled.metadata
    if metadata.target.backend != "cuda":
        return f"{metadata.target.backend} has another driver"
    needs = {
        "num_ctas": "a cluster",
        "launch_cooperative_grid": "a cooperative launch",
        "launch_pdl": "a dependent launch",
        "global_scratch_size": "global scratch memory",
        "profile_scratch_size": "scratch memory of a profiler",
    }
    usual = {"num_ctas": 1}
    for name, text in needs.items():
        if int(getattr(metadata, name, 0)) != usual.get(name, 0):
            return f"{metadata.name} needs {text}"
    widths = []
    for kind, value in parameters:
        width = width_of(kind)
        if width is None or (kind[0] == "*") != isinstance(value, Slot):
            return f"{metadata.name} has a parameter of type {kind}"
        widths.append(width)
    declared = [int(width) for width in PARAMETER.findall(head(compiled.asm["ptx"]))]
    if declared != [*widths, 64, 64]:  # scratch memory comes last, even if there is none
        return f"{metadata.name} has other parameters than its signature says"
    return ""


def head(ptx: str) -> str:
    """The declaration of a kernel, without its body."""
    start = ptx.index(".entry")
    return ptx[start : ptx.index(")", start)]


def width_of(kind: str) -> int | None:
    """Bits of a parameter; None if it is of a kind that is not known here."""
    if kind[0] == "*" or kind == "fp64":
        return 64
    if kind == "fp32":
        return 32
    return max(8, int(kind[1:])) if INTEGER.fullmatch(kind) else None
