"""Sides: the two versions that `ssmperf ab` compares, each installed apart with compiler caches of its own.

A side is named by a git ref, a source folder, a wheel, a plug-in file, or an environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssmperf.engine.processes.compilers import compiler_caches
from ssmperf.errors import UsageError, VersionFailed

FORMS = (
    "a git ref, a folder with a pyproject.toml or of a checkout, a wheel, a plug-in file (.py), or an "
    "environment"
)
INSTALL_S = 600.0
GIT_S = 60.0
ENTRY_POINTS = "ssmperf."  # how the groups begin by which a package registers plug-ins
INSTALLED = "installed"  # a file in a version's folder, written when it is ready
MOST_VERSIONS = 24  # that are kept


@dataclass(frozen=True, slots=True)
class Side:
    """One version, ready to be measured.

    text: as the user named it. kind: "git ref", "source folder", "wheel", "plug-in" or "environment".
    commit: that of a git ref, or the one that is checked out in a source folder. changed: whether the folder
        has changes beyond it.
    python: its interpreter. folder: holds its sources, packages and caches.
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
    changed: bool = False

    @property
    def label(self) -> str:
        """The side in words, such as "git ref main (1a2b3c4d5e)"."""
        commit = self.commit[:10] if self.commit else ""
        if self.text and (self.commit or "").startswith(self.text):
            return f"{self.kind} {commit}"
        changes = " with changes" if self.changed else ""
        return f"{self.kind} {self.text}" + (f" ({commit}{changes})" if commit else "")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes: those of this process, with packages and caches of its own.

        What lies in the current folder, such as another version's sources, is not imported.
        """
        own = compiler_caches(Path(self.folder) / "caches")  # kernels of one side must not serve the other
        paths = [path for path in (self.packages, os.environ.get("PYTHONPATH")) if path]
        own["PYTHONSAFEPATH"] = "1"
        return {**os.environ, **own, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}

    def to_json(self) -> dict[str, Any]:
        """Describe the version, with the hashes of its plug-in files."""
        hashes = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in self.plugins]
        return {**asdict(self), "plugins": list(self.plugins), "plugins_sha256": hashes}


def versions_folder() -> Path:
    """The folder in which versions are installed, to be used again by later comparisons."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ssmperf" / "versions"


