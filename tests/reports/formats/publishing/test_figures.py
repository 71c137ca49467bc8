"""Figures: one file per panel and format, names that stay in the folder, the same bytes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.formats.publishing import figures
from ssmperf.reports.rows import frames
from ssmperf.reports.views import charts

from ssmperf import UsageError
from ssmperf.suitekit import Chart


@pytest.mark.slow
def test_each_panel_and_pass_has_a_png_an_svg_and_a_pdf(fake: Any, tmp_path: Path) -> None:
    run = fake.plausible(models=("gla",), lengths=(256, 512), samples=2)
    message = figures.figures([run], tmp_path / "new" / "folder")
    stems = {file.stem for file in (tmp_path / "new" / "folder").iterdir()}
    assert stems == {f"throughput-latency_s-gla-{pass_}" for pass_ in ("forward", "forward_backward")}
    assert {file.suffix for file in (tmp_path / "new" / "folder").iterdir()} == {".png", ".svg", ".pdf"}
    assert "2 figures" in message


@pytest.mark.slow
def test_the_same_run_gives_the_same_files(fake: Any, tmp_path: Path) -> None:
    run = fake.plausible(models=("gla",), lengths=(256, 512), passes=("forward",), samples=2)
    for name in ("one", "two"):
        figures.figures([run], tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_sizes_dtype_device_and_date_stand_under_a_figure(fake: Any, tmp_path: Path) -> None:
    sizes = [{"B": 2, "T": 64, "C": 8}, {"B": 4, "T": 128, "C": 8}]
    others = [fake.timed(1.0, model="other", dtype="float64"), fake.failed("wrong", "off", shape={"B": 9})]
    run = fake.run([*(fake.timed(1.0, shape=shape, dtype="bfloat16") for shape in sizes), *others])
    figures.figures([run], tmp_path)
    (file,) = tmp_path.glob("*mingru*.svg")
    text = file.read_text()
    assert f"B2 to 4 C8, bfloat16, {frames.frame([run])['hardware'][0]}, 2026-01-01" in text
    (pdf,) = tmp_path.glob("*mingru*.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_hostile_names_stay_in_the_folder_and_are_no_mathematics(fake: Any, tmp_path: Path) -> None:
    records = [fake.timed(1.0, model="../../$x^{$", backend=name) for name in ("_a$b", "sequential")]
    figures.figures([fake.run(records)], tmp_path / "figures")
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]
    assert len(list((tmp_path / "figures").iterdir())) == 3


def test_names_that_clean_to_the_same_stay_apart() -> None:
    assert figures.slug("a/b") != figures.slug("a:b") and figures.slug("a-b") == "a-b"


def test_a_file_in_place_of_the_folder_is_a_usage_error(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        figures.figures([fake.run([])], tmp_path / "file")


def test_a_line_differs_in_x_only(fake: Any) -> None:
    chart = Chart(x="T", y="latency_s")
    points: list[dict[str, Any]] = [
        {"shape": {"B": b, "T": t, "C": 8}, "dtype": dtype, "cache": cache}
        for b in (1, 2) for t in (64, 128) for dtype in ("float32", "bfloat16") for cache in ("hot", "cold")
    ]  # fmt: skip
    rows = frames.frame([fake.run([fake.timed(1.0, **point) for point in points])])
    (lines,) = charts.panels(chart, rows).values()
    assert len(lines) == 8 and all(line["x"] == [64, 128] for line in lines)
    assert {line["rest"] for line in lines} == {"B1 C8", "B2 C8"}
    assert charts.selectors(chart, rows) == ["dtype", "cache"]


def test_failed_cases_are_not_drawn(fake: Any) -> None:
    chart = Chart(x="T", y="latency_s")
    records = [fake.timed(1.0), fake.failed("wrong", "off", backend="fft")]
    (lines,) = charts.panels(chart, frames.frame([fake.run(records)])).values()
    assert [line["series"] for line in lines] == ["sequential"]


def test_a_chart_of_absent_fields_is_empty(fake: Any) -> None:
    chart = Chart(x="T", y="loss", log=False)
    assert charts.panels(chart, frames.frame([fake.run([fake.timed(1.0)])])) == {}
