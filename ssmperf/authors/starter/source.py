"""Where did this ssmperf come from? What a gate elsewhere installs, since an index's `ssmperf` is not ours.

It is read off the checkout that holds this package, or else off the `direct_url.json` of PEP 610 beside it:
an address and a commit, or a folder whose checkout has both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ssmperf.errors import UsageError

PACKAGE = "ssmperf"
PLACE = Path(__file__).parents[3]  # the folder that holds the package: site-packages, or a checkout
VARIABLE = "SSMPERF_INSTALL"
FETCHED = ("https", "http", "ssh", "git")  # addresses that another machine can reach
SCP_FORM = re.compile(r"(?P<user>[\w.-]+@)?(?P<host>[\w.-]+):(?P<path>[^/\\].*)")  # git@host:owner/name
USER = re.compile(r"(?P<scheme>[a-zA-Z+.-]+)://(?P<user>[^/?#\s]*)@")
QUERY = re.compile(r"(?P<address>://[^?#\s]*)\?[^#\s]*")
GIT_S = 20.0


@dataclass(frozen=True, slots=True)
class InstallSource:
    """The requirement by which pip installs this ssmperf.

    words: the arguments of pip install, separated by spaces. remarks: what may keep another machine from it.
    """

    words: str
    remarks: tuple[str, ...] = ()


def find_source() -> InstallSource:
    """Read the source from $SSMPERF_INSTALL, or else from what pip noted of this installation.

    Raises:
        UsageError: neither says.
    """
    given = os.environ.get(VARIABLE, "").split()
    if given:
        safe = [without_secrets(word) for word in given]
        remark = f"{VARIABLE} has credentials, which are left out of ci/gate: set it where the gate runs"
        return InstallSource(" ".join(safe), (remark,) if safe != given else ())
    in_checkout = (PLACE / "pyproject.toml").is_file()  # installed as editable, or not at all
    found = _of_checkout(PLACE) if in_checkout else source_of(_direct_url())
    if found is None:
        raise UsageError(
            f"cannot tell from where this {PACKAGE} was installed: set {VARIABLE} to what pip shall install "
            f"in ci/gate, such as {PACKAGE}@git+https://HOST/{PACKAGE}.git@COMMIT or a folder"
        )
    return found


def source_of(noted: Mapping[str, Any] | None) -> InstallSource | None:
    """Turn the contents of a `direct_url.json` into a source; None if it does not say enough."""
    noted = noted or {}
    url = noted.get("url")
    if not isinstance(url, str) or re.search(r"\s", url):
        return None
    part = noted.get("subdirectory")
    end = f"#subdirectory={quote(part)}" if isinstance(part, str) and part else ""
    vcs = noted.get("vcs_info")
    if isinstance(vcs, Mapping):
        kind, commit = str(vcs.get("vcs")), vcs.get("commit_id")
        if not (isinstance(commit, str) and re.fullmatch(r"[\w.-]+", commit) and kind.isalpha()):
            return None
        return _at_commit(url, commit, end, kind)
    folder = _local(url)
    if folder is not None:
        return _of_checkout(folder) if "dir_info" in noted else None
    # without its credentials, an archive may be another one, or none
    fetched = "archive_info" in noted and urlsplit(url).scheme in FETCHED[:2] and without_secrets(url) == url
    return InstallSource(f"{PACKAGE}@{url.partition('#')[0]}{end}") if fetched else None


def without_secrets(text: str) -> str:
    """Leave user, password and query out of addresses; the user of ssh is no secret."""

    def kept(found: re.Match[str]) -> str:
        user = found["user"].partition(":")[0] if found["scheme"].endswith("ssh") else ""
        return f"{found['scheme']}://{user}{'@' if user else ''}"

    return QUERY.sub(r"\g<address>", USER.sub(kept, text))


def _at_commit(url: str, commit: str, end: str = "", kind: str = "git", *remarks: str) -> InstallSource:
    safe = without_secrets(url)
    if safe != url:
        remarks += (f"the credentials of {safe} are left out of ci/gate: git must have its own",)
    if urlsplit(safe).scheme not in FETCHED:
        remarks += (f"ci/gate installs {safe}, which only this machine has: elsewhere, set {VARIABLE}",)
    return InstallSource(f"{PACKAGE}@{kind}+{safe}@{commit}{end}", remarks)


def _of_checkout(folder: Path) -> InstallSource | None:
    """Name the commit of a checkout at its remote, or in the folder if it has no remote; None without git."""
    commit, top = _git(folder, "rev-parse", "HEAD"), _git(folder, "rev-parse", "--show-toplevel")
    if not commit or not top:
        return None
    part = folder.resolve().relative_to(Path(top).resolve()).as_posix()
    end = "" if part == "." else f"#subdirectory={quote(part)}"
    remarks = []
    if _git(folder, "status", "--porcelain", "--untracked-files=no", "--", "."):
        remarks.append(f"{folder} has changes that its commit {commit[:10]} does not have")
    remote = _address(_git(folder, "remote", "get-url", "origin"))
    if remote is None:
        return _at_commit(Path(top).resolve().as_uri(), commit, end, "git", *remarks)
    if not _git(folder, "branch", "--remotes", "--contains", commit):
        where = without_secrets(remote)
        remarks.append(f"push the commit {commit[:10]} of {folder}: ci/gate installs it from {where}")
    return _at_commit(remote, commit, end, "git", *remarks)


def _address(remote: str | None) -> str | None:
    """Write git's name of a remote as an address; None if no other machine can reach it."""
    if not remote:
        return None
    scp = SCP_FORM.fullmatch(remote) if "://" not in remote else None
    url = f"ssh://{scp['user'] or ''}{scp['host']}/{scp['path']}" if scp else remote
    parts = urlsplit(url)
    return url if parts.scheme in FETCHED and parts.hostname and not re.search(r"\s", url) else None


def _direct_url() -> Mapping[str, Any] | None:
    """Read what pip noted of this installation; None if it came from an index, or is not installed."""
    for found in distributions(name=PACKAGE, path=[str(PLACE)]):
        try:
            noted = json.loads(found.read_text("direct_url.json") or "null")
        except ValueError:
            continue
        return noted if isinstance(noted, Mapping) else None
    return None


def _local(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _git(folder: Path, *words: str) -> str | None:
    """Run git in a folder and return its output; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
