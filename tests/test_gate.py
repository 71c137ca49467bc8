"""The gate: what it measures, what it writes, and how it ends. A stand-in answers for ssmperf."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.versions.gate import ROOT, Place, commit, git

# Stands in for ssmperf: keeps its arguments, writes what it is asked for, and ends as it is told.
STANDIN = """
import json, os, pathlib, sys
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
for option, value in zip(sys.argv[1:], sys.argv[2:]):
    if option in ("--html", "--junit", "--summary") or (option == "--out" and "markdown" in sys.argv):
        pathlib.Path(value).write_text(f"{sys.argv[1]} {option} {os.environ.get('SSMPERF_PAGE_URL')}")
    elif option == "--out" and sys.argv[1] == "run":
        pathlib.Path(value).mkdir()
        pathlib.Path(value, "run.json").write_text("{}")
name = {"fuzz": "CODE_OF_FUZZ", "run": "NO_CODE"}.get(sys.argv[1], "CODE")
sys.exit(int(os.environ.get(name, "0")))
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "# one\n", "one")
    git(folder, "switch", "-q", "-c", "topic")
    commit(folder, "# two\n", "two")
    (tmp_path / "standin.py").write_text(STANDIN)
    return Place(folder, f"{sys.executable} {tmp_path / 'standin.py'}", tmp_path / "asked")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_it_compares_a_branch_with_its_merge_base(place: Place) -> None:
    done = place.gate("--plugin", "mine.py", "--threshold=3%", "--unsure", "pass", "--", "--models", "gla")
    assert done.returncode == 0, done.stderr
    command = place.only()
    assert command[0] == "ab" and option(command, "--new") == "HEAD"
    assert option(command, "--base") == git(place.folder, "rev-parse", "main")
    assert [option(command, name) for name in ("--plugin", "--threshold", "--unsure")] == [
        "mine.py",
        "3%",
        "pass",
    ]
    assert option(command, "--suite") == "correctness,throughput"
    assert command[-2:] == ["--models", "gla"]
    names = {file.name for file in (place.folder / "gate").iterdir()}
    assert {"junit.xml", "summary.md", "index.html"} <= names
    assert "ab --summary" in done.stdout


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "4", "130"])
def test_its_exit_code_is_that_of_ssmperf(place: Place, code: str, tmp_path: Path) -> None:
    summary = tmp_path / "step-summary"
    done = place.gate(CODE=code, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == int(code)
    assert "ab --summary" in summary.read_text() and "ab --summary" not in done.stdout


def test_it_fuzzes_the_new_version_afterwards(place: Place) -> None:
    words = ("--models", "gla,scan", "--backends=mine", "--axis", "T=5")
    done = place.gate("--plugin", "mine.py", "--fuzz", "2", "--", *words, CODE_OF_FUZZ="3", CODE="1")
    assert done.returncode == 3, done.stderr
    first, then = place.commands()
    assert first[0] == "ab" and "--fuzz" not in first
    asked = "fuzz gla scan --plugin mine.py --backends=mine --minutes 2 --out gate/fuzz"
    assert then == asked.split()
    assert place.gate("--fuzz", "2").returncode == 0
    for code, of_fuzz, worst in (("1", "0", 1), ("4", "3", 3), ("0", "2", 2), ("0", "130", 130)):
        assert place.gate("--fuzz", "2", CODE=code, CODE_OF_FUZZ=of_fuzz).returncode == worst


def test_what_is_fuzzed_is_in_the_folder(place: Place) -> None:
    done = place.gate("--fuzz", "2", "--base", "HEAD", "--new", "main")
    assert done.returncode == 2 and "check that out first" in done.stderr
    assert "minutes" in place.gate("--fuzz", "long").stderr


def test_a_dry_run_measures_and_writes_nothing(place: Place) -> None:
    words = (
        "--dry-run",
        "--plugin",
        "mine.py",
        "--baseline",
        "kept",
        "--write-baseline",
        "--",
        "--models",
        "gla",
    )
    for given, verb in ((words[:3], "ab"), (words, "run")):
        done = place.gate(*given, CODE="0")
        assert done.returncode == 0, done.stderr
        command = place.commands()[-1]
        assert command[0] == verb and "--dry-run" in command and "--out" not in command
        assert verb == "ab" or option(command, "--judged-at") == "own"
        assert not (place.folder / "gate").exists() and not (place.folder / "kept").exists()


def test_markdown_is_printed_as_text(place: Place) -> None:
    """A version such as HEAD~1 is escaped in the file, and readable in the log."""
    standin = Path(place.ssmperf.split()[1])
    text = r"git ref HEAD\\~1 \\[1, 2\\] &lt;x&gt; &amp;"
    code = "import pathlib, sys\nwords = sys.argv\nfile = words[words.index('--summary') + 1]\n"
    standin.write_text(f'{code}pathlib.Path(file).write_text("{text}")\n')
    done = place.gate()
    assert "git ref HEAD~1 [1, 2] <x> &" in done.stdout
    assert (place.folder / "gate" / "summary.md").read_text() == text.replace("\\\\", "\\")


def test_changes_that_are_not_committed_make_the_folder_the_new_version(place: Place) -> None:
    (place.folder / "leftover.txt").write_text("git does not know it, and nothing that git knows can need it")
    place.gate("--plugin", "mine.py")
    (place.folder / "other.py").write_text("# a plug-in that is not committed")
    place.gate("--plugin", "other.py")
    (place.folder / "mine.py").write_text("# three\n")
    place.gate("--plugin", "mine.py")
    assert [option(command, "--new") for command in place.commands()] == ["HEAD", ".", "."]


def test_its_own_files_change_no_version(place: Place) -> None:
    (place.folder / ".gitignore").write_text("")
    git(place.folder, "add", ".")
    git(place.folder, "commit", "-q", "-m", "ignore nothing")
    assert place.gate().returncode == 0
    assert git(place.folder, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    "name", ["GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "BUILDKITE_PULL_REQUEST_BASE_BRANCH"]
)
def test_the_target_of_a_pull_request_comes_first(place: Place, name: str, tmp_path: Path) -> None:
    between = git(place.folder, "rev-parse", "HEAD")
    git(place.folder, "branch", "release")
    commit(place.folder, "# three\n", "three")
    git(tmp_path, "clone", "-q", "repository", "clone")
    place.folder = tmp_path / "clone"
    assert place.gate(**{name: "release"}).returncode == 0
    assert option(place.only(), "--base") == between


def test_a_shallow_clone_is_told(place: Place, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{place.folder}", "clone")
    place.folder = tmp_path / "clone"
    done = place.gate(GITHUB_BASE_REF="main")
    assert done.returncode == 2 and "full history" in done.stderr


@pytest.mark.parametrize(
    ("clone", "words", "what"),
    [
        (["--depth", "1"], [], "no commit beyond origin/HEAD"),
        (["--depth", "1"], ["--base", "HEAD~1", "--new", "HEAD"], "HEAD~1 is no commit here"),
        (["--depth", "1"], ["--base", "v0"], "v0 is no commit here"),
        (["--depth", "1", "-b", "v2"], [], "has no branch main or master"),
        (["--depth", "1"], ["--baseline", "kept", "--remeasure"], "is no commit here"),
    ],
)
def test_a_commit_that_a_shallow_clone_lacks_is_not_offered(
    place: Place, clone: list[str], words: list[str], what: str, tmp_path: Path
) -> None:
    """It is told before anything is installed or measured, with the command that gets it."""
    git(place.folder, "tag", "v0", "main")
    git(place.folder, "switch", "-q", "main")
    commit(place.folder, "# three\n", "three")
    git(place.folder, "tag", "v2")
    git(place.folder, "branch", "-m", "main", "topmost" if "-b" in clone else "main")
    git(tmp_path, "clone", "-q", *clone, f"file://{place.folder}", "clone")
    (tmp_path / "clone" / "kept").mkdir()
    (tmp_path / "clone" / "kept" / "run.json").write_text("{}")
    (tmp_path / "clone" / "kept" / "commit").write_text(git(place.folder, "rev-parse", "v0"))
    place.folder = tmp_path / "clone"
    done = place.gate(*words)
    assert done.returncode == 2 and place.commands() == []
    assert what in done.stderr and "git fetch --unshallow" in done.stderr and done.stderr.count("\n") == 1
    assert "such as" not in done.stderr


def test_a_first_commit_has_none_before_it(place: Place) -> None:
    git(place.folder, "switch", "-q", "main")
    done = place.gate()
    assert "main" in done.stderr and "~1" not in done.stderr and "shallow" not in done.stderr
    done = place.gate("--base", "no-such-ref")
    assert done.returncode == 0 and place.only()[2] == "no-such-ref"  # ssmperf says what it thinks of it


def test_a_commit_of_the_main_branch_has_nothing_to_be_compared_with(place: Place) -> None:
    git(place.folder, "switch", "-q", "main")
    done = place.gate()
    assert done.returncode == 2 and "name another --base" in done.stderr
    assert place.gate("--base", "HEAD", "--new", "HEAD").returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base"], "--base needs a value"),
        (["--models", "gla"], "unknown option --models: options of ssmperf come after --"),
        (["--base", "main", "--baseline", "kept"], "--baseline stands in place"),
        (["--remeasure"], "need --baseline"),
        (["--unsure", "maybe"], "--unsure takes fail or pass"),
        (["--threshold", "much"], "--threshold takes a share"),
        (["--baseline", "kept", "--write-baseline", "--remeasure"], "cannot --remeasure"),
        (["--baseline", "kept"], "no run in kept: make one with --write-baseline"),
        (["--out", "docs"], "docs has files that are not the gate's"),
        (["--baseline", "docs", "--write-baseline"], "docs holds something other than a run"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_measured(
    place: Place, words: list[str], message: str
) -> None:
    (place.folder / "docs").mkdir()
    (place.folder / "docs" / "run").write_text("somebody's")
    done = place.gate(*words)
    *before, last = done.stderr.splitlines()
    assert done.returncode == 2 and message in last and not before[1:]
    assert all("the merge base" in line for line in before)
    assert place.commands() == [] and (place.folder / "docs" / "run").exists()


def test_a_command_that_is_not_there_ends_with_2(place: Place) -> None:
    done = place.gate(SSMPERF="no-such-command -x")
    assert done.returncode == 2 and "there is no command no-such-command" in done.stderr


def test_results_of_an_earlier_gate_do_not_stay(place: Place) -> None:
    assert place.gate().returncode == 0
    standin = Path(place.ssmperf.split()[1])
    standin.write_text("import sys; sys.exit(2)")
    done = place.gate()
    assert done.returncode == 2 and not (place.folder / "gate" / "junit.xml").exists()
    assert "exit code 2 before there was anything to sum up" in done.stdout


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"SSMPERF_PAGE_URL": "https://ci/page"}, "https://ci/page"),
        ({"GITHUB_RUN_ID": "7", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b"},
         "https://github.com/a/b/actions/runs/7#artifacts"),
        ({"CI_JOB_URL": "https://gitlab/jobs/7"}, "https://gitlab/jobs/7/artifacts/file/gate/index.html"),
        ({"BUILDKITE": "true"}, "artifact://gate/index.html"),
        ({}, "None"),
    ],
)  # fmt: skip
def test_the_summary_can_name_the_address_of_the_page(
    place: Place, variables: Mapping[str, str], address: str
) -> None:
    place.gate(**variables)
    assert (place.folder / "gate" / "summary.md").read_text() == f"ab --summary {address}"


def test_a_baseline_is_kept_and_compared_with(place: Place) -> None:
    words = ("--baseline", "kept", "--plugin", "mine.py", "--", "--models", "gla")
    assert place.gate("--write-baseline", *words).returncode == 0
    head = git(place.folder, "rev-parse", "HEAD")
    assert (place.folder / "kept" / "commit").read_text().strip() == head
    run, report = place.commands()
    assert (
        run[0] == "run" and option(run, "--tag") == f"commit {head[:10]}" and run[-2:] == ["--models", "gla"]
    )
    assert report[0] == "report"

    (place.folder / "mine.py").write_text("# three\n")
    for more in ([], ["--remeasure"]):
        place.asked.unlink(missing_ok=True)
        assert place.gate(*more, *words, CODE="1").returncode == 1
        run, check = place.commands()
        assert option(run, "--tag") == f"commit {head[:10]} with changes"
        assert check[:2] == ["check", "gate/run"] and option(check, "--baseline") == "kept"
        assert (option(check, "--base-version"), option(check, "--new-version")) == (head, ".")
        assert ("--remeasure" in check) is bool(more) and "--models" not in check


def test_a_baseline_is_refreshed_whatever_the_comparison_says(place: Place) -> None:
    words = ("--baseline", "kept", "--write-baseline")
    assert place.gate(*words).returncode == 0
    (place.folder / "kept" / "old").touch()
    for code, stays in (("2", True), ("3", False)):
        done = place.gate(*words, CODE=code)
        assert done.returncode == (2 if stays else 0)
        assert (place.folder / "kept" / "old").exists() is stays
    assert "check --summary" in done.stdout


def test_it_works_at_the_top_of_the_repository(place: Place) -> None:
    (place.folder / "deep").mkdir()
    top, place.folder = place.folder, place.folder / "deep"
    assert place.gate("--plugin", "mine.py").returncode == 0
    assert (top / "gate" / "index.html").exists()


@pytest.mark.slow
def test_the_environment_is_made_once_per_requirement(place: Place, tmp_path: Path) -> None:
    wheel = tmp_path / "ssmperf-9.9-py3-none-any.whl"
    info = "ssmperf-9.9.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("standin.py", f"def main():\n    exec({STANDIN!r})\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: ssmperf\nVersion: 9.9\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\nssmperf = standin:main\n")
        file.writestr(f"{info}/RECORD", "")
    variables = {"SSMPERF": "", "SSMPERF_INSTALL": str(wheel), "PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
    first = place.gate(**variables)
    assert first.returncode == 0 and "installing" in first.stderr, first.stderr
    wheel.unlink()  # not needed again
    second = place.gate(**variables)
    assert second.returncode == 0 and "installing" not in second.stderr
    assert len(place.commands()) == 2 and git(place.folder, "status", "--porcelain") == ""
    other = place.gate(**{**variables, "SSMPERF_INSTALL": "no-such-requirement"})
    assert other.returncode == 2 and "cannot install no-such-requirement" in other.stderr
    (place.folder / "mine").mkdir()
    (place.folder / "mine" / "file").touch()
    foreign = place.gate(**variables, SSMPERF_VENV="mine")
    assert foreign.returncode == 2 and "not made by the gate" in foreign.stderr


def test_this_repository_has_it_as_a_command(place: Place) -> None:
    done = place.gate("--base", "HEAD", "--new", "HEAD", "--out", str(place.folder / "gate"),
                      script=ROOT / "ci" / "gate")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert place.only()[0] == "ab"
