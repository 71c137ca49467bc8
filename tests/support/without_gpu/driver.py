"""A driver without a GPU: it notes the launches that C code asks it for."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from support.without_gpu.compiled import Device

STREAM = 77
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
RETAIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
SET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
DESCRIBE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
FAILURE = ctypes.c_char_p(b"invalid argument")


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch: words are the parameters, 8 bytes each. thread: the one that launched."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    words: tuple[bytes, ...]
    thread: int


@dataclass
class RecordingDriver:
    """lengths: how many parameters a function has. code: what launches return. context: the current one."""

    lengths: dict[int, int] = field(default_factory=dict)
    launches: list[Launched] = field(default_factory=list)
    code: int = 0
    context: int = 1
    bound: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.functions = (
            LAUNCH(self.launch),
            GET(self.get),
            RETAIN(self.retain),
            SET(self.set),
            DESCRIBE(self.describe),
        )

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in self.functions)

    def launch(self, function: int, *given: Any) -> int:
        *sizes, shared, stream, parameters, extra = given
        assert not extra
        words = tuple(ctypes.string_at(parameters[at], 8) for at in range(self.lengths[function]))
        grid, block = tuple(sizes[:3]), tuple(sizes[3:])
        thread = threading.get_ident()
        self.launches.append(Launched(function, grid, block, shared, stream or 0, words, thread))
        return self.code

    def get(self, context: Any) -> int:
        context[0] = self.context
        return 0

    def retain(self, context: Any, device: int) -> int:
        context[0] = 100 + device
        return 0

    def set(self, context: int) -> int:
        self.bound.append(context)
        self.context = context
        return 0

    def describe(self, code: int, text: Any) -> int:
        text[0] = FAILURE
        return 0


@contextmanager
def recording_driver(arch: int = 90) -> Iterator[RecordingDriver]:
    """Let plans of CPU tensors launch through the C launcher, into a driver that only takes notes.

    Compiled kernels are loaded as functions 1, 2, ...
    """
    from ssmperf.impls._triton import launch, plan, together
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.driver import driver

    made = RecordingDriver()
    functions = iter(range(1, 10_000))

    loaded: list[Any] = []

    def load(kernel: Any) -> None:
        if kernel.function is None:
            loaded.append(kernel)
            kernel.function = next(functions)
            made.lengths[kernel.function] = len(list(plain(kernel.src.signature.values()))) + 2
        kernel._run = lambda *given: None

    with ExitStack() as stack:
        for patch in (
            mock.patch.object(driver, "_active", Device(arch)),
            mock.patch.object(CompiledKernel, "_init_handles", load),
            mock.patch.object(launch, "load_function", load),
            mock.patch.object(together, "driver", lambda index: together.Driver(made.addresses, 3)),
            mock.patch.object(together, "on_gpu", lambda device: True),
            mock.patch.object(plan, "current_stream", lambda device: STREAM),
        ):
            stack.enter_context(patch)
        plan.forget()
        yield made
    plan.forget()
    for kernel in loaded:
        kernel.function = kernel._run = None


def plain(kinds: Any) -> Iterator[str]:
    """Types of the parameters of a signature, those in tuples one by one, without constants."""
    for kind in kinds:
        if isinstance(kind, (tuple, list)):
            yield from plain(kind)
        elif kind != "constexpr":
            yield kind
