"""Runs the scan's CUDA kernels on a CPU: g++ compiles them with a header that stands in for the device."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

from ssmperf.impls.scan._cuda.program import SOURCES
from ssmperf.impls.scan._cuda.sizes import Variant

HERE = Path(__file__).parent / "cuda_on_host"
COMPILER = shutil.which("g++")
OPERANDS = {"forward": 6, "backward": 11}
GROUP = 4


def build(variant: Variant, to: Path, *flags: str, sources: Path = SOURCES) -> None:
    """Compile a variant, in groups of GROUP tiles."""
    macros = {
        **dict(variant.macros),
        "KERNEL": f'"{variant.pass_}.cu"',
        "NAME": f"cuda_scan_{variant.pass_}",
        "PASS": variant.pass_.capitalize(),
        "OPERANDS": str(OPERANDS[variant.pass_]),
    }
    command = ["g++", "-std=c++20", "-O1", "-pthread", f"-I{HERE}", f"-I{sources}", *flags]
    command += [f"-D{name}={value}" for name, value in macros.items()]
    done = subprocess.run([*command, str(HERE / "run.cpp"), "-o", str(to)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Host:
    """Stands in for a device of a few blocks: `install` puts it in the place of function.py's launches."""

    def __init__(self, folder: Path, resident: int) -> None:
        self.folder = folder
        self.resident = resident
        self.launched: list[Variant] = []

    @functools.cache  # noqa: B019
    def library(self, variant: Variant) -> ctypes.CDLL:
        file = self.folder / f"{hashlib.sha256(repr(variant).encode()).hexdigest()[:16]}.so"
        if not file.exists():  # another of pytest's workers may have made it
            part = file.with_suffix(f".{os.getpid()}")
            build(variant, part, "-shared", "-fPIC")
            part.replace(file)
        return ctypes.CDLL(str(file))

    def launch(self, ready: object, grid: int, arguments: list[int], device: int | None) -> None:
        variant = ready.variant  # type: ignore[attr-defined]
        library = self.library(variant)
        own = library.fixed_bytes() + variant.tiles.slots * library.slot_bytes()
        assert own == variant.shared_bytes
        self.launched.append(variant)
        library.run(grid, (ctypes.c_longlong * len(arguments))(*arguments))

    def install(self, function: ModuleType, variant_of: object, monkeypatch: object) -> None:
        def loaded(pass_, gate, data, const, aligned, chained, cut, device):  # type: ignore[no-untyped-def]
            types = (function.TYPES[gate], function.TYPES[data])
            flags = {"const": const, "aligned": aligned, "chained": chained}
            made = variant_of(pass_, *types, cut, **flags, shared_bytes=1 << 30)  # type: ignore[operator]
            return function.Loaded(None, None, made, self.resident)

        monkeypatch.setattr(function, "loaded", loaded)  # type: ignore[attr-defined]
        monkeypatch.setattr(function, "launch", self.launch)  # type: ignore[attr-defined]
