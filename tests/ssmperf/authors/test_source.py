"""From where a gate installs ssmperf: an address and a commit that are ours, without secrets, or nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.versions.gate import OF_A_CI, Place
from support.versions.repositories import git

from ssmperf import UsageError
from ssmperf.authors.starter import source
from ssmperf.authors.starter.repository import StarterRepository
from ssmperf.authors.starter.source import find_source, source_of, without_secrets
from ssmperf.shell import cli

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = {"vcs": "git", "commit_id": COMMIT}


@pytest.mark.parametrize(
    ("noted", "words"),
    [
        ({"url": "https://host/o/ssmperf.git", "vcs_info": GIT}, "ssmperf@git+https://host/o/ssmperf.git@{}"),
        ({"url": "https://me:secret@host/s.git", "vcs_info": GIT}, "ssmperf@git+https://host/s.git@{}"),
        ({"url": "https://secret@host/s.git?secret=1", "vcs_info": GIT}, "ssmperf@git+https://host/s.git@{}"),
        ({"url": "ssh://git@host/s.git", "vcs_info": GIT}, "ssmperf@git+ssh://git@host/s.git@{}"),
        ({"url": "ssh://git:secret@host/s.git", "vcs_info": GIT}, "ssmperf@git+ssh://git@host/s.git@{}"),
        ({"url": "https://host/s.git", "vcs_info": GIT, "subdirectory": "a b"},
         "ssmperf@git+https://host/s.git@{}#subdirectory=a%20b"),
        ({"url": "https://host/s.tar.gz", "archive_info": {}}, "ssmperf@https://host/s.tar.gz"),
        ({"url": "https://host/s.whl#sha256=1", "archive_info": {}}, "ssmperf@https://host/s.whl"),
    ],
)  # fmt: skip
def test_what_pip_has_noted(noted: dict[str, Any], words: str) -> None:
    found = source_of(noted)
    assert found and found.words == words.format(COMMIT)
    assert "secret" not in str(found) and bool(found.remarks) == ("secret" in noted["url"])
    assert len(found.words.split()) == 1  # the gate's list is separated by spaces


@pytest.mark.parametrize(
    "noted",
    [
        None,  # from an index
        {},
        {"url": "file:///no/such/folder", "dir_info": {}},
        {"url": "file:///tmp/ssmperf-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://me:secret@host/s.whl", "archive_info": {}},
        {"url": "https://host/s.whl?token=secret", "archive_info": {}},
        {"url": "https://host/s.git", "vcs_info": {"vcs": "git"}},
        {"url": "https://host/s.git", "vcs_info": {"vcs": "git", "commit_id": "main; rm -r"}},
        {"url": "https://host/a b.whl", "archive_info": {}},
        {"url": 7},
    ],
    ids=str,
)
def test_what_says_too_little(noted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_of(noted) is None
    monkeypatch.setattr(source, "_direct_url", lambda: noted)
    monkeypatch.setattr(source, "PLACE", Path("/no/checkout"))
    monkeypatch.delenv("SSMPERF_INSTALL", raising=False)
    with pytest.raises(UsageError, match="set SSMPERF_INSTALL to what pip shall install"):
        find_source()


class TestCheckout:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        folder = tmp_path / "a checkout"
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main")
        (folder / "file").write_text("")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "one")
        return folder

    def noted(self, folder: Path) -> dict[str, Any]:
        return {"url": folder.as_uri(), "dir_info": {"editable": True}}

    @pytest.mark.parametrize(
        ("remote", "address"),
        [
            ("https://host/o/s.git", "https://host/o/s.git"),
            ("https://me:secret@host/o/s.git", "https://host/o/s.git"),
            ("git@host:o/s.git", "ssh://git@host/o/s.git"),
            ("ssh://git@host:22/o/s", "ssh://git@host:22/o/s"),
        ],
    )
    def test_its_remote_and_commit(self, checkout: Path, remote: str, address: str) -> None:
        git(checkout, "remote", "add", "origin", remote)
        found = source_of(self.noted(checkout))
        assert found and found.words == f"ssmperf@git+{address}@{git(checkout, 'rev-parse', 'HEAD')}"
        assert "secret" not in str(found) and any("push the commit" in remark for remark in found.remarks)

    def test_a_commit_that_the_remote_has(self, checkout: Path, tmp_path: Path) -> None:
        git(checkout, "remote", "add", "origin", "https://host/s.git")
        git(checkout, "update-ref", "refs/remotes/origin/main", "HEAD")
        found = source_of(self.noted(checkout))
        assert found and found.remarks == ()
        (checkout / "file").write_text("changed")
        assert "has changes" in str(source_of(self.noted(checkout)))

    @pytest.mark.parametrize("remote", [None, "/another/folder", "../relative", "file:///a/folder"])
    def test_without_a_remote_that_others_reach_it_is_this_machine_s(
        self, checkout: Path, remote: str | None
    ) -> None:
        if remote:
            git(checkout, "remote", "add", "origin", remote)
        found = source_of(self.noted(checkout))
        commit = git(checkout, "rev-parse", "HEAD")
        assert found and found.words == f"ssmperf@git+{checkout.as_uri()}@{commit}"
        assert any("only this machine has" in remark for remark in found.remarks)
        fetched = subprocess.run(["git", "ls-remote", checkout.as_uri()], capture_output=True, text=True)
        assert commit in fetched.stdout  # pip can get it there

    def test_a_folder_below_the_top(self, checkout: Path) -> None:
        (checkout / "below").mkdir()
        found = source_of(self.noted(checkout / "below"))
        assert found and found.words.endswith("#subdirectory=below")


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("ssmperf@git+https://me:secret@host/s.git@main", "ssmperf@git+https://host/s.git@main"),
        ("git+ssh://git@host/s.git@v1", "git+ssh://git@host/s.git@v1"),
        ("--index-url=https://secret@host/simple", "--index-url=https://host/simple"),
        ("https://host/s.whl?sig=secret#sha256=1", "https://host/s.whl#sha256=1"),
        ("../ssmperf", "../ssmperf"),
        ("dist/ssmperf-0.1.0-py3-none-any.whl", "dist/ssmperf-0.1.0-py3-none-any.whl"),
    ],
)
def test_secrets_are_left_out(given: str, safe: str) -> None:
    assert without_secrets(given) == safe


class TestVerb:
    def new(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(sys, "argv", ["ssmperf", "new", "scan", "mine", "--dir", str(folder)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(str(ended.value.code))

    @pytest.mark.parametrize("given", ["../ssmperf --no-deps", "'; touch harm; '$(touch harm)`touch harm`"])
    def test_the_environment_s_answer_is_written(
        self, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Quoted, so that it is data."""
        monkeypatch.setenv("SSMPERF_INSTALL", given)
        assert self.new(tmp_path / "mine", monkeypatch) == 0
        gate = tmp_path / "mine" / "ci" / "gate"
        assert f"\ninstall={shlex.quote(given)}\n" in gate.read_text()
        (tmp_path / "mine" / "run.json").write_text("{}")
        place = Place(tmp_path / "mine", "", tmp_path / "asked")
        environment = {"PYTHON": str(tmp_path / "python")}
        (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path / "called"}\n')
        (tmp_path / "python").chmod(0o755)
        done = place.gate("--baseline", ".", script=gate, **environment)
        assert f"gate: installing {given} into" in done.stderr
        assert not [*tmp_path.rglob("harm")]

    def test_without_an_answer_nothing_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(source, "PLACE", tmp_path)  # where nothing is installed
        monkeypatch.delenv("SSMPERF_INSTALL", raising=False)
        assert self.new(tmp_path / "mine", monkeypatch) == 2
        error = capsys.readouterr().err
        assert "SSMPERF_INSTALL" in error and error.count("\n") == 1 and not (tmp_path / "mine").exists()

    @pytest.mark.parametrize(
        "text", [json.dumps({"url": "https://host/s.git", "vcs_info": GIT}), "[", "7", None]
    )
    def test_the_installation_itself_is_read(
        self, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That which holds the package, whatever else of the name is on the path."""
        info = tmp_path / "ssmperf-9.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ssmperf\nVersion: 9.9\n")
        if text is not None:
            (info / "direct_url.json").write_text(text)
        monkeypatch.delenv("SSMPERF_INSTALL", raising=False)
        monkeypatch.setattr(source, "PLACE", tmp_path)
        if text and "url" in text:
            assert find_source().words == f"ssmperf@git+https://host/s.git@{COMMIT}"
        else:
            with pytest.raises(UsageError, match="SSMPERF_INSTALL"):
                find_source()

    def test_a_checkout_that_holds_the_package_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        git(tmp_path, "init", "-q", "-b", "main")
        (tmp_path / "pyproject.toml").write_text("")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", "one")
        git(tmp_path, "remote", "add", "origin", "https://host/s.git")
        monkeypatch.delenv("SSMPERF_INSTALL", raising=False)
        monkeypatch.setattr(source, "PLACE", tmp_path)
        commit = git(tmp_path, "rev-parse", "HEAD")
        assert find_source().words == f"ssmperf@git+https://host/s.git@{commit}"


def test_a_copied_gate_asks_what_to_install(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    done = Place(tmp_path, "", tmp_path / "asked").gate("--base", "a", "--new", "b", PYTHON=sys.executable)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "set SSMPERF_INSTALL to what pip shall install" in done.stderr and "SSMPERF_INSTALL" in OF_A_CI
    assert not (tmp_path / ".venv-ssmperf").exists()


# Requirements that an index would answer: the bare name, with extras or versions.
NAME = re.compile(r"""(?x)
    pip[ ]install\b [^\n#]*? [\s'"] ssmperf (?= [\s'"`,;)\[=<>~!] | $ )
    | \bssmperf \[ [a-z]\w* \]
    | SSMPERF_INSTALL [=:"'-]{1,4} ssmperf (?= [\s'"}\[=<>~!] | $ )
    | (?:dependencies|requires) \s* = \s* \[ [^]\n]* ["'] ssmperf (?= ["'\[=<>~! ] )
""", re.MULTILINE)  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    folders = ("docs", "ci", ".github", "ssmperf", "impls", "suites", "reports", "examples")
    for file in [*ROOT.glob("*"), *(each for folder in folders for each in (ROOT / folder).rglob("*"))]:
        if file.suffix in (".md", ".py", ".sh", ".yml", ".txt", ".toml", "") and file.is_file():
            text = file.read_text(errors="ignore")
            if file == ROOT / "pyproject.toml":  # its own extra, of the same checkout
                text = text.replace('"ssmperf[cuda]",', "")
            yield str(file.relative_to(ROOT)), text


def test_nothing_installs_a_name_that_is_not_ours() -> None:
    found = {name: match[0] for name, text in texts() if (match := NAME.search(text))}
    assert found == {}
    package = StarterRepository("scan", "mine", package=True).texts()["pyproject.toml"]
    assert not NAME.search(package) and '"ssmperf"' not in package


@pytest.mark.parametrize(
    "text",
    [
        "pip install ssmperf",
        "    pip install 'ssmperf[peers]'   # wheels",
        "python -m pip install --upgrade ssmperf pytest",
        "`pip install ssmperf`",
        "pip install ssmperf==0.1",
        "it is in ssmperf[peers]",
        '<<<"${SSMPERF_INSTALL:-ssmperf}"',
        'SSMPERF_INSTALL="ssmperf ."',
        'dependencies = ["ssmperf", "torch"]',
    ],
)
def test_such_a_name_would_be_found(text: str) -> None:
    assert NAME.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install ./ssmperf pytest",
        "pip install -e '.[peers]'",
        "SSMPERF_INSTALL=ssmperf@git+https://HOST/ssmperf.git@COMMIT",
        "SSMPERF=ssmperf ci/gate",
        'pip install "ssmperf@git+https://HOST/ssmperf.git"',
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert not NAME.search(text)
