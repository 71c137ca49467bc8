"""A shallow clone lacks commits: whoever asks for one is told so, with the command that gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.versions.repositories import commit, git

import ssmperf
from ssmperf import Run, UsageError
from ssmperf.comparison.versions import sides
from ssmperf.comparison.versions.remeasure import commit_of

SHALLOW = "this clone is shallow, .*git fetch --unshallow"


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A repository with three commits, of which the first is tagged, and a branch."""
    folder = tmp_path / "full"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in range(3):
        commit(folder, number, f"# {number}\n")
        git(folder, "tag", f"v{number}")
    git(folder, "branch", "topic", "v1")
    return folder


@pytest.fixture
def clone(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its last commit alone, in which the test stands."""
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{full}", "clone")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


@pytest.mark.parametrize("ref", ["HEAD~1", "v0", "main^", "topic", "origin/topic", "{hash}", "{short}"])
def test_a_version_that_is_not_in_the_clone_is_told(clone: Path, full: Path, ref: str) -> None:
    name = git(full, "rev-parse", "v1")
    text = ref.format(hash=name, short=name[:8])
    with pytest.raises(UsageError, match=f"names no version.*{SHALLOW}") as error:
        sides.kind_of(text)
    assert "\n" not in str(error.value)
    for verb in (ssmperf.ab, ssmperf.bisect):
        more = {"case": "3f"} if verb is ssmperf.bisect else {}
        with pytest.raises(UsageError, match=SHALLOW):
            verb(text, "HEAD", out=clone / "out", **more)  # type: ignore[operator]


def test_the_command_gets_it(clone: Path) -> None:
    git(clone, "fetch", "-q", "--unshallow")
    assert sides.kind_of("HEAD~1") == ("git ref", git(clone, "rev-parse", "v1"))
    with pytest.raises(UsageError) as error:
        sides.kind_of("HEAD~9")
    assert "shallow" not in str(error.value)


@pytest.mark.parametrize("text", ["missing.py", "missing.whl", "--help", ""])
def test_what_is_no_ref_is_missing_for_another_reason(clone: Path, text: str) -> None:
    with pytest.raises(UsageError, match="names no version") as error:
        sides.kind_of(text)
    assert "shallow" not in str(error.value)


def test_ends_of_a_search_whose_history_is_cut(clone: Path, full: Path) -> None:
    git(clone, "fetch", "-q", "--depth", "1", "origin", "tag", "v0")
    with pytest.raises(UsageError, match=f"no ancestor of .*{SHALLOW}"):
        ssmperf.bisect("v0", "HEAD", case="3f", out=clone / "out")


def test_the_commit_of_a_run_that_is_measured_again(clone: Path, full: Path) -> None:
    state = {"commit": git(full, "rev-parse", "v1"), "dirty": False}
    run = Run(Path("x"), {"environments": {"e": {"git": state}}}, [])
    with pytest.raises(UsageError, match=f"not in this repository: .*--base-version.*{SHALLOW}"):
        commit_of(run, "base")
