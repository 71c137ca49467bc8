"""The sides of a comparison: what names a version, how it is installed apart, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ssmperf.comparison.versions import sides
from ssmperf.engine.machine.activity import SIDE
from ssmperf.engine.processes.compilers import COMPILER_CACHES
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


@pytest.fixture(autouse=True)
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep installed versions in a temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ssmperf" / "versions"


def install(text: str, name: str = "base", plugins: tuple[str, ...] = ()) -> sides.Side:
    return sides.install(text, name, plugins)


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


@pytest.mark.slow
def test_git_refs_are_installed_apart(repository: Path, tmp_path: Path) -> None:
    base, new = (install(ref) for ref in ("one", "main"))
    assert (base.kind, new.kind) == ("git ref", "git ref")
    assert (seen(base), seen(new)) == ("1", "2")
    assert base.commit != new.commit and str(base.commit)[:10] in base.label


@pytest.mark.slow
def test_caches_of_compilers_are_apart(repository: Path, versions: Path) -> None:
    made = [install("main", name).environment for name in ("base", "new")]
    for name in COMPILER_CACHES:
        assert made[0][name] != made[1][name]
        assert str(versions) in made[0][name]
        assert len(made[0][name]) == len(made[1][name])


@pytest.mark.slow
def test_what_is_ready_is_not_installed_again(repository: Path, tmp_path: Path) -> None:
    first = install("main")
    mark = Path(str(first.packages)) / "mark"
    mark.touch()
    assert install("main") == first and mark.exists()
    git(repository, "commit", "-q", "--allow-empty", "-m", "three")
    other = install("main")  # another commit by the same name
    assert other.folder != first.folder and mark.exists()


@pytest.mark.slow
def test_a_changed_source_folder_is_another_version(tmp_path: Path) -> None:
    first = install(str(project(tmp_path / "source", 1)))
    assert install(str(tmp_path / "source")) == first
    second = install(str(project(tmp_path / "source", 2)))
    assert (seen(first), seen(second)) == ("1", "2")


def test_the_versions_used_last_are_kept(
    tmp_path: Path, versions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "MOST_VERSIONS", 2)
    for number in range(4):
        (tmp_path / f"{number}.py").write_text("")
        side = install(str(tmp_path / f"{number}.py"))
        os.utime(side.folder, (number, number))
    kept = {folder.name for folder in versions.iterdir()}
    assert len(kept) == 2 and Path(side.folder).name in kept


@pytest.mark.slow
def test_a_source_folder_and_a_wheel(tmp_path: Path) -> None:
    folder = project(tmp_path / "source", 7)
    side = install(str(folder))
    assert (side.kind, seen(side)) == ("source folder", "7")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(tmp_path), str(folder)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    side = install(str(wheel))
    assert (side.kind, seen(side)) == ("wheel", "7")


@pytest.mark.slow
def test_plugins_of_a_tree_come_from_the_tree(repository: Path, tmp_path: Path) -> None:
    (repository / "mine.py").write_text("# one\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "plug-in")
    (repository / "mine.py").write_text("# changed, not committed\n")
    side = install("main", plugins=("mine.py",))
    assert [Path(file).read_text() for file in side.plugins] == ["# one\n"]


def test_padding_behind_an_archive_does_no_harm(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git that writes the padding late, when the reader has seen the end of the archive."""
    tools = tmp_path / "tools"
    tools.mkdir()
    real = shutil.which("git")
    (tools / "git").write_text(
        f'#!/bin/bash\n{real} "$@" || exit\n'
        'if [[ " $* " == *" archive "* ]]; then sleep 0.2; head --bytes=1000000 /dev/zero; fi\n'
    )
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    (tmp_path / "tree").mkdir()
    sides._export("HEAD", tmp_path / "tree")
    assert (tmp_path / "tree" / "a_kernel.py").read_text() == "VALUE = 2\n"


@pytest.mark.slow
def test_a_plugin_that_the_package_registers_is_not_loaded_twice(repository: Path) -> None:
    """A kernel's repository can be installed, and still name its file as in one that cannot."""
    entry = '[project.entry-points."ssmperf.impls"]\na_kernel = "a_kernel"\n[tool.setuptools]'
    (repository / "pyproject.toml").write_text(PYPROJECT.replace("[tool.setuptools]", entry))
    (repository / "other.py").write_text("# registered by nothing\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "an entry point")
    side = install("main", plugins=("a_kernel.py", "other.py"))
    assert [Path(file).name for file in side.plugins] == ["other.py"]
    assert [Path(file).name for file in install("one", plugins=("a_kernel.py",)).plugins] == ["a_kernel.py"]


def test_a_tree_without_a_project_needs_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "mine.py").write_text("# one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.chdir(tmp_path)
    side = install("main", plugins=("mine.py",))
    assert side.packages is None and len(side.plugins) == 1
    with pytest.raises(UsageError, match=r"no pyproject\.toml"):
        install("main", "new")


@pytest.mark.slow
def test_a_checkout_with_changes_is_a_version(repository: Path) -> None:
    """It has its uncommitted files, and its label says from which commit they deviate."""
    clean = install(".", "new")
    (repository / "a_kernel.py").write_text("VALUE = 3\n")
    changed = install(".", "new")
    assert (seen(clean), seen(changed)) == ("2", "3")
    assert clean.label == f"source folder . ({str(clean.commit)[:10]})" and clean.commit == changed.commit
    assert changed.label == f"source folder . ({str(clean.commit)[:10]} with changes)"


def test_a_checkout_without_a_project_needs_a_plugin(repository: Path) -> None:
    (repository / "pyproject.toml").unlink()
    (repository / "mine.py").write_text("# not committed\n")
    side = install(".", plugins=("mine.py",))
    assert side.packages is None and side.plugins[0].startswith(side.folder)
    assert [Path(file).read_text() for file in side.plugins] == ["# not committed\n"]
    with pytest.raises(UsageError, match=r"no pyproject\.toml"):
        install(".", "new")


def test_a_plugin_file_and_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("# a kernel\n")
    side = install(str(file))
    assert (side.kind, side.plugins, side.packages) == ("plug-in", (str(file),), None)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    side = install(str(tmp_path / "env"))
    assert side.kind == "environment"
    assert side.python == str(tmp_path / "env" / "bin" / "python")


@pytest.mark.parametrize("text", ["no-such-ref", "missing.py", "missing.whl", "--help", "", "a\0b"])
def test_what_names_no_version_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no version"):
        install(text)


def test_what_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("not toml")
    with pytest.raises(UsageError, match="cannot install"):
        install(str(folder))


def test_a_missing_plugin_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")
    with pytest.raises(UsageError, match=r"no plug-in file other\.py"):
        install(str(file), plugins=("other.py",))


@pytest.mark.slow
def test_a_side_is_started_by_the_name_that_every_version_has() -> None:
    """Versions before and after a move of its code are compared with one another."""
    assert SIDE == "ssmperf.versions.serve"
    asked = json.dumps({"plugins": [], "request": {"suite": "nobody", "device": "cpu"}})
    command = [sys.executable, "-m", SIDE]
    done = subprocess.run(command, input=asked, text=True, capture_output=True, timeout=120, check=False)
    assert "unknown suite 'nobody'" in json.loads(done.stdout)["failed"] and done.returncode == 2
