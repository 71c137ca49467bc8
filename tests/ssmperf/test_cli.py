"""The command line: bad input is one line naming what is valid and exit 2; nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssmperf.record import SCHEMA_VERSION

SMALL = ("--suite", "correctness", "--models", "hgrn", "--device", "cpu", "--axis", "T=5", "--axis", "C=2")


def ssmperf(*args: str | Path, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "ssmperf.cli", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = ssmperf("run", *SMALL, "--backends", "sequential,blelloch,triton", "--out", path)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout.splitlines()[-1]
    return path


BAD = {
    "unknown model": (["--models", "hgrm"], "hgrn"),
    "unknown backend": (["--backends", "sequentail"], "sequential"),
    "unknown suite": (["--suite", "corectness"], "correctness"),
    "unknown axis": (["--axis", "Q=4"], "valid: B, T"),
    "axis of another recurrence": (["--axis", "H=4"], "no dimension of the selected models"),
    "unknown dtype": (["--dtype", "float12"], "float32"),
    "unknown pass": (["--pass", "sideways"], "forward"),
    "unknown preset": (["--preset", "huge"], "smoke"),
    "unknown regime": (["--regime", "wild"], "sigmoid"),
    "unknown device": (["--device", "tpu"], "auto, cpu, cuda"),
    "unknown executor": (["--executor", "slurm"], "local"),
    "unknown layout": (["--layout", "sideways"], "channels_last"),
    "T=0": (["--axis", "T=0"], "at least 1"),
    "negative size": (["--axis", "T=-8"], "axis 'T=-8'"),
    "empty selection": (["--models", "hgrn", "--backends", "chunkwise"], "nothing is selected"),
    "no timeout": (["--timeout", "0"], "above 0"),
    "missing plug-in": (["--plugin", "/nowhere/kernel.py"], "no such file"),
    "unknown option": (["--suites", "x"], "--suites"),
    "unwritable folder": (["--out", "/proc/run"], "cannot write"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(name: str, tmp_path: Path) -> None:
    args, expected = BAD[name]
    if name == "unknown executor" or "--out" in args:
        out: list[str] = []
    else:
        out = ["--out", str(tmp_path / "run")]
    done = ssmperf("run", *SMALL, *out, *args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "run" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import ssmperf\n@ssmperf.backend('scan', name='blelloch')\ndef f(): ...", "already registered"),
        ("import ssmperf\n@ssmperf.backend('scan', name='x', colour='red')\ndef f(): ...", "colour"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_bad_plugins(source: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(source)
    done = ssmperf("run", *SMALL, "--plugin", tmp_path / "plugin.py", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in ssmperf("run", *SMALL, "--plugin", tmp_path / "plugin.py", "--debug").stderr


def test_an_existing_run_is_refused_and_kept(run: Path) -> None:
    before = (run / "records.jsonl").read_bytes()
    done = ssmperf("run", *SMALL, "--out", run)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert (run / "records.jsonl").read_bytes() == before


def test_resume_of_a_finished_run_measures_nothing_new(run: Path) -> None:
    before = (run / "records.jsonl").read_bytes()
    done = ssmperf("run", *SMALL, "--backends", "sequential,blelloch,triton", "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert (run / "records.jsonl").read_bytes() == before


def test_unreadable_and_newer_runs(run: Path, tmp_path: Path) -> None:
    assert ssmperf("report", tmp_path).returncode == 2
    newer = tmp_path / "newer"
    newer.mkdir()
    meta = json.loads((run / "run.json").read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    (newer / "run.json").write_text(json.dumps(meta))
    done = ssmperf("report", newer)
    assert done.returncode == 2
    assert "upgrade" in done.stderr


def test_report_formats(run: Path, tmp_path: Path) -> None:
    records = json.loads(ssmperf("report", run, "--format", "json").stdout)
    assert records
    assert "sequential" in ssmperf("report", run, "--format", "markdown").stdout
    assert "case_id" in ssmperf("report", run, "--format", "csv").stdout
    page = tmp_path / "page.html"
    done = ssmperf("report", run, "--html", page)
    assert done.returncode == 0, done.stderr
    assert str(page) in done.stdout.splitlines()[-1]
    assert "<html" in page.read_text()
    assert ssmperf("report", run, "--format", "xml").returncode == 2


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = ssmperf("run", *SMALL, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "to run" in done.stdout.splitlines()[-1]
    assert "SKIPPED: needs a CUDA device" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_strict_ends_with_3_when_a_case_is_bad(tmp_path: Path) -> None:
    plugin = Path(__file__).parents[1] / "planted.py"
    args = (*SMALL, "--backends", "planted_wrong", "--plugin", plugin)
    assert ssmperf("run", *args, "--out", tmp_path / "a").returncode == 0
    assert ssmperf("run", *args, "--out", tmp_path / "b", "--strict").returncode == 3


def test_list_models_json(run: Path) -> None:
    models = json.loads(ssmperf("list", "models", "--json").stdout)
    assert len(models) >= 16
    for entry in models:
        assert entry.keys() >= {"name", "recurrence", "paper", "backends"}
        assert {"sequential", "triton"} <= {backend["name"] for backend in entry["backends"]}
        assert all(backend["available"] or backend["reason"] for backend in entry["backends"])


@pytest.mark.parametrize("what", ["models", "backends", "suites", "shapes"])
def test_list_tables(what: str) -> None:
    done = ssmperf("list", what)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3


@pytest.mark.parametrize("verb", ["run", "report", "list", "doctor"])
def test_help_has_examples_and_imports_no_torch(verb: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None;"
        "sys.argv = ['ssmperf', *sys.argv[1:]]; from ssmperf.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, verb, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout


def test_no_arguments_shows_the_help() -> None:
    assert "Commands" in ssmperf().stdout + ssmperf().stderr
