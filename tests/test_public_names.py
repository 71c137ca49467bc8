"""The example suite of docs/extending.md needs what `ssmperf` exports, and no other name of the core."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def example_suite() -> str:
    """Give the code of docs/extending.md that registers a suite."""
    document = (TESTS.parent / "docs" / "extending.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "@ssmperf.suite(" in b]
    return str(block)


def test_the_example_suite_needs_public_names_only(tmp_path: Path) -> None:
    (tmp_path / "repetition.py").write_text(example_suite())
    done = run_as_plugin(tmp_path / "repetition.py")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["backend"]: record["status"] for record in records} == {
        "blelloch": "ok",
        "sequential": "ok",
    }
    assert all(record["same_output"] is True for record in records)


@pytest.mark.parametrize(
    ("before", "deeper"),
    [
        ("SECTION = ", "from ssmperf.execute.judging import Judging"),
        ("        verdict, values = ", "        __import__('importlib').import_module('ssmperf.measure')"),
        ("        verdict, values = ", "        ssmperf.errors.UsageError"),
    ],
)
def test_a_suite_that_needs_more_is_found(before: str, deeper: str, tmp_path: Path) -> None:
    """An import as it is loaded, and an import and an attribute as it measures."""
    code = example_suite()
    assert code.count(before) == 1
    (tmp_path / "repetition.py").write_text(code.replace(before, f"{deeper}\n{before}"))
    done = run_as_plugin(tmp_path / "repetition.py")
    assert "beyond the public names" in done.stdout + done.stderr


def run_as_plugin(file: Path) -> subprocess.CompletedProcess[str]:
    """Run a suite plug-in in a new process in which the plug-in can import public names of ssmperf only."""
    return subprocess.run(
        [sys.executable, str(TESTS / "public_only.py"), str(file)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
