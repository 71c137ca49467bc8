"""A new axis or option is one field and the code that acts on it: everything else follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes.quick_processes import Server, command

ROOT = Path(__file__).parents[4]
FIELD = """    weather: str = axis(
        "dry",
        help="Weather of a test.",
        valid=("dry", "wet"),
        operands=False,
    )
    operand_source:"""
OPTION = """    umbrellas: int | None = option(
        None,
        help="Umbrellas of a test.",
        type=int,
        read=count(9),
        compared=True,
    )
    rounds: int | None = option("""
SUITE = '''
from ssmperf import Record, Status
from ssmperf.suitekit import Section, product, suite


@suite("umbrella", section=Section("Umbrella", "?", ("drops",)))
class Umbrella:
    def cases(self, selection):
        return product(selection, self.name, passes=("forward",), dtypes=("float32",), cache="hot")

    def measure(self, case, context):
        """Act on the axis and the option."""
        return Record(case, Status.OK, None, context.env_id, {"drops": 7 if case.weather == "wet" else 0,
                      "umbrellas": context.options.umbrellas, "command": context.command(case)})
'''


@dataclass(frozen=True)
class Tree:
    """A copy of the package with two more fields, and a server that has imported it."""

    folder: Path
    server: Server

    def ssmperf(self, *words: str) -> str:
        variables = {"PYTHONPATH": str(self.folder), "COLUMNS": "200"}
        done = command(*words, folder=self.folder, by=self.server, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("axis")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ssmperf", folder / "ssmperf", ignore=ignored)
    for room in ("impls", "suites", "reports"):
        shutil.copytree(ROOT / room, folder / "ssmperf" / room, ignore=ignored)
    for file, fields in (("engine/cases/case.py", FIELD), ("engine/plan/run_options.py", OPTION)):
        path, before = folder / "ssmperf" / file, fields.splitlines()[-1]
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, fields))
    (folder / "umbrella.py").write_text(SUITE)
    server = Server({**os.environ, "PYTHONPATH": str(folder)})
    yield Tree(folder, server)
    server.close()


SELECTED = (
    "run",
    "--suite",
    "umbrella",
    "--plugin",
    "umbrella.py",
    "--models",
    "hgrn",
    "--backends",
    "sequential",
)
SIZES = ("--device", "cpu", "--axis", "T=4", "--axis", "B=1", "--axis", "C=2")


@pytest.mark.parametrize("verb", ["run", "ab", "bisect"])
def test_both_are_on_the_command_line(tree: Tree, verb: str) -> None:
    shown = tree.ssmperf(verb, "--help")
    for name in ("weather", "umbrellas"):
        assert f"--{name}" in shown and f"{name.title()} of a test." in shown


def test_an_option_is_read_stored_repeated_and_known_to_workers(tree: Tree) -> None:
    tree.ssmperf(*SELECTED, *SIZES, "--umbrellas", "3", "--out", "told")
    assert json.loads((tree.folder / "told" / "run.json").read_text())["options"]["umbrellas"] == 3
    (record,) = map(json.loads, (tree.folder / "told" / "records.jsonl").read_text().splitlines())
    assert record["umbrellas"] == 3 and " --umbrellas 3" in record["command"]
    with pytest.raises(AssertionError, match="--umbrellas must lie between 1 and 9, got 12"):
        tree.ssmperf(*SELECTED, *SIZES, "--umbrellas", "12")


@pytest.mark.slow
def test_an_option_is_a_keyword_in_python(tree: Tree) -> None:
    code = """
import inspect, ssmperf
run = ssmperf.run("umbrella", plugin="umbrella.py", models="hgrn", backends="sequential", device="cpu",
                  axis=["T=4", "B=1", "C=2"], umbrellas=2)
print(inspect.signature(ssmperf.run).parameters["umbrellas"], run.records[0].numbers["umbrellas"])
print(ssmperf.run.__doc__)
"""
    variables = {**os.environ, "PYTHONPATH": str(tree.folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree.folder, env=variables, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("umbrellas=None 2\n") and "umbrellas: Umbrellas of a test." in done.stdout


def test_cases_of_an_axis_s_default_keep_their_ids(tree: Tree) -> None:
    selected = ("run", "--suite", "correctness", "--models", "hgrn", "--backends", "sequential", "--dry-run")
    with_axis = tree.ssmperf(*selected, *SIZES)
    assert with_axis == command(*selected, *SIZES).stdout


def test_an_axis_is_planned_identified_run_and_repeated(tree: Tree) -> None:
    tree.ssmperf(*SELECTED, *SIZES, "--weather", "dry,wet", "--out", "run")
    records = [json.loads(line) for line in (tree.folder / "run" / "records.jsonl").read_text().splitlines()]
    assert [(r["weather"], r["drops"], r["status"]) for r in records] == [("dry", 0, "ok"), ("wet", 7, "ok")]
    assert len({r["case_id"] for r in records}) == 2
    assert "--weather" not in records[0]["command"]
    assert "--weather wet " in records[1]["command"]


def test_an_illegal_value_is_refused(tree: Tree) -> None:
    with pytest.raises(AssertionError, match=r"unknown weather 'hail'.*known: dry, wet"):
        tree.ssmperf(*SELECTED, *SIZES, "--weather", "hail")
