"""The command line: bad input exits with 2 and one line that says what is valid; no record is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller

from ssmperf.engine.cases.record import SCHEMA_VERSION
from ssmperf.shell.terminal import display
from ssmperf.shell.terminal.lists import summary
from ssmperf.suitekit import registry

SMALL = ("--suite", "correctness", "--models", "hgrn", "--device", "cpu", "--axis", "T=5", "--axis", "C=2")


def ssmperf(*args: str | Path, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "ssmperf.shell.cli", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process; return its exit code, stdout and stderr."""
    return caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a small finished run."""
    path = tmp_path_factory.mktemp("runs") / "run"
    done = ssmperf("run", *SMALL, "--backends", "sequential,blelloch,triton", "--out", path)
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout.splitlines()[-1]
    return path


BAD = {
    "unknown model": (["--models", "hgrm"], "hgrn"),
    "unknown backend": (["--backends", "sequentail"], "sequential"),
    "unknown suite": (["--suite", "corectness"], "correctness"),
    "unknown axis": (["--axis", "Q=4"], "unknown axis 'Q': hgrn has B, T, C"),
    "unknown axis of several models": (
        ["--models", "hgrn,mingru,gla", "--axis", "Q=4"],
        "hgrn and mingru have B, T, C; gla has B, T, H, G, K, V",
    ),
    "unknown axis of an unknown model": (["--models", "hgrm", "--axis", "Q=4"], "valid: B, T"),
    "axis of another recurrence": (
        ["--axis", "H=4"],
        "no dimension of the selected models: hgrn has B, T, C",
    ),
    "unknown dtype": (["--dtype", "float12"], "float32"),
    "unknown pass": (["--pass", "sideways"], "forward"),
    "unknown preset": (["--preset", "huge"], "smoke"),
    "unknown regime": (["--regime", "wild"], "sigmoid"),
    "unknown device": (["--device", "tpu"], "auto, cpu, cuda"),
    "unknown layout": (["--layout", "sideways"], "channels_last"),
    "T=0": (["--axis", "T=0"], "at least 1"),
    "negative size": (["--axis", "T=-8"], "axis 'T=-8'"),
    "empty selection": (["--models", "hgrn", "--backends", "chunkwise"], "nothing is selected"),
    "no timeout": (["--timeout", "0"], "above 0"),
    "endless timeout": (["--timeout", "inf"], "finite"),
    "negative seed": (["--seed", "-1"], "from 0 to"),
    "seed too large": (["--seed", str(2**63)], "from 0 to"),
    "no configurations": (["--configurations", "/nowhere/found.json"], "cannot read /nowhere/found.json"),
    "nothing to write": (["--write-configurations", "found.json"], "--autotune"),
    "missing plug-in": (["--plugin", "/nowhere/kernel.py"], "no such file"),
    "unknown option": (["--suites", "x"], "--suites"),
    "unwritable folder": (["--out", "/proc/run"], "cannot write"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(
    name: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, expected = BAD[name]
    out = [] if "--out" in args else ["--out", str(tmp_path / "run")]
    monkeypatch.chdir(tmp_path)
    code, _, err = call("run", *SMALL, *out, *args)
    assert code == 2, err
    assert expected in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "run" / "records.jsonl").exists()


def test_run_without_a_suite_names_the_suites(call: Call) -> None:
    code, _, err = call("run", "--device", "cpu")
    assert code == 2
    assert "--suite" in err
    assert all(name in err for name in registry.suites())
    assert len(err.strip().splitlines()) == 1


def test_resume_needs_out(call: Call) -> None:
    code, _, err = call("run", *SMALL, "--resume")
    assert (code, "--resume needs --out" in err) == (2, True)


def test_debug_shows_the_traceback_and_keeps_the_exit_code(call: Call) -> None:
    code, _, err = call("run", *SMALL, "--models", "hgrm", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert "did you mean hgrn" in err.splitlines()[-1]
    code, _, err = call("list", "nothing", "--debug")
    assert (code, "Traceback" in err) == (2, True)


def interrupt(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_says_how_to_go_on(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssmperf.engine.execute.run.execute", interrupt)
    code, _, err = call("run", *SMALL, "--out", tmp_path)
    assert code == 130
    assert f"--resume --out {tmp_path}" in err
    assert call("run", *SMALL, "--out", tmp_path / "none") == (130, "", "ssmperf: interrupted\n")
    monkeypatch.setattr(summary, "table", interrupt)
    assert call("list") == (130, "", "ssmperf: interrupted\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import ssmperf\n@ssmperf.backend('scan', name='blelloch')\ndef f(): ...", "already registered"),
        ("import ssmperf\n@ssmperf.backend('scan', name='x', colour='red')\ndef f(): ...", "colour"),
        ("import ssmperf\n@ssmperf.backend('scan', name='x', passes='forward')\ndef f(): ...", "a tuple"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", "exited"),
        ("import ssmperf; ssmperf.run('throughput')", "must not start a run"),
    ],
)
def test_bad_plugins(source: str, expected: str, tmp_path: Path, call: Call) -> None:
    (tmp_path / "plugin.py").write_text(source)
    before = registry.plugins()
    code, _, err = call("run", *SMALL, "--plugin", tmp_path / "plugin.py", "--out", tmp_path / "run")
    assert code == 2
    assert expected in err
    assert "Traceback" not in err
    assert "Traceback" in call("run", *SMALL, "--plugin", tmp_path / "plugin.py", "--debug")[2]
    assert registry.plugins() == before


@pytest.mark.slow
def test_an_existing_run_is_refused_and_kept(run: Path, call: Call) -> None:
    before = (run / "records.jsonl").read_bytes()
    code, _, err = call("run", *SMALL, "--out", run)
    assert code == 2
    assert "--resume" in err
    assert (run / "records.jsonl").read_bytes() == before


@pytest.mark.slow
def test_resume_of_a_finished_run_measures_nothing_new(run: Path, call: Call) -> None:
    before = (run / "records.jsonl").read_bytes()
    code, _, err = call("run", *SMALL, "--backends", "sequential,blelloch,triton", "--out", run, "--resume")
    assert code == 0, err
    assert (run / "records.jsonl").read_bytes() == before


def test_unreadable_and_newer_runs(run: Path, tmp_path: Path, call: Call) -> None:
    assert call("report", tmp_path)[0] == 2
    newer = tmp_path / "newer"
    newer.mkdir()
    meta = json.loads((run / "run.json").read_text()) | {"schema_version": SCHEMA_VERSION + 1}
    (newer / "run.json").write_text(json.dumps(meta))
    code, _, err = call("report", newer)
    assert code == 2
    assert "upgrade" in err


def test_report_formats(run: Path, tmp_path: Path, call: Call) -> None:
    records = json.loads(call("report", run, "--format", "json")[1])
    assert records
    assert "sequential" in call("report", run)[1]
    assert "sequential" in call("report", run, "--format", "markdown")[1]
    assert "case_id" in call("report", run, "--format", "csv")[1]
    page = tmp_path / "page.html"
    code, out, err = call("report", run, "--html", page)
    assert code == 0, err
    assert str(page) in out.splitlines()[-1]
    assert "<html" in page.read_text()
    assert call("report", run, "--format", "xml")[0] == 2


def test_a_report_is_not_written_to_a_file_called_minus(
    run: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options in (("--html", "-"), ("--format", "csv", "--out", "-")):
        code, _, err = call("report", run, *options)
        assert code == 2 and "not written to -: name a file" in err
    assert not (tmp_path / "-").exists()


def test_dry_run_prints_the_plan_and_writes_nothing(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code, out, err = call("run", *SMALL, "--dry-run")
    assert code == 0, err
    assert "to run" in out.splitlines()[-1]
    assert "SKIPPED: needs a CUDA device" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_strict_ends_with_3_when_a_case_is_bad(own_registrations: None, tmp_path: Path, call: Call) -> None:
    plugin = Path(__file__).parents[2] / "support" / "plugins" / "planted.py"
    args = (*SMALL, "--backends", "planted_wrong", "--plugin", plugin, "--out", tmp_path / "run")
    assert call("run", *args)[0] == 0
    assert call("run", *args, "--resume", "--strict")[0] == 3


def test_a_run_checked_against_itself_is_fine(run: Path, tmp_path: Path, call: Call) -> None:
    junit, summary = tmp_path / "check.xml", tmp_path / "check.md"
    code, out, err = call("check", run, "--baseline", run, "--junit", junit, "--summary", summary)
    assert code == 0, out + err
    assert "no regression" in summary.read_text()
    assert 'failures="0"' in junit.read_text()
    assert str(summary) in out.splitlines()[-1]
    assert json.loads(call("check", run, "--baseline", run, "--json")[1])["exit_code"] == 0
    assert call("compare", run, run)[0] == 0


def test_a_check_fails_as_its_exit_code_says(run: Path, tmp_path: Path, call: Call) -> None:
    records = (run / "records.jsonl").read_text().splitlines()
    for name, kept, code in (("lost", records[:-1], 3), ("none", [], 3)):
        copy = tmp_path / name
        copy.mkdir()
        (copy / "run.json").write_text((run / "run.json").read_text())
        (copy / "records.jsonl").write_text("".join(f"{line}\n" for line in kept))
        assert call("check", copy, "--baseline", run)[0] == code
    assert call("check", tmp_path / "nowhere", "--baseline", run)[0] == 2
    assert call("check", run, "--baseline", run, "--threshold", "lots")[0] == 2


def test_a_run_without_times_has_no_best(run: Path, call: Call) -> None:
    assert json.loads(call("best", run, "--json")[1]) == []
    assert "no suite of these runs ranks by a time" in call("best", run)[1]


@pytest.mark.slow
def test_a_profile_names_its_trace(tmp_path: Path, call: Call) -> None:
    out = tmp_path / "profile"
    code, text, err = call("profile", "hgrn", "blelloch", "--device", "cpu", "--out", out)
    assert code == 0, err
    assert str(out / "trace.json") in text.splitlines()[-1]
    assert (out / "trace.json").stat().st_size > 0


def test_list_models_json(call: Call) -> None:
    models = json.loads(call("list", "models", "--json")[1])
    assert len(models) >= 16
    for entry in models:
        assert entry.keys() >= {"name", "recurrence", "paper", "backends"}
        assert entry["costs"].keys() >= {"forward", "backward", "state"}
        assert "sequential" in {backend["name"] for backend in entry["backends"]}
        assert all(backend["available"] or backend["reason"] for backend in entry["backends"])


@pytest.mark.parametrize("what", ["models", "backends", "suites", "shapes"])
def test_list_tables(what: str, call: Call) -> None:
    code, out, err = call("list", what)
    assert code == 0, err
    assert len(out.splitlines()) > 3


def test_list_alone_lists_the_models(call: Call) -> None:
    assert call("list") == call("list", "models")


def test_the_list_of_models_fits_in_eighty_columns_and_folds_families(call: Call) -> None:
    lines = call("list")[1].splitlines()
    assert max(map(len, lines)) <= 80
    (family,) = [line for line in lines if line.startswith("pese_")]
    members = [line for line in call("list", "pese_")[1].splitlines() if line.startswith("pese_")]
    assert f"({len(members)})" in family
    assert len(members) == sum(name.startswith("pese_") for name in registry.models())
    row = next(line.split() for line in lines if line.startswith("gla "))
    described = json.loads(call("list", "gla", "--json")[1])
    peers = [each for each in described["backends"] if each["peer"] and "key" in each.get("gates", ["key"])]
    assert row[:3] == ["gla", "linear_attention", "key"]
    assert int(row[-1]) == len(peers) > 0


def test_the_wide_list_has_a_column_per_backend_and_the_papers(call: Call) -> None:
    wide = call("list", "--wide")[1]
    assert "chunkwise" in wide and "arXiv:2312.06635" in wide


def test_a_model_is_described_with_its_sizes_and_peers(call: Call) -> None:
    text = call("list", "gla")[1]
    assert "sizes, standard: B4 T4096 H16" in text
    assert "peer fla:" in text and "backend chunkwise: available" in text


@pytest.mark.parametrize("verb", ["run", "report", "list", "doctor", "new"])
def test_help_has_examples(verb: str, call: Call) -> None:
    code, out, err = call(verb, "--help")
    assert code == 0, err
    assert "Example" in out


def test_reasons_are_shown_on_one_short_line() -> None:
    assert display.brief("\x1b[31mred\x07\n  two\x9b") == "[31mred two"
    assert display.brief("turned\u202eby\u2066a name") == "turned by a name"
    assert len(display.brief("long " * 100)) <= 160
    assert display.brief(None) == ""


def test_no_arguments_shows_the_help(call: Call) -> None:
    _, *streams = call()
    assert "Commands" in "".join(streams)
