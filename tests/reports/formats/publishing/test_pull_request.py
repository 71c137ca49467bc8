"""The comment on a pull request, of comparisons that the repository keeps and of hostile ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.formats.publishing.pull_request import pull_request
from support.processes.quick_processes import command

from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.versions.measured import load_comparison
from ssmperf.errors import UnreadableRun

GATE = Path(__file__).parents[4] / "docs" / "results" / "gate-h200"
HOSTILE = "<img src=x>|`\x1b[2J" + "_x" * 100


def written(comparison: Any) -> str:
    text = pull_request(comparison)
    assert text is not None
    return text


@pytest.mark.parametrize("name", ["slower", "equal", "wrong"])
def test_it_has_at_most_80_columns_and_all_timed_cases(name: str) -> None:
    found = load_comparison(GATE / name / "ab")
    text = written(found)
    assert max(map(len, text.splitlines())) <= 80
    rows = [line for line in text.splitlines() if line.endswith("|") and " µs |" in line]
    assert len(rows) == sum(pair.ratio is not None for pair in found.pairs) > 0


def test_it_says_times_kernels_errors_versions_device_and_how_to_repeat_it() -> None:
    text = written(load_comparison(GATE / "slower" / "ab"))
    assert "**hgrn, my_scan, B8, T8192, C1536, throughput**" in text
    assert "| float32 forward   |   298 µs |  313 µs | 1.050 (1.048 to 1.053) | slower    |" in text
    plain = " ".join(text.split())
    for part in (
        "a regression: 12 cases, 8 slower",
        "kernels before: scan_forward",
        "largest error / tolerance: 0.13 before (gradient of b)",
        "- before: git ref right (c9a5c4793f) - after: git ref slower (061a6ce951)",
        "NVIDIA H200, 2026-11-23, SM clock 1.98 GHz, temperature 39 °C to 41 °C",
        "never throttled",
        "ssmperf ab --base c9a5c4793f --new 061a6ce951 --suite correctness,throughput \\",
        "--models hgrn,mingru --backends my_scan --axis T=8192 --device cuda \\",
        "--threshold 0.025 \\ --pairs 5+7",
    ):
        assert part in plain


def test_commits_that_are_known_are_named_by_their_subject() -> None:
    found = load_comparison(GATE / "equal" / "ab")
    text = written(replace(found, until='1a2b3c4d5e "Fuse the `gates`" (Jane)'))
    assert '- after: 1a2b3c4d5e "Fuse the \\`gates\\`" (Jane)' in text


def test_names_from_outside_stay_text_and_short(fake: Any) -> None:
    base = fake.run([fake.timed(1e-3, model=HOSTILE), fake.timed(1e-3, model=HOSTILE, seed=1)])
    worse = {"numbers": {"kernels": {HOSTILE: 1}}}
    new = fake.run(
        [fake.timed(2e-3, model=HOSTILE, **worse), fake.failed("wrong", HOSTILE, model=HOSTILE, seed=1)]
    )
    text = written(replace(compare_runs(base, new), repeat="ssmperf ab ' ```'"))
    assert "\x1b" not in text and "<img" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "slower" in text and "kernels after: &lt;img" in text


def test_a_table_that_is_too_wide_is_split(fake: Any) -> None:
    cases = [
        {"dtype": dtype, "pass_": pass_, "shape": {"B": 2, "T": T, "C": 64}}
        for dtype in ("bfloat16", "float32")
        for pass_ in ("forward", "forward_backward")
        for T in (1024, 4096)
    ]
    runs = [fake.run([fake.timed(time, **each) for each in cases]) for time in (1e-3, 2e-3)]
    text = written(compare_runs(*runs))
    assert max(map(len, text.splitlines())) <= 80
    assert "**mingru, sequential, float32, forward_backward, B2, C64, throughput**" in text
    assert text.count("\n| T1024 ") == text.count("\n| T4096 ") == 4


def test_the_verb_writes_it_to_a_file(tmp_path: Path) -> None:
    done = command("pr", str(GATE / "slower" / "ab"), "--out", str(tmp_path / "pr.md"))
    assert done.returncode == 0 and "| bfloat16 forward" in (tmp_path / "pr.md").read_text()


def test_an_interrupted_comparison_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ab"
    shutil.copytree(GATE / "slower" / "ab", folder)
    state = (folder / "ab.json").read_text()
    (folder / "ab.json").write_text(state.replace('"first": 5', '"first": 9'))
    with pytest.raises(UnreadableRun, match="interrupted"):
        load_comparison(folder)
    (folder / "ab.json").write_text(state.replace('"text": "right"', '"text": 1'))
    with pytest.raises(UnreadableRun, match="damaged"):
        load_comparison(folder)
    with pytest.raises(UnreadableRun, match=r"no folder of `ssmperf ab`"):
        load_comparison(tmp_path)
