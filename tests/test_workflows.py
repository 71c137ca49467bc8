"""Workflows for CI: each fits the published schema of its CI, and calls the gate as the gate wants it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.results.histories import step, write
from support.versions.gate import GATE, ROOT, Place, commit, git

WORKFLOWS, ACTIONS = "vendor.github-workflows", "vendor.github-actions"
TRANSFORMS = {"vendor.gitlab-ci": ("--data-transform", "gitlab-ci")}
WORKFLOW = ROOT / "ci" / "gpu-workflow.yml"
STARTER = GATE.with_name("gpu.yml")
ACTION = ROOT / ".github" / "actions" / "gate" / "action.yml"
# The first line of each snippet of docs/ci.md, and its schema.
SNIPPETS = {
    "# GitHub workflow": WORKFLOWS,
    "# GitHub steps": WORKFLOWS,
    "# GitLab CI": "vendor.gitlab-ci",
    "# Buildkite": "vendor.buildkite",
}
JOB = "on: push\njobs:\n  job:\n    runs-on: gpu\n    steps:\n"
MARKS = {"plugin": "mine.py", "name": "mine"}


def snippets() -> dict[str, str]:
    """Get the YAML of docs/ci.md by first line, as texts of which the schemas check everything.

    Steps become a workflow that has them, and hidden jobs of GitLab, which the schema skips, usual ones.
    """
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL | re.MULTILINE
    )
    found = {}
    for block in blocks:
        title = block.partition("\n")[0]
        if title == "# GitHub steps":
            block = JOB + re.sub("^", "      ", block, flags=re.MULTILINE)
        found[title] = re.sub(r"(^|extends: )\.(?=\w)", r"\1visible-", block, flags=re.MULTILINE)
    return found


def filled(text: str) -> str:
    """Fill a starter's marks, as text; GitHub's own expressions stay."""
    for mark, value in MARKS.items():
        text = text.replace(f"{{{{ {mark} }}}}", value)
    return text


def documents() -> dict[str, tuple[str, str]]:
    """Get all that has a schema: name, schema and text."""
    found = {
        "workflow": (WORKFLOWS, WORKFLOW.read_text()),
        "starter": (WORKFLOWS, filled(STARTER.read_text())),
        "starter, with its marks": (WORKFLOWS, STARTER.read_text()),
        "action": (ACTIONS, ACTION.read_text()),
    }
    return found | {title: (SNIPPETS[title], text) for title, text in snippets().items()}


def check(folder: Path, schema: str, text: str) -> subprocess.CompletedProcess[str]:
    """Check YAML against a schema that is installed; nothing is fetched."""
    file = folder / "checked.yml"
    file.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    return subprocess.run(
        [*command, *TRANSFORMS.get(schema, ()), str(file)], capture_output=True, text=True, check=False
    )


def test_every_snippet_is_known() -> None:
    assert snippets().keys() == SNIPPETS.keys()


@pytest.mark.slow(but=("workflow", "starter", "action"))
@pytest.mark.parametrize("name", documents())
def test_it_fits_the_schema(name: str, tmp_path: Path) -> None:
    done = check(tmp_path, *documents()[name])
    assert done.returncode == 0, done.stdout


BROKEN = {
    "workflow": ("runs-on", "runs_on"),
    "action": ("using: composite", "using: compost"),
    "# GitLab CI": ("timeout: 2 hours", "timeout: [2]"),
    "# Buildkite": ("timeout_in_minutes: 120", "timeout_in_minutes: soon"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_found(name: str, tmp_path: Path) -> None:
    schema, text = documents()[name]
    right, broken = BROKEN[name]
    assert right in text
    assert check(tmp_path, schema, text.replace(right, broken)).returncode == 1


def test_the_starter_has_no_other_marks() -> None:
    marks = re.findall(r"(?<!\$)\{\{ *(.*?) *\}\}", STARTER.read_text())
    assert set(marks) == set(MARKS)
    assert re.findall(r"\{\{ *\w+ *\}\}", GATE.read_text()) == []


def scripts(node: Any) -> Iterator[str]:
    """List the shell scripts in a workflow of any CI."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("run", "command", "script"):
                yield value if isinstance(value, str) else "\n".join(value)
            else:
                yield from scripts(value)
    elif isinstance(node, list):
        for each in node:
            yield from scripts(each)


def gates(text: str) -> list[list[str]]:
    """List the calls of the gate in a workflow, as words."""
    data = YAML(typ="safe").load(text)
    cases = (data.get("env") or {}).get("CASES", "")
    lines = [line.strip() for script in scripts(data) for line in script.splitlines()]
    calls = [
        line.replace("$CASES", cases).partition("||")[0] for line in lines if line.startswith("ci/gate ")
    ]
    return [shlex.split(call) for call in calls]


def test_this_projects_workflow_calls_the_gate_and_its_tests_alone() -> None:
    called = list(scripts(YAML(typ="safe").load(WORKFLOW.read_text())))
    assert len(called) == 6
    history = '"$SSMPERF_VENV/bin/ssmperf" history'
    assert all(re.match(rf"(ci/(gate|test gpu)|{re.escape(history)})\b[^\n]*$", each) for each in called)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Make a repository whose plug-in differs from main's, and a stand-in for ssmperf that does nothing."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "# one\n", "one")
    git(folder, "switch", "-q", "-c", "topic")
    (folder / "my_kernel.py").write_text("")
    commit(folder, "# two\n", "two")
    standin = tmp_path / "standin.py"
    standin.write_text(
        "import json, os, sys, pathlib\n"
        "open(os.environ['ASKED'], 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n"
        "sys.argv[1] == 'run' and (out.mkdir(parents=True), (out / 'run.json').write_text('{}'))\n"
    )
    return Place(folder, f"{sys.executable} {standin}", tmp_path / "asked")


