"""A new axis is one field of `Case` and the code that acts on it: everything else follows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.quick_processes import Server, command

ROOT = Path(__file__).parents[2]
FIELD = """    weather: str = axis(
        "dry",
        help="Weather of a test.",
        valid=("dry", "wet"),
        operands=False,
    )
    operand_source:"""
SUITE = '''
from ssmperf import Record, Section, Status, product, suite


@suite("umbrella", section=Section("Umbrella", "?", ("drops",)))
class Umbrella:
    def cases(self, selection):
        return product(selection, self.name, passes=("forward",), dtypes=("float32",), cache="hot")

    def measure(self, case, context):
        """Act on the axis."""
        return Record(case, Status.OK, None, context.env_id, {"drops": 7 if case.weather == "wet" else 0,
                      "command": context.command(case)})
'''


@dataclass(frozen=True)
class Tree:
    """A copy of the package with one more field, and a server that has imported it."""

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
    for room in ("impls", "suites", "reports", "claims"):
        shutil.copytree(ROOT / room, folder / "ssmperf" / room, ignore=ignored)
    file = folder / "ssmperf" / "cases" / "case.py"
    text = file.read_text()
    assert text.count("    operand_source:") == 1
    file.write_text(text.replace("    operand_source:", FIELD))
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


def test_it_is_an_option(tree: Tree) -> None:
    shown = tree.ssmperf("run", "--help")
    assert "--weather" in shown and "Weather of a test." in shown


def test_cases_of_its_default_keep_their_ids(tree: Tree) -> None:
    selected = ("run", "--suite", "correctness", "--models", "hgrn", "--backends", "sequential", "--dry-run")
    with_axis = tree.ssmperf(*selected, *SIZES)
    assert with_axis == command(*selected, *SIZES).stdout


def test_it_is_planned_identified_run_and_repeated(tree: Tree) -> None:
    tree.ssmperf(*SELECTED, *SIZES, "--weather", "dry,wet", "--out", "run")
    records = [json.loads(line) for line in (tree.folder / "run" / "records.jsonl").read_text().splitlines()]
    assert [(r["weather"], r["drops"], r["status"]) for r in records] == [("dry", 0, "ok"), ("wet", 7, "ok")]
    assert len({r["case_id"] for r in records}) == 2
    assert "--weather" not in records[0]["command"]
    assert "--weather wet " in records[1]["command"]


def test_an_illegal_value_is_refused(tree: Tree) -> None:
    with pytest.raises(AssertionError, match=r"unknown weather 'hail'.*known: dry, wet"):
        tree.ssmperf(*SELECTED, *SIZES, "--weather", "hail")
