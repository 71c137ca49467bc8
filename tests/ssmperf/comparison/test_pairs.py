"""`ssmperf check` and `ssmperf compare` on four committed pairs of runs, one per exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.processes.command_line import Call, caller
from support.results import pairs

import ssmperf
from ssmperf import ExitCode, RunComparison, UsageError
from ssmperf.comparison.attempts import FILE, ordinal
from ssmperf.shell import api


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command in this process, without calibrations; return its exit code, stdout and stderr."""
    monkeypatch.setenv("SSMPERF_CALIBRATION", str(tmp_path / "none"))
    return caller(monkeypatch, capsys)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Copy the pairs, since a check writes into the new run's folder."""
    return Path(shutil.copytree(pairs.FOLDER, tmp_path / "pairs"))


def test_the_committed_pairs_are_what_the_script_makes(tmp_path: Path) -> None:
    pairs.make(tmp_path)
    made, kept = (
        {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}
        for root in (tmp_path, pairs.FOLDER)
    )
    assert made == kept, "python tests/support/results/pairs.py writes them again"


@pytest.mark.parametrize("name", pairs.EXIT_CODES)
def test_a_check_ends_with_its_exit_code_in_every_format(name: str, folders: Path, call: Call) -> None:
    base, new = folders / name / "base", folders / name / "new"
    files = {kind: folders / f"out.{kind}" for kind in ("junit", "summary", "html")}
    options = [word for kind, file in files.items() for word in (f"--{kind}", file)]
    code, out, err = call("check", new, "--baseline", base, *options)
    assert code == pairs.EXIT_CODES[name], out + err
    code, shown, _ = call("compare", base, new, "--json")
    data = json.loads(shown)
    assert code == data["exit_code"] == pairs.EXIT_CODES[name]
    assert f"(exit {code})" in data["conclusion"] and data["conclusion"] in out
    for file in files.values():
        assert data["conclusion"] in file.read_text()
    suite = ElementTree.parse(files["junit"]).getroot()
    failed = sum(data["verdicts"].get(each, 0) for each in ("slower", "wrong", "lost", "missing"))
    assert suite.get("failures") == str(failed)
    assert suite.get("skipped") == str(data["verdicts"].get("ambiguous", 0))


