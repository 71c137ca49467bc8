"""Records say when they were measured and of which code: a plug-in by the content and commit of its file."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from ssmperf.reports.formats import exports
from ssmperf.reports.rows import frames
from support.versions import repositories
from support.versions.repositories import git

import ssmperf
from ssmperf.engine.cases.origin import Origin
from ssmperf.engine.machine.environment import plugin_state
from ssmperf.engine.runs import store

KERNEL = repositories.KERNEL.replace("{seconds}", "0")
COLUMNS = ("plugin", "plugin_sha256", "plugin_commit", "plugin_dirty")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with a plug-in file in a folder."""
    (tmp_path / "repository" / "kernels").mkdir(parents=True)
    folder = tmp_path / "repository"
    (folder / "kernels" / "mine.py").write_text(KERNEL)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.mark.slow
def test_a_record_names_the_plugin_of_its_backend(repository: Path, own_registrations: None) -> None:
    file = repository / "kernels" / "mine.py"
    run = ssmperf.run(
        "throughput", models="hgrn", backends="mine,sequential", axis=("T=4", "C=2"), device="cpu",
        pass_="forward", time=0.01, rounds=2, plugin=file, tag="nightly", out=repository / "runs" / "one",
    )  # fmt: skip
    by_backend = {record.case.backend: record for record in run.records}
    mine, builtin = (Origin.of(run, by_backend[name]) for name in ("mine", "sequential"))
    sha = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    commit = git(repository, "rev-parse", "HEAD")
    # the untracked run folder is no change of the checkout
    assert mine.to_json() | {"commit": None, "dirty": None} == {
        "date": run.meta["created"], "tag": "nightly", "commit": None, "dirty": None,
        "plugin": "kernels/mine.py", "plugin_sha256": sha, "plugin_commit": commit, "plugin_dirty": False,
    }  # fmt: skip
    assert mine.commit == builtin.commit == run.environments[by_backend["mine"].env_id or ""]["git"]["commit"]
    assert builtin.plugin is builtin.plugin_sha256 is builtin.plugin_commit is None
    for frame in (run.frame(), frames.frame([run])):
        table = frame.set_index("backend")
        assert list(table["tag"]) == ["nightly"] * 2 and set(table["date"]) == {run.meta["created"]}
        assert list(table.loc["mine", list(COLUMNS)]) == ["kernels/mine.py", sha, commit, False]
        assert table.loc["sequential", list(COLUMNS)].isna().all()


def test_changes_show_in_the_state_of_a_plugin(repository: Path, tmp_path: Path) -> None:
    file = repository / "kernels" / "mine.py"
    before = plugin_state(file)
    assert before["dirty"] is False and len(before["sha256"]) == 12
    file.write_text(KERNEL + "\n")
    after = plugin_state(file)
    assert after["dirty"] is True and after["commit"] == before["commit"]
    assert after["sha256"] != before["sha256"]
    (repository / "other.py").write_text(KERNEL)
    untracked = plugin_state(repository / "other.py")
    assert untracked == {**before, "file": "other.py", "commit": None, "dirty": None}


def test_csv_and_parquet_carry_the_origin(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", {"file": "k.py", "sha256": "abc", "commit": "f" * 40, "dirty": True})
    table = pd.read_csv(io.StringIO(exports.csv([run]) or ""))
    exports.parquet([run], tmp_path / "run.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "run.parquet").to_pylist()
    expected = ["2026-01-02T03:04:05+00:00", "v1", "c" * 40, "k.py", "abc", "f" * 40, True]
    names = ["date", "tag", "commit", "plugin", "plugin_sha256", "plugin_commit", "plugin_dirty"]
    assert [table.iloc[0][name] for name in names] == [rows[0][name] for name in names] == expected


@pytest.mark.parametrize("odd", [None, 3, ["k.py"], {"file": 3, "sha256": None, "dirty": "yes"}])
def test_runs_that_say_nothing_have_missing_values(odd: Any, tmp_path: Path) -> None:
    run = _run(tmp_path / "run", odd, created=7, tag=[], git="none")
    assert Origin.of(run, run.records[0]) == Origin()
    assert frames.frame([run])[["date", "tag", "commit", *COLUMNS]].isna().all(axis=None)


def _run(path: Path, plugin: Any, **changes: Any) -> store.Run:
    """Make a run of one record as a store would have written it."""
    given = {"created": "2026-01-02T03:04:05+00:00", "tag": "v1", "git": {"commit": "c" * 40, "dirty": False}}
    given |= changes
    environment = {"git": given.pop("git"), "hardware": {"cpu": {"model": "x", "cores": 2}}}
    case = ssmperf.Case("throughput", "scan", "mine", ssmperf.Shape(B=1, T=4, C=2))
    numbers = {"latency_s": 1.0, **({} if plugin is None else {"plugin": plugin})}
    record = ssmperf.Record(case, ssmperf.Status.OK, None, "env", numbers)
    path.mkdir()
    meta = {"schema_version": 1, "environments": {"env": environment}, **given}
    (path / "run.json").write_text(json.dumps(meta))
    (path / "records.jsonl").write_text(record.to_line() + "\n")
    return store.load(path)
