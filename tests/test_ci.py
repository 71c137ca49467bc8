"""The scripts of ci/: what they print, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.quick_processes import command

from ci import totals

ROOT = Path(__file__).parents[1]

STEP = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure>no</failure></testcase>
<testcase name="c"><skipped message="needs a CUDA device"/></testcase>
</testsuite></testsuites>"""

OTHER_SKIP = '<testcase name="a"><skipped message="needs g++"/></testcase>'


class TestTotals:
    def test_the_last_line_is_the_sum_of_the_steps(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("unit.xml", "gpu.xml"):
            (tmp_path / name).write_text(STEP)
        totals.main([str(tmp_path / "gpu.xml"), str(tmp_path / "unit.xml")])
        gpu, total = capsys.readouterr().out.splitlines()
        assert gpu == "GPU tests: 1 passed, 1 failed, 2 skipped (needs a CUDA device)"
        assert total == "tests: 2 passed, 2 failed, 2 skipped"

    def test_without_a_gpu_step_the_skipped_ones_are_counted(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "unit.xml").write_text(STEP.replace('<testcase name="a"/>', OTHER_SKIP))
        totals.main([str(tmp_path / "unit.xml")])
        gpu, total = capsys.readouterr().out.splitlines()
        assert gpu == "GPU tests: 0 passed, 0 failed, 1 skipped (needs a CUDA device)"
        assert total == "tests: 0 passed, 1 failed, 2 skipped"


@pytest.mark.slow(but=("ci/resources.py", "tests/proofs/sanitize.py"))
@pytest.mark.parametrize(
    "script",
    [
        str(file.relative_to(ROOT))
        for folder in ("ci", "tests/proofs")
        for file in sorted((ROOT / folder).glob("*.py"))
        if "argparse" in file.read_text()
    ],
)
def test_each_script_explains_its_options(script: str) -> None:
    done = command("--help", program=str(ROOT / script))
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
