"""The proofs: what they print, how they end, and the command that runs them."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from proofs import (
    mutations,
    simulate_history,
    simulate_verdicts,
    undone,
    verdict_counts,
    verdict_rates,
)
from support.results.browser import CHROMIUM

from ssmperf.engine.measure import paired

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
GPU = Path("/dev/nvidiactl").exists()

# In place of ci/environment: an environment that exists, whose Python says how it is called.
ENVIRONMENT = """
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/venv
die() { echo "$*" >&2; exit 1; }
make_environment() { echo "made for $1"; }
"""
PYTHON = """#!/bin/bash
echo "called: $*"
case $* in *mutations*) exit ${MUTATIONS:-0} ;; *histories*) exit ${BISECT:-0} ;; esac
"""


class TestCommand:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "ci").mkdir()
        shutil.copy(ROOT / "ci" / "proofs", tmp_path / "ci")
        (tmp_path / "ci" / "environment").write_text(ENVIRONMENT)
        python = tmp_path / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)
        (python.parent / "ssmperf").symlink_to(python)
        return tmp_path

    def run(self, root: Path, *names: str, **environment: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [str(root / "ci" / "proofs"), *names], env={**os.environ, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout.splitlines()

    def test_the_list_names_every_file_of_proofs_and_what_each_needs(self, root: Path) -> None:
        code, lines = self.run(root, "--list")
        assert code == 0 and all(re.match(r"\w+ +\d+ min +needs \S", line) for line in lines)
        scripts = re.findall(r"python (\S+\.py)", (ROOT / "ci" / "proofs").read_text())
        assert all((ROOT / script).exists() for script in scripts)
        proofs = {file.name for file in (ROOT / "tests" / "proofs").glob("*.py")}
        parts = {"__init__.py", "draw_verdicts.py", "verdict_counts.py"}
        assert proofs - {Path(script).name for script in scripts} == parts

    def test_all_run_and_the_last_lines_say_how_each_ended(self, root: Path) -> None:
        code, lines = self.run(root)
        names = [line.split()[0] for line in self.run(root, "--list")[1]]
        assert code == 0 and lines.count("made for test") == 1
        ends = lines[lines.index("== summary") + 1 :]
        assert sorted(line.split()[0] for line in ends) == names
        lacking = {"browser": ("Chromium", CHROMIUM), "sanitizer": ("a GPU", GPU), "undone": ("a GPU", GPU)}
        assert [line for line in ends if "passed in" not in line] == [
            f"{name:10} skipped: needs {need}" for name, (need, there) in lacking.items() if not there
        ]

    def test_one_that_fails_ends_it_with_1_after_the_others(self, root: Path) -> None:
        code, lines = self.run(root, "bisect", "mutations", BISECT="3")
        assert code == 1
        assert [line.split()[:2] for line in lines[-2:]] == [["bisect", "FAILED"], ["mutations", "passed"]]

    def test_one_that_could_not_be_carried_out_is_no_pass(self, root: Path) -> None:
        code, lines = self.run(root, "bisect", "mutations", MUTATIONS="4")
        assert code == 4 and "mutations  skipped: could not be carried out, as it says above" in lines

    @pytest.mark.skipif(GPU, reason="there is a GPU")
    def test_what_needs_a_gpu_is_skipped_before_the_environment_is_made(self, root: Path) -> None:
        code, lines = self.run(root, "sanitizer")
        assert code == 4 and "made for test" not in lines and "sanitizer  skipped: needs a GPU" in lines

    def test_browsers_are_required_by_their_proof(self, root: Path) -> None:
        """A machine without one skips tests of pages, but not this proof's end."""
        tools = root / "tools"
        tools.mkdir()
        for name in ("bash", "dirname", "cut", "grep", "date", "mkdir", "env"):
            (tools / name).symlink_to(str(shutil.which(name)))
        code, lines = self.run(root, "browser", PATH=str(tools))
        assert code == 4 and "browser    skipped: needs Chromium" in lines
        (tools / "chromium").symlink_to(tools / "bash")
        code, lines = self.run(root, "browser", PATH=str(tools))
        assert code == 0 and any("tests/reports/pages" in line for line in lines)

    def test_an_unknown_name_runs_nothing(self, root: Path) -> None:
        code, lines = self.run(root, "mutations", "nothing")
        assert code == 1 and len(lines) == 1
        assert lines[0].startswith("no proof nothing (proofs: alarms bisect browser cheats ")


def test_every_mutation_can_still_be_planted() -> None:
    for mutation in (*mutations.MUTATIONS, *undone.FIXES):
        assert mutation.planted(ROOT) != (ROOT / mutation.file).read_text()


@pytest.mark.slow
def test_mutations_copy_the_checkout_as_it_is(tmp_path: Path) -> None:
    """Backends are looked for beside the package, so a copy in another layout would prove nothing."""
    mutations.tree(tmp_path)
    listed = mutations.called(["-m", "ssmperf.shell.cli", "list", "backends"], tmp_path, {})
    assert listed.returncode == 0, listed.stderr
    place = mutations.called(["-c", "import ssmperf.impls as x; print(x.__file__)"], tmp_path, {})
    assert place.stdout.strip() == str(tmp_path / "impls" / "__init__.py")


