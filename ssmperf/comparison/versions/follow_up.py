"""Next steps after a comparison: since which commit a case is as it is, and the commands to type next.

Only commands that can work are given.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ssmperf.comparison.outcome import RunComparison
from ssmperf.comparison.versions.search.candidates import Commit, ancestor, describe, git, path_in_tree
from ssmperf.comparison.versions.sides import Side, kind_of
from ssmperf.engine import registry
from ssmperf.engine.cases.origin import Origin
from ssmperf.engine.cases.record import Status, one_line
from ssmperf.engine.plan.command import words_that_select
from ssmperf.engine.runs.standings import rank_fields
from ssmperf.engine.runs.store import Run
from ssmperf.errors import SsmperfError, UsageError

DIGITS = 10  # of a commit
LONGEST_SUBJECT, LONGEST_AUTHOR = 60, 40
MOST_COMMITS = 8  # of a run's records; with more, none stands for the run
COMMIT = re.compile("[0-9a-f]{7,64}")  # what a file names must not become an option of git


def follow_up(
    found: RunComparison,
    base: str | None = None,
    new: str | None = None,
    plugins: Sequence[str] | None = None,
) -> RunComparison:
    """Add to a comparison of two runs its commits in words, and the commands that lead on.

    base, new: the versions behind the runs, as `ab` takes them. None means the commit that a run's records
        name, if the repository in the current folder has it.
    plugins: the plug-in files of both versions; None means those of the new run.
    """
    given = ((base, found.base), (new, found.new))
    old, now = (_named(text) if text else _commit_of(run) for text, run in given)
    if plugins is None:
        files = found.new.meta.get("plugins")
        plugins = [str(file) for file in files] if isinstance(files, list) else []
    return _with(found, old, now, plugins)


def follow_up_sides(found: RunComparison, sides: Mapping[str, Side], plugins: Sequence[str]) -> RunComparison:
    """Add the same to a comparison of two versions that were measured in turn."""
    old, now = (_known(None if side.changed else side.commit) for side in sides.values())
    versions = (sides["base"].label, sides["new"].label)
    return _with(replace(found, versions=versions), old, now, plugins)


def _with(
    found: RunComparison, old: Commit | None, now: Commit | None, plugins: Sequence[str]
) -> RunComparison:
    commands = [*_diagnoses(found), *(_bisections(found, old.name, now.name, plugins) if old and now else ())]
    since, until = (_in_words(commit) if commit else "" for commit in (old, now))
    return replace(found, since=since, until=until, commands=tuple(commands))


def _named(version: str) -> Commit | None:
    """Describe the commit that a version is; None for another kind of version, or one that is not there."""
    try:
        return _known(kind_of(version)[1])
    except UsageError:
        return None


def _known(commit: str | None) -> Commit | None:
    """Describe a commit; None if the repository in the current folder does not have it."""
    if commit is None or not COMMIT.fullmatch(commit):
        return None
    try:
        return describe(Path.cwd(), commit)
    except UsageError:
        return None


def _commit_of(run: Run) -> Commit | None:
    """Find the one commit of this repository from which a run's cases were measured."""
    names = set()
    for record in run.records:
        origin = Origin.of(run, record)
        commit, changed = origin.commit, origin.dirty
        if origin.plugin:
            commit, changed = origin.plugin_commit, origin.plugin_dirty
        names.add(None if changed else commit)
    known = [_known(name) for name in names] if len(names) <= MOST_COMMITS else []
    found = [commit for commit in known if commit]
    return found[0] if len(found) == 1 else None


def _in_words(commit: Commit) -> str:
    """Name a commit, such as 1a2b3c4d5e "Fuse the gates" (Jane)."""
    texts = (commit.subject, LONGEST_SUBJECT), (commit.author, LONGEST_AUTHOR)
    subject, author = (
        text if len(text) <= most else f"{text[: most - 1]}…"
        for text, most in ((one_line(text), most) for text, most in texts)
    )
    return f'{commit.name[:DIGITS]} "{subject}" ({author})'


def _diagnoses(found: RunComparison) -> Iterator[str]:
    """Give the command that explains the first wrong case, if its results can be compared here."""
    wrong = {
        record.case.id: record.case
        for record in found.new.records
        if record.status in (Status.WRONG, Status.NAN)
    }
    ids = (pair.case.id for pair in found.pairs if pair.verdict == "wrong" and pair.case.id in wrong)
    id_ = next(ids, None)
    if id_ is not None and _repeatable(found.new, wrong[id_].owner, wrong[id_].backend):
        yield shlex.join(["ssmperf", "diagnose", str(found.new.path), id_])


def _repeatable(run: Run, owner: str, backend: str) -> bool:
    """Tell whether this process can call a run's backend: by the run's plug-in files, or as installed."""
    if files := run.meta.get("plugins"):
        return isinstance(files, list) and all(Path(str(file)).is_file() for file in files)
    try:
        registry.backend(owner, backend)
    except SsmperfError:
        return False
    return True


def _bisections(found: RunComparison, good: str, bad: str, plugins: Sequence[str]) -> Iterator[str]:
    """Give the commands that search for the commits behind the first wrong and the slowest case.

    A wrong case needs a suite that judges alone, and an answer that was right; both need plug-in files that
    are in the commits' trees.
    """
    if good == bad or not ancestor(good, bad):
        return
    files = [path_in_tree(file, bad) for file in plugins]
    if not all(_has(bad, file) for file in files):
        return
    ranks = rank_fields(found.base.meta) | rank_fields(found.new.meta)
    right = {record.case.id for record in found.base.records if record.status is Status.OK}
    wrong = (
        pair
        for pair in found.pairs
        if pair.verdict == "wrong" and ranks.get(pair.case.suite) is None and pair.case.id in right
    )
    for pair in filter(None, (next(wrong, None), next(iter(found.slower), None))):
        words = ["--good", good[:DIGITS], "--bad", bad[:DIGITS], "--case", pair.case.id]
        words += [word for file in files for word in ("--plugin", file)]
        yield shlex.join(["ssmperf", "bisect", *words, *words_that_select(pair.case)])


def _has(commit: str, file: str) -> bool:
    try:
        git(Path.cwd(), "cat-file", "-e", f"{commit}:{file}")
    except UsageError:
        return False
    return True
