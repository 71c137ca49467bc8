"""A new axis is one field of `Case` and the code that acts on it: everything else follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more field."""
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
    return folder


def ssmperf(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "ssmperf.cli", *words],
        capture_output=True, text=True, timeout=240, check=False, env=environment, cwd=tree,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_it_is_an_option(tree: Path) -> None:
    shown = ssmperf(tree, "run", "--help")
    assert "--weather" in shown and "Weather of a test." in shown


def test_cases_of_its_default_keep_their_ids(tree: Path) -> None:
    selected = ("run", "--suite", "correctness", "--models", "hgrn", "--backends", "sequential", "--dry-run")
    with_axis = ssmperf(tree, *selected, *SIZES)
    without = subprocess.run(
        [sys.executable, "-m", "ssmperf.cli", *selected, *SIZES], capture_output=True, text=True, check=True
    )
    assert with_axis == without.stdout


def test_it_is_planned_identified_run_and_repeated(tree: Path) -> None:
    ssmperf(tree, *SELECTED, *SIZES, "--weather", "dry,wet", "--out", "run")
    records = [json.loads(line) for line in (tree / "run" / "records.jsonl").read_text().splitlines()]
    assert [(r["weather"], r["drops"], r["status"]) for r in records] == [("dry", 0, "ok"), ("wet", 7, "ok")]
    assert len({r["case_id"] for r in records}) == 2
    assert "--weather" not in records[0]["command"]
    assert "--weather wet " in records[1]["command"]


def test_an_illegal_value_is_refused(tree: Path) -> None:
    with pytest.raises(AssertionError, match=r"unknown weather 'hail'.*known: dry, wet"):
        ssmperf(tree, *SELECTED, *SIZES, "--weather", "hail")
