"""Runs the scan's CUDA kernels on a CPU: g++ compiles them with a header that stands in for the device."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from ssmperf.impls.scan._cuda.sizes import SOURCES, Variant

HERE = Path(__file__).parent / "cuda_on_host"
COMPILER = shutil.which("g++")
OPTIONS = ("-std=c++20", "-O1", "-pthread")
OPERANDS = {"forward": 6, "backward": 11}
GROUP = 4


def of_sources(test: Path) -> str:
    """Hash all that a test's compiled kernels depend on: sources, options, the compiler and the test."""
    files = (file for folder in (SOURCES, HERE) for file in sorted(folder.iterdir()) if file.is_file())
    texts = [file.read_bytes() for file in (Path(__file__), test, *files)]
    version = (
        subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout if COMPILER else b""
    )
    return hashlib.sha256(b"\0".join([version, *texts])).hexdigest()[:16]


def build(variant: Variant, to: Path, *flags: str, sources: Path = SOURCES) -> None:
    """Compile a variant, in groups of GROUP tiles; what is compiled once lies beside `to`.

    No macro may have a name that a standard header asks for: the precompiled one would not be used.
    """
    macros = {
        **dict(variant.program.macros),
        "KERNEL": f'"{variant.pass_}.cu"',
        "FUNCTION_NAME": f"cuda_scan_{variant.pass_}",
        "PASS": variant.pass_.capitalize(),
        "OPERANDS": str(OPERANDS[variant.pass_]),
    }
    options = [*OPTIONS, *(flag for flag in flags if not flag.startswith("-D"))]
    once = compiled_once(options, to.parent)
    include = [f"-I{once}", "-include", "device.h", "-Werror=invalid-pch", f"-I{sources}"]
    defined = [flag for flag in flags if flag.startswith("-D")]
    defined += [f"-D{name}={value}" for name, value in macros.items()]
    compile([*options, *include, *defined, str(HERE / "run.cpp"), str(once / "host.o")], to)


def compiled_once(options: list[str], folder: Path) -> Path:
    """A folder with the host and device.h, compiled with these options: most of a build's time."""
    place = folder / f"once-{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}"
    place.mkdir(exist_ok=True)
    options = [option for option in options if option != "-shared"]
    for name, source in (
        ("device.h.gch", ["-x", "c++-header", str(HERE / "device.h")]),
        ("host.o", ["-c", f"-I{place}", "-include", "device.h", str(HERE / "host.cpp")]),
    ):
        made_once(place / name, lambda part, source=source: compile([*options, *source], part))
    return place


def made_once(file: Path, make: Callable[[Path], None]) -> Path:
    """The file, made by whichever of pytest's workers needs it first."""
    if not file.exists():
        part = file.with_name(f"{os.getpid()}-{file.name}")
        make(part)
        part.replace(file)
    return file


def compile(arguments: list[str], to: Path) -> None:
    done = subprocess.run(["g++", *arguments, "-o", str(to)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Host:
    """Stands in for a device of a few blocks: `install` puts it in the place of function.py's launches."""

    def __init__(self, folder: Path, resident: int) -> None:
        self.folder = folder
        self.resident = resident
        self.shared_bytes = 1 << 30  # of a block
        self.launched: list[Variant] = []

    @functools.cache  # noqa: B019
    def library(self, variant: Variant) -> ctypes.CDLL:
        file = self.folder / f"{hashlib.sha256(repr(variant).encode()).hexdigest()[:16]}.so"
        return ctypes.CDLL(str(made_once(file, lambda part: build(variant, part, "-shared", "-fPIC"))))

    def launch(self, ready: object, grid: int, arguments: list[int], stream: int) -> None:
        variant = ready.variant  # type: ignore[attr-defined]
        library = self.library(variant)
        own = library.fixed_bytes() + variant.tiles.slots * library.slot_bytes()
        assert own == variant.shared_bytes
        self.launched.append(variant)
        library.run(grid, (ctypes.c_longlong * len(arguments))(*arguments))

    def fill(self, address: int, value: int, count: int, stream: int, device: int) -> None:
        words = (ctypes.c_uint32 * count).from_address(address)
        words[:] = [value] * count

    def install(self, function: ModuleType, variant_of: object, monkeypatch: object) -> None:
        def loaded(pass_, gate, data, const, aligned, chained, cut, device):  # type: ignore[no-untyped-def]
            types = (function.TYPES[gate], function.TYPES[data])
            flags = {"const": const, "aligned": aligned, "chained": chained}
            made = variant_of(pass_, *types, cut, **flags, shared_bytes=self.shared_bytes)  # type: ignore[operator]
            return function.Loaded(None, None, made, self.resident)

        monkeypatch.setattr(function, "shared_memory", lambda device: self.shared_bytes)  # type: ignore[attr-defined]
        monkeypatch.setattr(function, "loaded", loaded)  # type: ignore[attr-defined]
        monkeypatch.setattr(function, "launch", self.launch)  # type: ignore[attr-defined]
        monkeypatch.setattr(function, "fill", self.fill)  # type: ignore[attr-defined]
