"""Runs the delta rule's CUDA kernels on a CPU: g++ compiles them with a header that stands in for Hopper."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path
from types import ModuleType

import pytest
from ssmperf.impls.delta_rule._cuda.program import KERNELS, SOURCES, Kernel

from .cuda_host import compile, made_once

HERE = Path(__file__).parent / "hopper_on_host"
OPTIONS = ("-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "-include", "device.h")
BLOCKS = 3  # that a device has room for


def of_sources() -> str:
    """Hash all that the compiled kernels depend on but the compiler."""
    files = (file for folder in (SOURCES, HERE) for file in sorted(folder.iterdir()) if file.is_file())
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in (Path(__file__), *files))).hexdigest()[:16]


class HopperHost:
    """Stands in for a device; `install` puts it in the place of function.py's launches.

    folder: of what is compiled. launched: names of kernels, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launched: list[str] = []

    @functools.cache  # noqa: B019
    def library(self, file: str) -> ctypes.CDLL:
        def make(part: Path) -> None:
            source = part.with_suffix(".cpp")
            runs = [
                f"RUN({each.name}, {each.threads}, {each.shared_bytes})"
                for each in KERNELS
                if each.file == file
            ]
            source.write_text("\n".join([f'#include "{file}"', *runs, ""]))
            compile([*OPTIONS, f"-I{HERE}", f"-I{SOURCES}", str(source)], part)

        return ctypes.CDLL(str(made_once(self.folder / f"{Path(file).stem}-{of_sources()}.so", make)))

    def launch(self, kernel: Kernel, grid: int, arguments: list[int], device: int, stream: int) -> None:
        self.launched.append(kernel.name)
        run = getattr(self.library(kernel.file), f"run_{kernel.name}")
        run(grid, (ctypes.c_longlong * len(arguments))(*arguments))

    def install(self, function: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(function, "launch", self.launch)
        monkeypatch.setattr(function, "processors", lambda device: BLOCKS)