@pytest.mark.parametrize(("missed", "code"), [(2, 0), (3, 1)])
def test_eight_of_ten_undone_fixes_have_to_be_found(
    missed: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that fuzz misses are the first; each is planted in a tree of its own."""
    fault = dict.fromkeys(("what", "explanation", "status", "reason", "command"), "")

    def fuzz(command: list[str], folder: Path, environment: object) -> subprocess.CompletedProcess[str]:
        unseen = any((folder / fix.file).read_text() == fix.planted(ROOT) for fix in undone.FIXES[:missed])
        result = {"examples": 9, "classes": 1, "faults": [] if unseen else [fault]}
        return subprocess.CompletedProcess(command, 0 if unseen else 3, json.dumps(result), "")

    def tree(folder: Path) -> None:  # as far as it is read here
        for fix in undone.FIXES:
            (folder / fix.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / fix.file, folder / fix.file)

    monkeypatch.setattr(undone, "called", fuzz)
    monkeypatch.setattr(undone, "tree", tree)
    monkeypatch.setattr(undone.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(undone.torch.cuda, "device_count", lambda: 2)
    assert undone.main(["--out", str(tmp_path / "undone.json")]) == code
    assert len(json.loads((tmp_path / "undone.json").read_text())["found"]) == 10 - missed


class TestHistory:
    def test_promises_are_broken_by_more_alarms_than_chance_explains(self) -> None:
        kept = simulate_history.Row("±1 %", 20, steps=0.1, creep=0.05)
        worse = simulate_history.Row("±3 %", 20, steps=0.25, creep=0.3)
        sticky = simulate_history.Row(simulate_history.NOISE["sticky"][0], 20, creep=0.85)
        assert simulate_history.broken([kept, sticky]) == []
        assert simulate_history.broken([worse]) == [
            "±3 %: 5 false steps in 20 histories, promised 2%",
            "±3 %: 6 false alarms in 20 histories, promised 2%",
        ]

    def test_the_committed_rows_keep_the_promises_and_are_those_of_the_document(self) -> None:
        rows = simulate_history.read(ROOT / "docs/results/simulated-history.json")
        assert simulate_history.broken(rows) == []
        assert simulate_history.as_text(rows) in (ROOT / "docs/history.md").read_text()


class TestRates:
    @pytest.mark.parametrize("run", ["verdict-rates-h200", "verdict-rates-cpu"])
    def test_the_committed_blocks_keep_the_promise(self, run: str, tmp_path: Path) -> None:
        for file in (ROOT / "docs" / "results" / run).glob("block-*.json.gz"):
            shutil.copy(file, tmp_path)
        assert verdict_rates.main(["summary", str(tmp_path)]) == 0
        found = json.loads((tmp_path / "summary.json").read_text())
        assert found == json.loads((ROOT / "docs" / "results" / run / "summary.json").read_text())

    def test_alarms_beyond_chance_and_no_block_at_all_are_no_pass(self) -> None:
        assert [verdict_counts.code_of(12, alarmed) for alarmed in (0, 2, 6)] == [0, 0, 3]
        assert verdict_counts.code_of(0, 0) == 4


class TestSimulateVerdicts:
    def test_rows_are_written_and_drawn_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows, figure = tmp_path / "rows.json", tmp_path / "figure.svg"
        small = ["--noise", "2 %", "--cases", "6,40", "--blocks", "5"]
        assert simulate_verdicts.main([*small, "--out", str(rows)]) == 0
        printed = capsys.readouterr().out
        written = json.loads(rows.read_text())
        assert [row["change"] for row in written["rows"][:4]] == [0, 0.1, 0.2, "least"]
        assert {len(row["alarms"]) for row in written["rows"]} == {3}
        assert written["command"].startswith("python tests/proofs/simulate_verdicts.py --noise")
        assert simulate_verdicts.main(["--read", str(rows), "--figure", str(figure)]) == 0
        assert capsys.readouterr().out == printed
        assert "±2 % between processes" in figure.read_text()

    def test_a_row_is_the_same_whatever_else_is_simulated(self) -> None:
        one = simulate_verdicts.simulate("drift", 6, 0.1, 20, seed=3)
        simulate_verdicts.simulate("4 %", 6, 0.1, 1, seed=3)
        other = simulate_verdicts.simulate("drift", 6, 0.1, 20, seed=3)
        assert one == other

    def test_verdicts_that_cry_wolf_end_it_with_3(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(paired, "SIGNIFICANCE", 0.5)
        assert simulate_verdicts.main(["--noise", "neighbours", "--cases", "40", "--blocks", "40"]) == 3
        assert "alarms missed" in capsys.readouterr().out

    @pytest.mark.parametrize("arguments", [["--noise", "unknown"], ["--cases", "x"], ["--cases", "1"]])
    def test_refusals_end_with_2(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as refusal:
            simulate_verdicts.main(arguments)
        assert refusal.value.code == 2

    def test_a_line_is_met_or_missed_only_by_the_whole_interval(self) -> None:
        verdicts = [simulate_verdicts.lines(
            {"noise": "4 %", "change": 0.1, "alarms": alarms, "power": power}
        ) for alarms, power in (([0, 0, 0.04], [1, 0.91, 1]), ([0.04, 0.03, 0.06], [0.91, 0.89, 0.93]),
                                ([0.1, 0.06, 0.2], [0.8, 0.7, 0.89]))]  # fmt: skip
        assert verdicts == [{"alarms": word, "power": word} for word in ("met", "open", "missed")]

    def test_the_committed_rows_miss_no_line_and_are_those_of_the_document(self) -> None:
        rows = json.loads(gzip.decompress((RESULTS / "simulated-verdicts.json.gz").read_bytes()))["rows"]
        assert all(row["lines"].get("power", "met") == "met" for row in rows)
        assert all(row["lines"]["alarms"] != "missed" for row in rows)
        assert all(row["lines"] == simulate_verdicts.lines(row) for row in rows)
        names = {(row["noise"], row["cases"]) for row in rows}
        assert names == {(name, cases) for name in simulate_verdicts.NOISE for cases in (6, 40, 300)}
        assert simulate_verdicts.markdown(rows) in (ROOT / "docs/measurement.md").read_text()
