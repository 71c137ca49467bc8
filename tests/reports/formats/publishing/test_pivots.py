"""Tables for a paper and a pull request, of runs that the repository keeps."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.formats.publishing import pivots

from ssmperf import load

PDFLATEX = shutil.which("pdflatex")
RESULTS = Path(__file__).parents[4] / "docs" / "results"


@pytest.mark.parametrize("name", ["h200-gated-delta/two-waves-now", "h200-standard"])
def test_a_table_for_a_pull_request_has_at_most_80_columns(name: str) -> None:
    text = pivots.markdown_short([load(RESULTS / name)])
    assert text is not None
    assert max(map(len, (line for line in text.splitlines() if line.startswith("|")))) <= pivots.WIDEST


def test_it_says_times_winner_sizes_device_and_date() -> None:
    text = pivots.markdown_short([load(RESULTS / "h200-gated-delta" / "two-waves-now")])
    assert text is not None
    assert "| T8192 G16 | **502 µs ±0.3 %** | 624 µs ±0.6 % |" in text
    assert "B2 H64 K128 V128, NVIDIA H200, 2026-11-29" in text


def test_every_time_is_in_one_table_each() -> None:
    run = load(RESULTS / "h200-gated-delta" / "two-waves-now")
    timed = sum(record.numbers.get("latency_s") is not None for record in run.records)
    assert sum(len(cells) for pivot in pivots.pivots([run]) for cells in pivot.lines.values()) == timed
    text = pivots.markdown_short([run])
    assert text is not None and text.count("±") == timed


def test_latex_has_bold_winners_and_no_command_from_outside() -> None:
    text = pivots.latex([load(RESULTS / "h200-gated-delta" / "two-waves-now")])
    assert text is not None
    assert r"T8192 G16 & \textbf{502 \textmu{}s $\pm$0.3 \%} & 624" in text
    assert r"T8192 & 522 \textmu{}s $\pm$0.2 \% & --" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    hostile = pivots.in_latex(r"a_b & \input{/etc/passwd} $x^2$ % # ~")
    assert r"\input" not in hostile
    assert all(hostile[at - 1] == "\\" for at, each in enumerate(hostile) if each in "&%$#_")


def test_only_the_fastest_is_bold_in_latex_whatever_the_texts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pivots.Pivot("a title", "", {"*T": {"_β": ("*1", False), "triton": ("*2", True)}})
    monkeypatch.setattr(pivots, "pivots", lambda _: [one])
    text = pivots.latex([])
    assert text is not None and r"*T & \textbf{*2} & *1" in text


def test_many_tables_and_odd_names_compile(fake: Any, tmp_path: Path) -> None:
    if PDFLATEX is None:
        pytest.skip("needs pdflatex and booktabs, to compile the tables")
    hostile = 'a_b & \\input{x} $x^2$ % # ~ | < > " λ é ≥ … µ ± ° · \u200b'
    odd = fake.run([fake.timed(1e-3, model=hostile, backend=name) for name in ("sequential", "_β^")])
    text = pivots.latex([load(RESULTS / "h200-standard"), odd])
    assert text is not None and text.count(r"\begin{table}") > 100
    lines = r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}", text, r"\end{document}"
    (tmp_path / "paper.tex").write_text("\n".join(lines))
    words = [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert b"Overfull" not in done.stdout
