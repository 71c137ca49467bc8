"""Compiles without a GPU the kernels of a backend's call, and reads the needs of the machine code."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

# Shared memory that a block can have, in bytes.
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10, 100: 227 << 10}


@dataclass(frozen=True, slots=True)
class Usage:
    """registers of a thread, bytes that it spills to its stack, and bytes of shared memory of a block."""

    registers: int
    spilled: int
    shared: int

    def __str__(self) -> str:
        return f"{self.registers}/{self.spilled}/{self.shared}"

    @classmethod
    def parse(cls, text: str) -> Usage:
        registers, spilled, shared = map(int, text.split("/"))
        return cls(registers, spilled, shared)

    @classmethod
    def of(cls, cubin: bytes, dynamic_shared: int, kernel: str = "") -> Usage:
        """Read the resources of a cubin's kernel, or of its only one, by Triton's cuobjdump."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(cubin)
            command = [str(cuobjdump()), "--dump-resource-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text = text.partition(f" Function {kernel}:")[2].partition(" Function ")[0] if kernel else text
        register, stack, local, shared = (
            int(re.findall(rf"\b{name}:(\d+)", text)[-1]) for name in ("REG", "STACK", "LOCAL", "SHARED")
        )
        return cls(register, stack + local, shared + dynamic_shared)

    @classmethod
    def of_triton(cls, kernel: Any) -> Usage:
        return cls.of(kernel.asm["cubin"], kernel.metadata.shared)


def cuobjdump() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def triton_version() -> str:
    import triton

    return f"triton {triton.__version__}"


@dataclass(frozen=True, slots=True)
class Device:
    """Stands in for Triton's driver, which needs a GPU."""

    arch: int

    def get_current_device(self) -> int:
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)


def launched(call: Callable[[], object], arch: int) -> dict[str, Any]:
    """Compile the launches on a GPU of a call on CPU tensors: kernels in order, by name.

    A kernel launched again in another specialisation is `name 2`, and so on. Nothing runs: results are
    whatever the memory held.
    """
    with recording(arch) as recorded:
        call()
    kernels = [each.result() if hasattr(each, "result") else each for each in recorded]
    named: dict[str, Any] = {}
    for kernel in kernels:
        if any(kernel is other for other in named.values()):
            continue
        again = sum(other.metadata.name == kernel.metadata.name for other in named.values())
        named[kernel.metadata.name + (f" {again + 1}" if again else "")] = kernel
    return named


@contextmanager
def recording(arch: int) -> Iterator[list[Any]]:
    from ssmperf.impls._triton import launch, plan
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        kernels.append(run(self, *arguments, grid=grid, warmup=True, **named))
        return kernels[-1]

    with (
        mock.patch.object(driver, "_active", Device(arch)),
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(launch, "enqueue", lambda *arguments: None),
    ):
        plan.forget()  # so that every kernel is compiled for this architecture
        yield kernels
    plan.forget()


def launched_cuda(function: ModuleType, call: Callable[[], object], arch: int) -> list[tuple[Any, bytes]]:
    """The same for scan's `cuda` backend, whose launches `function` holds: variants and machine code."""
    from ssmperf.impls._triton import plan

    major, minor = divmod(arch, 10)
    properties = SimpleNamespace(
        major=major,
        minor=minor,
        shared_memory_per_block_optin=SHARED_BYTES[arch],
        multi_processor_count=132,
    )
    variants: list[Any] = []
    codes: list[bytes] = []

    def cubin(program: Any, name: str) -> bytes:
        codes.append(program.compiled(name))
        return codes[-1]

    with ExitStack() as stack:
        patch = stack.enter_context
        patch(mock.patch("torch.cuda.get_device_properties", lambda device: properties))
        for cached in ("loaded", "shared_memory"):
            patch(mock.patch.object(function, cached, getattr(function, cached).__wrapped__))
        patch(mock.patch("ssmperf.impls._cuda.program.Program.cubin", cubin))
        patch(mock.patch.object(function, "launch", lambda ready, *sizes: variants.append(ready.variant)))
        patch(mock.patch.object(function, "fill"))
        patch(mock.patch("cuda.core.Device"))
        code = patch(mock.patch("cuda.core.ObjectCode")).from_cubin.return_value
        code.get_kernel.return_value.occupancy.max_active_blocks_per_multiprocessor.return_value = 1
        driver = patch(mock.patch("cuda.bindings.driver"))
        driver.cuKernelSetAttribute.return_value = (driver.CUresult.CUDA_SUCCESS,)
        plan.forget()  # so that every variant is compiled for this architecture
        call()
    plan.forget()
    return list(zip(variants, codes, strict=True))


@contextmanager
def multiprocessors(folder: str, count: int) -> Iterator[None]:
    """Modules whose names begin with `folder` believe in a device with so many."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(folder) and hasattr(module, "processors"):
                stack.enter_context(mock.patch.object(module, "processors", lambda device: count))
        yield
