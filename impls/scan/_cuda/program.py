"""Compiles a variant of the kernels with NVRTC, at first use, and keeps the result on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path

from ssmperf.authoring import Unsupported

from .sizes import Variant

SOURCES = Path(__file__).parent
DIGEST = hashlib.sha256().digest_size


@functools.cache
def sources() -> dict[str, str]:
    """The kernels' files by name."""
    return {file.name: file.read_text() for file in sorted(SOURCES.glob("*.cu*"))}


@functools.cache
def compiler() -> tuple[int, int]:
    """The version of NVRTC.

    Raises:
        Unsupported: it is not there.
    """
    try:
        from cuda.bindings import nvrtc

        result, *version = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise Unsupported(f"NVRTC cannot be loaded: {reason} (install nvidia-cuda-nvrtc)") from error
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise Unsupported(f"NVRTC cannot be loaded: {result.name}")
    return version[0], version[1]


def cubin(variant: Variant, arch: str, folder: Path | None = None) -> bytes:
    """Machine code of a variant for an architecture such as sm_90: from the cache, or compiled into it.

    folder: the cache; $XDG_CACHE_HOME/ssmperf/cuda by default. An entry that is damaged is compiled anew.

    Raises:
        Unsupported: there is no NVRTC, or it does not know the architecture.
    """
    entry = (folder or cache_folder()) / f"{key(variant, arch)}.cubin"
    code = stored(entry)
    if code is None:
        code = compiled(variant, arch)
        keep(entry, code)
    return code


def compiled(variant: Variant, arch: str) -> bytes:
    """Machine code of a variant, without the cache."""
    compiler()
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=f"{variant.pass_}.cu",
        arch=arch,
        std="c++17",
        include_path=str(SOURCES),
        define_macro=list(variant.macros),
    )
    try:
        code = Program(sources()[f"{variant.pass_}.cu"], "c++", options).compile("cubin").code
    except Exception as error:
        if "gpu-architecture" not in str(error):
            raise
        version = ".".join(map(str, compiler()))
        raise Unsupported(f"NVRTC {version} does not know {arch} (install a newer one)") from error
    return bytes(code)


def key(variant: Variant, arch: str) -> str:
    """Changes with all that the machine code depends on."""
    parts = [repr(sources()), repr(variant.macros), variant.pass_, arch, repr(compiler())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ssmperf" / "cuda"


def stored(entry: Path) -> bytes | None:
    """Read a kept entry, or None if it is damaged: it starts with the digest of the rest."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST], content[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def keep(entry: Path, code: bytes) -> None:
    """Write an entry as a whole or not at all. Where that is not allowed, a process compiles for itself."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=entry.parent, suffix=".part")
    except OSError:
        return
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        part.replace(entry)
    except OSError:
        part.unlink(missing_ok=True)