def test_the_summary_names_the_page_that_was_written(
    folders: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path, or by the address at which readers will find it."""
    summary, page = folders / "summary.md", folders / "pages" / "page.html"
    page.parent.mkdir()
    words = ("check", folders / "ok" / "new", "--baseline", folders / "ok" / "base", "--summary", summary)
    monkeypatch.setenv("SSMPERF_PAGE_URL", "https://ci/job/7")
    call(*words)
    assert "page with all cases" not in summary.read_text()
    call(*words, "--html", page)
    assert "(https://ci/job/7)" in summary.read_text()
    monkeypatch.delenv("SSMPERF_PAGE_URL")
    _, out, _ = call(*words, "--html", page, "--json")
    assert "(pages/page.html)" in summary.read_text()
    data = json.loads(out)
    assert data["page"] == str(page) and set(data["origins"]) == {"base", "new"}


def test_a_check_measures_again_in_the_folder_that_it_is_given(
    folders: Path, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Path] = []

    def measured(found: RunComparison, out: Path, **_: object) -> RunComparison:
        given.append(out)
        return found

    monkeypatch.setattr(api, "remeasured", measured)
    monkeypatch.chdir(tmp_path)
    words = ("check", folders / "ok" / "new", "--baseline", folders / "ok" / "base", "--remeasure")
    call(*words, "--out", tmp_path / "again")
    call(*words)
    assert given[0] == tmp_path / "again" and given[1].parent == Path("runs")


def test_a_check_says_what_it_assumed_and_what_it_could_see(folders: Path, call: Call) -> None:
    _, out, _ = call("check", folders / "ok" / "new", "--baseline", folders / "ok" / "base")
    assert "2 % assumed, this machine is not calibrated: ssmperf calibrate" in out
    assert "a slow-down would have been found from" in out
    assert "geometric mean of new / base" in out


def test_missing_cases_are_one_line(folders: Path, call: Call) -> None:
    _, out, _ = call("check", folders / "broken" / "new", "--baseline", folders / "broken" / "base")
    assert "missing: 1 case of backend triton" in out
    assert "the new run is unfinished: 1 of 6 planned cases" in out


def test_options_restrict_both_runs(folders: Path, call: Call) -> None:
    broken = ("check", folders / "broken" / "new", "--baseline", folders / "broken" / "base")
    code, out, _ = call(*broken, "--backends", "sequential,chunkwise")
    assert code == 0 and "4 cases, 4 same" in out
    code, out, _ = call(*broken, "--models", "gla", "--suite", "throughput")
    assert code == 3 and "3 cases, 1 wrong, 2 same" in out
    code, _, err = call(*broken, "--models", "gal")
    assert code == 2 and "did you mean gla" in err


def test_ambiguity_passes_on_request(folders: Path, call: Call) -> None:
    unsure = ("check", folders / "unsure" / "new", "--baseline", folders / "unsure" / "base")
    assert call(*unsure, "--unsure", "pass")[0] == 0
    assert call(*unsure, "--unsure", "fail")[0] == 4
    assert call(*unsure, "--unsure", "maybe")[0] == 2
    slower = ("compare", folders / "slower" / "base", folders / "slower" / "new")
    assert call(*slower, "--unsure", "pass")[0] == 1


def test_a_threshold_without_its_percent_sign_is_refused(folders: Path, call: Call) -> None:
    code, _, err = call("compare", folders / "ok" / "base", folders / "ok" / "new", "--threshold", "5")
    assert code == 2 and "5% or 0.05" in err
    assert len(err.strip().splitlines()) == 1


def test_checks_of_a_pair_are_counted(folders: Path, call: Call) -> None:
    new, base, other = (folders / "ok" / "new", folders / "ok" / "base", folders / "slower" / "base")
    assert "check of this pair" not in call("check", new, "--baseline", base)[1]
    assert "2nd check of this pair" in call("check", new, "--baseline", base, "--threshold", "9%")[1]
    assert "check of this pair" not in call("check", new, "--baseline", other)[1]
    with (new / FILE).open("a") as file:
        file.write("torn {\n[]\n")
    data = json.loads(call("check", new, "--baseline", base, "--json")[1])
    assert data["attempts"] == 3 and "3rd check of this pair" in data["notes"]
    lines = [json.loads(line) for line in (new / FILE).read_text().splitlines() if '"baseline"' in line]
    assert len(lines) == 4
    assert lines[0]["verdicts"] == {"same": 6} and lines[1]["threshold"] == 0.09
    assert lines[0]["baseline"] == lines[1]["baseline"] != lines[2]["baseline"]
    assert "check of this pair" not in call("compare", base, new)[1]
    assert len(ssmperf.load(new).records) == 6  # the run is as readable as before


def test_a_folder_that_cannot_be_written_is_no_error(folders: Path, call: Call) -> None:
    new = folders / "ok" / "new"
    (new / FILE).mkdir()
    code, out, _ = call("check", new, "--baseline", folders / "ok" / "base")
    assert code == 0 and "this check is not counted" in out


@pytest.mark.parametrize(("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"),
                                              (12, "12th"), (21, "21st"), (113, "113th")])  # fmt: skip
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_python_checks_as_the_command_does(folders: Path) -> None:
    run = ssmperf.load(folders / "slower" / "new")
    found = ssmperf.check(run, baseline=folders / "slower" / "base", threshold="5%", suite="throughput")
    assert not found.ok and found.exit_code is ExitCode.REGRESSION and found.attempts == 1
    (pair,) = found.slower
    assert (pair.case.model, pair.case.backend) == ("gla", "triton")
    assert list(found.frame()["verdict"]) == ["slower"] + ["same"] * 5
    loose = ssmperf.compare(folders / "slower" / "base", run, threshold=0.5, models=["gla"])
    assert len(loose.pairs) == 3 and loose.slower == [] and loose.attempts is None
    with pytest.raises(UsageError, match=r"5% or 0\.05"):
        ssmperf.compare(run, run, threshold=5)


def test_a_calibration_file_is_used(folders: Path, call: Call) -> None:
    file = folders / "calibration.json"
    spread = {"spread": 0.05, "largest": 0.1, "degrees": 9, "cases": 3, "rounds": 4}
    file.write_text(json.dumps({"format": "ssmperf calibration", "schema_version": 1, "device": "Example GPU",
                                "created": "2026-01-01", "kinds": {"100us-1ms": spread}}))  # fmt: skip
    ok = ("check", folders / "ok" / "new", "--baseline", folders / "ok" / "base")
    code, out, _ = call(*ok, "--calibration", file)
    assert code == 4 and "5 % (Example GPU, calibrated 2026-01-01)" in out
    assert call(*ok, "--calibration", folders / "none.json")[0] == 2


def test_a_report_of_two_runs_does_not_judge(folders: Path, call: Call) -> None:
    runs = (folders / "slower" / "base", folders / "slower" / "new")
    for options in ((), ("--format", "markdown"), ("--html", folders / "page.html")):
        code, out, err = call("report", *runs, *options)
        assert code == 0, err
        text = (folders / "page.html").read_text() if "--html" in options else out
        assert "threshold 5 %" not in text and "slower:" not in text
