"""The suite of examples/ needs what the façades export, and no other name of the core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
AT_MODULE, IN_MEASURE = "SECTION = ", "        verdict, values = "
# a line that needs more than the public names, and the line of the example before which it is planted
PLANTED = {
    "imports": ("from ssmperf.engine.execute.judging import Judging", AT_MODULE),
    "imports_package": ("from ssmperf import measure", AT_MODULE),
    "imports_late": ("        __import__('importlib').import_module('ssmperf.engine.measure')", IN_MEASURE),
    "reads_attribute": ("        import ssmperf; ssmperf.errors.UsageError", IN_MEASURE),
}


def example_suite(name: str) -> str:
    """Give the code of the example with another name."""
    code = (TESTS.parent / "examples" / "suite.py").read_text()
    assert code.count('"repetition"') == 1
    return code.replace('"repetition"', f'"{name}"')


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the example and its planted variants in one new process; give each one's result by its name."""
    folder = tmp_path_factory.mktemp("plugins")
    files = {name: folder / f"{name}.py" for name in ("repetition", *PLANTED)}
    for name, file in files.items():
        code = example_suite(name)
        if name in PLANTED:
            line, before = PLANTED[name]
            assert code.count(before) == 1
            code = code.replace(before, f"{line}\n{before}")
        file.write_text(code)
    command = [
        sys.executable,
        str(TESTS / "support" / "processes" / "public_only.py"),
        *map(str, files.values()),
    ]
    # the root comes first: the folder tests/ssmperf would otherwise stand for the package
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[str(file)] for name, file in files.items()}


@pytest.mark.slow
def test_the_example_suite_needs_public_names_only(results: dict[str, Any]) -> None:
    records = results["repetition"]["records"]
    assert {record["backend"]: record["status"] for record in records} == {
        "blelloch": "ok",
        "sequential": "ok",
    }
    assert all(record["same_output"] is True for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_a_suite_that_needs_more_is_found(planted: str, results: dict[str, Any]) -> None:
    assert "beyond the public names" in json.dumps(results[planted])
