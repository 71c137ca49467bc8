"""The sides of a comparison: what names a version, how it is installed apart, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ssmperf.ab import sides
from ssmperf.errors import UsageError

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "a-kernel"
version = "1"
[tool.setuptools]
py-modules = ["a_kernel"]
"""


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def project(folder: Path, value: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "a_kernel.py").write_text(f"VALUE = {value}\n")
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with two commits, of which the first is tagged, and stand in it."""
    folder = project(tmp_path / "repository", 1)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "one")
    (folder / "a_kernel.py").write_text("VALUE = 2\n")
    git(folder, "commit", "-q", "-a", "-m", "two")
    monkeypatch.chdir(folder)
    return folder


def seen(side: sides.Side, code: str = "import a_kernel; print(a_kernel.VALUE)") -> str:
    """Run code as the side's processes do and return what it prints."""
    done = subprocess.run([side.python, "-c", code], env=side.environment, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


def test_git_refs_are_installed_apart(repository: Path, tmp_path: Path) -> None:
    base, new = (sides.install(ref, tmp_path / ref) for ref in ("one", "main"))
    assert (base.kind, new.kind) == ("git ref", "git ref")
    assert (seen(base), seen(new)) == ("1", "2")
    assert base.commit != new.commit and str(base.commit)[:10] in base.label


def test_caches_of_compilers_are_apart(repository: Path, tmp_path: Path) -> None:
    made = [sides.install("main", tmp_path / name).environment for name in ("a", "b")]
    for name in sides.CACHES:
        assert made[0][name] != made[1][name]
        assert made[0][name].startswith(str(tmp_path / "a"))


def test_what_is_ready_is_not_installed_again(repository: Path, tmp_path: Path) -> None:
    first = sides.install("main", tmp_path / "side")
    mark = tmp_path / "side" / "packages" / "mark"
    mark.touch()
    assert sides.install("main", tmp_path / "side") == first
    assert mark.exists()
    git(repository, "commit", "-q", "--allow-empty", "-m", "three")
    sides.install("main", tmp_path / "side")  # another commit by the same name
    assert not mark.exists()


def test_a_source_folder_and_a_wheel(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", 7)
    side = sides.install(str(folder), tmp_path / "side")
    assert (side.kind, seen(side)) == ("source folder", "7")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(tmp_path), str(folder)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    side = sides.install(str(wheel), tmp_path / "other")
    assert (side.kind, seen(side)) == ("wheel", "7")


def test_plugins_of_a_tree_come_from_the_tree(repository: Path, tmp_path: Path) -> None:
    (repository / "mine.py").write_text("# one\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "plug-in")
    (repository / "mine.py").write_text("# changed, not committed\n")
    side = sides.install("main", tmp_path / "side", ["mine.py"])
    assert [Path(file).read_text() for file in side.plugins] == ["# one\n"]


def test_a_tree_without_a_project_needs_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "mine.py").write_text("# one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.chdir(tmp_path)
    side = sides.install("main", tmp_path / "side", ["mine.py"])
    assert side.packages is None and len(side.plugins) == 1
    with pytest.raises(UsageError, match=r"no pyproject\.toml"):
        sides.install("main", tmp_path / "other")


def test_a_plugin_file_and_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("# a kernel\n")
    side = sides.install(str(file), tmp_path / "side")
    assert (side.kind, side.plugins, side.packages) == ("plug-in", (str(file),), None)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    side = sides.install(str(tmp_path / "env"), tmp_path / "other")
    assert side.kind == "environment"
    assert side.python == str(tmp_path / "env" / "bin" / "python")


@pytest.mark.parametrize("text", ["no-such-ref", "missing.py", "missing.whl", "--help", "", "a\0b"])
def test_what_names_no_version_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no version"):
        sides.install(text, tmp_path / "side")


def test_what_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("not toml")
    with pytest.raises(UsageError, match="cannot install"):
        sides.install(str(folder), tmp_path / "side")


def test_a_missing_plugin_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")
    with pytest.raises(UsageError, match=r"no plug-in file other\.py"):
        sides.install(str(file), tmp_path / "side", ["other.py"])