@pytest.mark.parametrize("name", [name for name, (schema, text) in documents().items() if "ci/gate" in text])
def test_the_gate_understands_how_it_is_called(name: str, place: Place) -> None:
    calls = gates(documents()[name][1])
    assert calls
    if name == "starter, with its marks":
        return
    for words in calls:
        kept = [str(place.folder.parent / "kept") if word.startswith("/var") else word for word in words[1:]]
        done = place.gate(*kept)
        assert done.returncode == 0, done.stderr
        assert "--backends" in place.commands()[-1] or place.commands()[-1][0] == "report"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["workflow", "starter"])
@pytest.mark.parametrize("slower", [False, True])
def test_the_nightly_job_appends_a_run_and_writes_the_page(
    name: str, slower: bool, place: Place, tmp_path: Path
) -> None:
    """Its scripts run as GitHub runs them, with the runs of earlier nights and the real `history`."""
    data = YAML(typ="safe").load(documents()[name][1])
    job = data["jobs"]["nightly"]
    measure, history = (step["run"] for step in job["steps"] if "run" in step)
    restore, save = (step for step in job["steps"] if "cache/" in step.get("uses", ""))
    assert restore["with"]["path"] == save["with"]["path"] == "history"
    assert restore["with"]["key"] == save["with"]["key"]
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])
    order = [step.get("run") or step["uses"] for step in job["steps"]]
    assert order.index(measure) < order.index(save["uses"]) < order.index(history)  # a red night is kept, too
    assert job["steps"][-1]["if"] == "always()" and "history" in job["steps"][-1]["with"]["path"].split()
    # each scheduled time starts one of the two jobs
    night = next(each["cron"] for each in data["on"]["schedule"] if each["cron"] != "0 3 * * 1")
    assert job["if"].endswith(f"github.event.schedule == '{night}'")
    assert data["jobs"]["baseline"]["if"].endswith(f"&& github.event.schedule != '{night}'")

    shifts = {0: step(6, 0.5)} if slower else {}
    *earlier, new = write(tmp_path / "runs", runs=13, count=2, shifts=shifts)
    for number, path in enumerate(earlier):
        shutil.copytree(path, place.folder / "history" / f"{number}-1")
    standin = Path(place.ssmperf.split()[1])
    copied = f"import shutil; sys.argv[1] == 'run' and shutil.copytree({str(new)!r}, out)\n"
    standin.write_text(standin.read_text().rpartition("sys.argv[1]")[0] + copied)
    (place.folder / "ci").mkdir()
    (place.folder / "ci" / "gate").symlink_to(GATE)
    command = tmp_path / "environment" / "bin" / "ssmperf"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ssmperf.shell.cli "$@"\n')
    command.chmod(0o755)
    variables = {"SSMPERF": place.ssmperf, "ASKED": str(place.asked), "CASES": "--backends mine"}
    variables |= {"SSMPERF_VENV": str(command.parents[1]), "GITHUB_RUN_ID": "77", "GITHUB_RUN_ATTEMPT": "1"}
    variables |= {
        "GITHUB_SERVER_URL": "",
        "GITHUB_REPOSITORY": "",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "s"),
    }
    variables |= {"PYTHONPATH": str(ROOT)}
    for script, code in ((measure, 0), (history, int(slower))):
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=place.folder, env=os.environ | variables,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
    assert (place.folder / "history" / "77-1" / "run.json").exists()
    assert "2 cases over 13 runs" in done.stdout and "13 runs: could have found a step from" in done.stdout
    page = (place.folder / "gate" / "history.html").read_text()
    assert "2 cases over 13 runs" in page


@pytest.mark.parametrize("code", [0, 3])
def test_the_action_hands_its_inputs_to_the_gate(place: Place, tmp_path: Path, code: int) -> None:
    """Its script runs as GitHub runs it; words with spaces and quotes stay words, and no input is code."""
    action = YAML(typ="safe").load(ACTION.read_text())
    gate, upload = action["runs"]["steps"]
    assert upload["if"] == "always()"
    given = {each: action["inputs"][each]["default"] for each in action["inputs"]}
    given |= {"base": "main", "plugin": "my_kernel.py\nmine.py\n", "out": "my results $(touch x)"}
    given |= {"options": "--backends mine\n--dtype bfloat16,float32", "unsure": "pass"}
    inputs = {
        name: given[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)[1]]  # type: ignore[index]
        for name, text in gate["env"].items()
    }
    standin = Path(place.ssmperf.split()[1])
    standin.write_text(standin.read_text() + f"sys.exit({code})\n")
    output = tmp_path / "output"
    environment = {**os.environ, **inputs, "SSMPERF": place.ssmperf, "ASKED": str(place.asked)}
    environment |= {"GITHUB_ACTION_PATH": str(ACTION.parent), "GITHUB_OUTPUT": str(output)}
    environment |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", gate["run"]]
    done = subprocess.run(command, cwd=place.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert output.read_text() == f"exit-code={code}\n"
    asked = place.only()
    assert asked[asked.index("--out") + 1] == "my results $(touch x)/ab"
    assert [asked[i + 1] for i, word in enumerate(asked) if word == "--plugin"] == ["my_kernel.py", "mine.py"]
    assert asked[-4:] == ["--backends", "mine", "--dtype", "bfloat16,float32"]
    assert asked[asked.index("--unsure") + 1] == "pass" and not (place.folder / "x").exists()
