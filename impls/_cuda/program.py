"""Compiles a kernel with NVRTC, at first use, and keeps the result on disk."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ssmperf.authoring import Unsupported

DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Program:
    """A file of a folder of sources, with macros."""

    folder: Path
    file: str
    macros: tuple[tuple[str, str], ...] = ()

    def cubin(self, arch: str, cache: Path | None = None) -> bytes:
        """Machine code for an architecture such as sm_90: from the cache, or compiled into it.

        cache: a folder; $XDG_CACHE_HOME/ssmperf/cuda by default. An entry that is damaged is compiled anew.

        Raises:
            Unsupported: there is no NVRTC, or it does not know the architecture.
        """
        entry = (cache or cache_folder()) / f"{self.key(arch)}.cubin"
        code = stored(entry)
        if code is None:
            code = self.compiled(arch)
            keep(entry, code)
        return code

    def compiled(self, arch: str) -> bytes:
        """Machine code, without the cache."""
        compiler()
        from cuda.core import Program as Compiler
        from cuda.core import ProgramOptions

        options = ProgramOptions(
            name=self.file,
            arch=arch,
            std="c++17",
            include_path=str(self.folder),
            define_macro=list(self.macros) or None,
        )
        try:
            code = Compiler(sources(self.folder)[self.file], "c++", options).compile("cubin").code
        except Exception as error:
            if "gpu-architecture" not in str(error):
                raise
            version = ".".join(map(str, compiler()))
            raise Unsupported(f"NVRTC {version} does not know {arch} (install a newer one)") from error
        return bytes(code)

    def key(self, arch: str) -> str:
        """Changes with all that the machine code depends on."""
        parts = [repr(sources(self.folder)), repr(self.macros), self.file, arch, repr(compiler())]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def import_compiler() -> None:
    """Import it before threads do: cuda.core, while two import it at once, has no Program for one of them."""
    import cuda.core  # noqa: F401


@functools.cache
def sources(folder: Path) -> dict[str, str]:
    """The files of a folder by name."""
    return {file.name: file.read_text() for file in sorted(folder.glob("*.cu*"))}


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