def install(text: str, name: str, plugins: Iterable[str] = (), root: Path | None = None) -> Side:
    """Make a version ready, unless an earlier comparison has left it so.

    name: "base" or "new": the same version has a folder of its own on either side.
    plugins: plug-in files for both sides. For a git ref or a source folder, one with a relative path is
        taken from its tree, if it is there. One that the version's package registers is not loaded twice.
    root: folder for the versions; None means `versions_folder()`.

    Raises:
        UsageError: the text names no version, or the folder cannot be written.
        VersionFailed: it cannot be installed, or lacks a plug-in file.
    """
    kind, commit = kind_of(text)
    root = (root or versions_folder()).resolve()
    folder = root / f"{name:_<4}-{_identity(text, kind, commit)}"  # paths of one length: they move the stack
    source = folder / "source" if kind in ("git ref", "source folder") else None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another comparison may be installing it
            if not (folder / INSTALLED).exists():
                if source is not None:
                    shutil.rmtree(source, ignore_errors=True)
                    source.mkdir()
                    if commit is not None:
                        _export(commit, source)
                    else:
                        _copy(Path(text).resolve(), source)
                what = Path(text).resolve() if kind == "wheel" else source
                if what is not None and (kind == "wheel" or _has_project(what)):
                    _pip_install(what, folder / "packages", text, name)
                (folder / INSTALLED).touch()
            os.utime(folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
    _prune(root)
    has_packages = (folder / "packages").is_dir()
    files = [_absolute(file, name) if source is None else _within(source, file, name) for file in plugins]
    if kind == "plug-in":
        files.append(_absolute(text, name))
    if source is not None and not has_packages and not any(Path(f).is_relative_to(source) for f in files):
        raise VersionFailed(
            f"{text} has no pyproject.toml to install, and no plug-in file of its tree was named: pass "
            "--plugin with a path relative to its top",
            name,
        )
    if has_packages:
        registered = _registered(folder / "packages")
        files = [file for file in files if Path(file).read_bytes() not in registered]
    changed = False
    if kind == "source folder":
        commit, changed = _checked_out(Path(text))
    return Side(
        text,
        kind,
        str(folder),
        _interpreter(Path(text)) if kind == "environment" else sys.executable,
        commit,
        str(folder / "packages") if has_packages else None,
        tuple(files),
        changed,
    )


def _checked_out(folder: Path) -> tuple[str | None, bool]:
    """Get the commit of the checkout that a folder is in, and whether the folder has changes beyond it."""
    commit = _git("-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return commit, bool(commit and _git("-C", str(folder), "status", "--porcelain", "--", "."))


def _identity(text: str, kind: str, commit: str | None) -> str:
    """Hash the contents of a version, or the place of a plug-in file or environment."""
    digest = hashlib.sha256(f"{kind} {sys.version_info[:2]} ".encode())
    if commit is not None:
        digest.update(commit.encode())
    elif kind == "wheel":
        digest.update(Path(text).read_bytes())
    elif kind == "source folder":
        for file in _files(Path(text).resolve()):
            digest.update(f"{file} ".encode() + hashlib.sha256((Path(text) / file).read_bytes()).digest())
    else:
        digest.update(str(Path.cwd() / text).encode())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> list[str]:
    """List the files of a source folder: those that git does not ignore, or else all that are not hidden."""
    listed = _git("-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard", ".")
    if listed:
        found = [file for file in listed.split("\0") if (folder / file).is_file()]
    else:
        found = [
            str(file.relative_to(folder))
            for file in folder.rglob("*")
            if file.is_file() and not any(part[0] == "." for part in file.relative_to(folder).parts)
        ]
    return sorted(file for file in found if "__pycache__" not in file)


def _copy(folder: Path, into: Path) -> None:
    """Copy the files of a source folder, since building a package writes into its sources."""
    for file in _files(folder):
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / file, into / file)


def _prune(root: Path) -> None:
    """Remove the versions that were used longest ago."""
    folders = sorted(
        (folder for folder in root.iterdir() if folder.is_dir()), key=lambda folder: folder.stat().st_mtime
    )
    for folder in folders[:-MOST_VERSIONS]:
        shutil.rmtree(folder, ignore_errors=True)


def kind_of(text: str) -> tuple[str, str | None]:
    """Tell the kind of a version from its text, and the commit if it is a git ref. Existing paths come first.

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
    if (path / ".git").exists():
        return "source folder", None
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
    if commit is None:
        where = "" if _git("rev-parse", "--git-dir") else "; this folder is not in a git repository"
        where = where or (shallow_words() if _may_be_ref(text) else "")
        raise UsageError(f"{text!r} names no version: it must be {FORMS}{where}")
    return "git ref", commit


def shallow_words() -> str:
    """What to add to a message about history that is missing: nothing, unless this clone is shallow."""
    if _git("rev-parse", "--is-shallow-repository") != "true":
        return ""
    return (
        "; this clone is shallow, without earlier commits: git fetch --unshallow gets them (in GitHub's "
        "actions/checkout: fetch-depth: 0)"
    )


def _may_be_ref(text: str) -> bool:
    """Tell whether a commit may have such a name: not a plug-in file, wheel or option."""
    return not (text.startswith("-") or text.endswith((".py", ".whl")))


def _has_project(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("pyproject.toml", "setup.py"))


def _interpreter(path: Path) -> str:
    python = path if path.is_file() else path / "bin" / "python"
    return str(Path.cwd() / python)  # not resolved: a link's folder makes it a virtual environment


def _absolute(file: str, name: str) -> str:
    if not Path(file).is_file():
        raise VersionFailed(f"there is no plug-in file {file}", name)
    return str(Path(file).resolve())


def _within(source: Path, file: str, name: str) -> str:
    """Find a plug-in file in a tree if it is there, or else where this process stands."""
    inside = source / file
    return str(inside) if not Path(file).is_absolute() and inside.is_file() else _absolute(file, name)


def _registered(packages: Path) -> set[bytes]:
    """Read the modules that ssmperf imports when it starts, since entry points of the packages name them."""
    entries = [
        entry for found in distributions(path=[str(packages)]) for entry in found.entry_points
        if entry.group.startswith(ENTRY_POINTS)
    ]  # fmt: skip
    files = [packages / f"{entry.module.replace('.', '/')}.py" for entry in entries]
    return {file.read_bytes() for file in files if file.is_file()}


def _git(*arguments: str) -> str | None:
    """Run git in the current folder and return its output; None if it fails or is not installed."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _export(commit: str, into: Path) -> None:
    """Write the tree of a commit into a folder."""
    top = _git("rev-parse", "--show-toplevel") or "."
    with subprocess.Popen(["git", "-C", top, "archive", commit], stdout=subprocess.PIPE) as archive:
        assert archive.stdout is not None
        try:
            with tarfile.open(fileobj=archive.stdout, mode="r|") as tar:
                tar.extractall(into, filter="data")
            archive.stdout.read()  # padding behind the end: unread, it would end git by a closed pipe
        except tarfile.TarError as error:
            raise UsageError(f"cannot export the commit {commit}: {error}") from error
    if archive.returncode:
        raise UsageError(f"cannot export the commit {commit}: git archive exited with {archive.returncode}")


def _pip_install(what: Path, into: Path, text: str, name: str) -> None:
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
        raise VersionFailed(f"cannot install {text}: {error}", name) from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else ""
        )
        raise VersionFailed(f"cannot install {text}: pip exited with {done.returncode}: {last}", name)
