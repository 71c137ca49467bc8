"""The commits among which a bisection searches: `git bisect` in a temporary worktree of its own.

Nothing is checked out there, and the state of a bisection belongs to its worktree. So neither the user's
files, index and HEAD are touched, nor a bisection that the user has under way.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmperf.errors import UsageError

GIT_S = 120.0
FIRST = re.compile(r"^# (?P<possible>possible )?first bad commit: \[(?P<commit>[0-9a-f]+)\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: its full name, its author and the author's date in ISO 8601, and its first line."""

    name: str
    author: str
    date: str
    subject: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Candidates:
    """Chooses the commit to judge next between a good one and a bad one.

    good, bad: full names of commits; the good one is an ancestor of the other. Use as a context manager: the
    worktree is removed at its end, also after Ctrl-C.

    Raises:
        UsageError: git refuses.
    """

    def __init__(self, good: str, bad: str) -> None:
        self.good, self.bad = good, bad
        self.top = git(Path.cwd(), "rev-parse", "--show-toplevel")

    def __enter__(self) -> Candidates:
        self._parent = tempfile.mkdtemp(prefix="ssmperf-bisect-")
        self.folder = Path(self._parent) / "tree"
        try:
            git(Path(self.top), "worktree", "add", "--detach", "--no-checkout", str(self.folder), self.bad)
            self._bisect("start", "--no-checkout", self.bad, self.good)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self._remove()

    def next(self) -> str | None:
        """Name the commit to judge; None if there is nothing left to find out."""
        if self.found():
            return None
        return git(self.folder, "rev-parse", "--verify", "BISECT_HEAD")

    def mark(self, commit: str, verdict: str) -> None:
        """Tell that a commit is "good" or "bad", or that it cannot be judged: "skip"."""
        self._bisect(verdict, commit)

    def found(self) -> list[str]:
        """List the commits that may be the first bad one, once no more can be found out; else nothing.

        They are in the order of their history, the earliest first.
        """
        listed = {match["commit"] for match in FIRST.finditer(self._bisect("log"))}
        if len(listed) < 2:
            return list(listed)
        return [commit for commit in self.between([self.good], self.bad) if commit in listed]

    def between(self, good: Iterable[str], bad: str) -> list[str]:
        """List a commit and its ancestors without some commits and theirs, the earliest first."""
        without = [f"^{each}" for each in good]
        return git(self.folder, "rev-list", "--reverse", "--topo-order", bad, *without).splitlines()

    def parents(self, commits: Sequence[str]) -> list[str]:
        """List the parents of some commits that are not among them."""
        text = git(self.folder, "rev-list", "--no-walk", "--parents", *commits)
        every = [parent for line in text.splitlines() for parent in line.split()[1:]]
        return [parent for parent in dict.fromkeys(every) if parent not in commits]

    def left(self) -> tuple[int, int]:
        """Count the commits among which the first bad one is, and the judgements that are needed, roughly."""
        text = git(self.folder, "rev-list", "--bisect-vars", "--bisect")
        values = dict(line.partition("=")[::2] for line in text.splitlines())
        return int(values["bisect_all"]), int(values["bisect_steps"]) + 1

    def describe(self, commit: str) -> Commit:
        """Read who made a commit, when, and its first line."""
        return describe(self.folder, commit)

    def has(self, commit: str, path: str) -> bool:
        """Tell whether the tree of a commit has a file."""
        return _run(self.folder, "cat-file", "-e", f"{commit}:{path}").returncode == 0

    def _bisect(self, *words: str) -> str:
        """Run a step of `git bisect`; it fails where only skipped commits are left, which is no error."""
        done = _run(self.folder, "bisect", *words)
        if done.returncode and not FIRST.search(_run(self.folder, "bisect", "log").stdout):
            raise UsageError(f"git bisect {words[0]}: {_reason(done)}")
        return done.stdout

    def _remove(self) -> None:
        _run(Path(self.top), "worktree", "remove", "--force", "--force", str(self.folder))
        shutil.rmtree(self._parent, ignore_errors=True)


def describe(folder: Path, commit: str) -> Commit:
    """Read of a repository's commit who made it, when, and its first line.

    Raises:
        UsageError: the repository does not have it.
    """
    text = git(folder, "show", "-s", "--no-show-signature", "--format=%H%x00%an%x00%aI%x00%s", commit)
    return Commit(*text.split("\0"))


def ancestor(good: str, bad: str) -> bool:
    """Tell whether a commit of the repository in the current folder is another one, or an ancestor of it."""
    return _run(Path.cwd(), "merge-base", "--is-ancestor", good, bad).returncode == 0


def path_in_tree(file: str, commit: str) -> str:
    """Give the path of a file in the trees of the repository, if a commit has it; else the file as it is.

    A path is read from the top of the repository or else from the current folder, or is absolute.
    """
    top = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    candidates = [file] if not Path(file).is_absolute() else []
    place = Path(file).resolve()
    candidates += [str(place.relative_to(top))] if place.is_relative_to(top) else []
    tracked = (each for each in candidates if _run(top, "cat-file", "-e", f"{commit}:{each}").returncode == 0)
    return next(tracked, file)


def git(folder: Path, *words: str) -> str:
    """Run git in a folder and return its output.

    Raises:
        UsageError: it fails, or is not installed.
    """
    done = _run(folder, *words)
    if done.returncode:
        raise UsageError(f"git {words[0]}: {_reason(done)}")
    return done.stdout.strip()


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git without the user's hooks and language; Ctrl-C is for this process alone."""
    variables = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    try:
        return subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_S,
            check=False,
            env={**variables, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git cannot be run: {error}") from error


_OWN_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # those of a hook that runs this


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"it exited with {done.returncode}"
