"""Sides: the two versions that `ssmperf ab` compares, each installed apart with compiler caches of its own.

A side is named by a git ref, a source folder, a wheel, a plug-in file, or an environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssmperf.errors import UsageError

FORMS = "a git ref, a folder with a pyproject.toml, a wheel, a plug-in file (.py), or an environment"
INSTALL_S = 600.0
GIT_S = 60.0
INSTALLED = "side.json"  # written into a side's folder when it is ready
# Compilers' caches: what one side has compiled must not serve the other.
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One version, ready to be measured.

    text: as the user named it. kind: "git ref", "source folder", "wheel", "plug-in" or "environment".
    commit: that of a git ref. python: its interpreter. folder: holds its sources, packages, caches and run.
    packages: folder of the packages that take precedence over those of the interpreter, if there are any.
    plugins: its plug-in files.
    """

    text: str
    kind: str
    folder: str
    python: str
    commit: str | None = None
    packages: str | None = None
    plugins: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The side in words, such as "git ref main (1a2b3c4)"."""
        return f"{self.kind} {self.text}" + (f" ({self.commit[:10]})" if self.commit else "")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes: those of this process, with packages and caches of its own.

        What lies in the current folder, such as another version's sources, is not imported.
        """
        caches = Path(self.folder) / "caches"
        own = {name: str(caches / part) for name, part in CACHES.items()}
        paths = [path for path in (self.packages, os.environ.get("PYTHONPATH")) if path]
        own["PYTHONSAFEPATH"] = "1"
        return {**os.environ, **own, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "plugins": list(self.plugins)}


def install(text: str, folder: Path, plugins: Iterable[str] = ()) -> Side:
    """Make a version ready in a folder, unless it is ready there from an earlier call.

    plugins: plug-in files for both sides. For a git ref or a source folder, one with a relative path is
        taken from its tree, if it is there.

    Raises:
        UsageError: the text names no version, or it cannot be installed.
    """
    folder = folder.resolve()
    kind, commit = kind_of(text)
    files = [_absolute(file) for file in plugins]
    packages: Path | None = folder / "packages"
    python, source = sys.executable, None
    if kind == "git ref":
        assert commit is not None
        source = folder / "source"
    elif kind == "source folder":
        source = Path(text).resolve()
    elif kind == "plug-in":
        files.append(_absolute(text))
        packages = None
    elif kind == "environment":
        python, packages = _interpreter(Path(text)), None
    has_package = kind == "wheel"
    if source is not None:
        if kind == "git ref" and not (folder / INSTALLED).exists():
            _export(str(commit), source)
        has_package = _has_project(source)
        files = [_within(source, file) for file in plugins]
        if not has_package and not any(Path(file).is_relative_to(source) for file in files):
            raise UsageError(
                f"{text} has no pyproject.toml to install and no plug-in file of its tree was named: pass "
                "--plugin with a path relative to its top"
            )
    side = Side(
        text,
        kind,
        str(folder),
        python,
        commit,
        str(packages) if has_package else None,
        tuple(files),
    )
    if _ready(folder) == side.to_json() and kind != "source folder":
        return side
    folder.mkdir(parents=True, exist_ok=True)
    if has_package:
        assert packages is not None
        _pip_install(Path(text).resolve() if source is None else source, packages, text)
    (folder / INSTALLED).write_text(json.dumps(side.to_json(), indent=1) + "\n")
    return side


def kind_of(text: str) -> tuple[str, str | None]:
    """Tell what a text names, and the commit if that is a git ref. Existing paths come before refs.

    Raises:
        UsageError: it names nothing.
    """
    if not text.strip() or "\0" in text:
        raise UsageError(f"{text!r} names no version: it must be {FORMS}")
    path = Path(text)
    if path.is_file() and path.suffix == ".py":
        return "plug-in", None
    if path.is_file() and path.suffix == ".whl":
        return "wheel", None
    if path.is_dir() and _has_project(path):
        return "source folder", None
    if (path / "bin" / "python").exists() or (path.is_file() and os.access(path, os.X_OK)):
        return "environment", None
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if commit is None:
        where = "" if _git("rev-parse", "--git-dir") else "; this folder is not in a git repository"
        raise UsageError(f"{text!r} names no version: it must be {FORMS}{where}")
    return "git ref", commit


def _has_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py"))


def _interpreter(path: Path) -> str:
    python = path if path.is_file() else path / "bin" / "python"
    return str(Path.cwd() / python)  # not resolved: a link's folder makes it a virtual environment


def _absolute(file: str) -> str:
    if not Path(file).is_file():
        raise UsageError(f"there is no plug-in file {file}")
    return str(Path(file).resolve())


def _within(source: Path, file: str) -> str:
    """Find a plug-in file in a tree if it is there, or else where this process stands."""
    inside = source / file
    return str(inside) if not Path(file).is_absolute() and inside.is_file() else _absolute(file)


def _ready(folder: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads((folder / INSTALLED).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _git(*arguments: str) -> str | None:
    """Run git in the current folder and return its output; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _export(commit: str, into: Path) -> None:
    """Write the tree of a commit into a folder."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    top = _git("rev-parse", "--show-toplevel") or "."
    with subprocess.Popen(["git", "-C", top, "archive", commit], stdout=subprocess.PIPE) as archive:
        assert archive.stdout is not None
        try:
            with tarfile.open(fileobj=archive.stdout, mode="r|") as tar:
                tar.extractall(into, filter="data")
        except tarfile.TarError as error:
            raise UsageError(f"cannot export the commit {commit}: {error}") from error
    if archive.returncode:
        raise UsageError(f"cannot export the commit {commit}: git archive exited with {archive.returncode}")


def _pip_install(what: Path, into: Path, text: str) -> None:
    """Install a source folder or wheel, without its dependencies, into a folder of its own."""
    shutil.rmtree(into, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(into)]
    if find_spec("setuptools"):
        command.append("--no-build-isolation")  # works without a network
    try:
        done = subprocess.run(
            [*command, str(what)], capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"cannot install {text}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else ""
        )
        raise UsageError(f"cannot install {text}: pip exited with {done.returncode}: {last}")
