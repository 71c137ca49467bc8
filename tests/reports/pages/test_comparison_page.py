"""The page of a comparison: complete, self-contained, inert, and usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.pages import html as page_of_runs
from support.results.browser import CHROMIUM, browse
from support.results.pages import Page

from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.outcome import RunComparison
from ssmperf.suitekit import registry

HOSTILE = "</script><img src=x onerror=alert(1)><!--\u2028'\"{{ 7*7 }}"


@pytest.fixture
def found(fake: Any) -> RunComparison:
    base = [fake.timed(1e-3, seed=seed, backend=name) for seed in range(4) for name in ("triton", "fft")]
    new = [
        fake.timed(2e-3, backend="triton", numbers={"command": "repeat me"}),
        fake.timed(1e-3, backend="fft"),
    ]
    new += [
        fake.timed(0.5e-3, seed=1, backend="triton"),
        fake.failed("wrong", "too far off", seed=1, backend="fft"),
    ]
    new += [fake.timed(1.01e-3, seed=2, backend="triton"), fake.timed(1.02e-3, seed=2, backend="fft")]
    new += [fake.timed(1e-3, seed=3, backend="triton"), fake.timed(1e-3, seed=9, backend="fft")]
    return compare_runs(fake.run(base, meta={"tag": "old"}), fake.run(new, meta={"tag": "new"}))


def text_of(found: RunComparison) -> str:
    return str(registry.report("html", "comparison")(found, None))


def test_every_case_and_the_conclusion_are_on_the_page(found: RunComparison) -> None:
    page = Page(text_of(found))
    assert [row["verdict"] for row in page.rows] == [pair.verdict for pair in found.pairs]
    ids = [dict(each[:2] for each in detail["fields"])["case_id"] for detail in page.details]
    assert ids == [pair.case.id for pair in found.pairs]
    assert page.details[0]["command"] == "repeat me"
    assert found.conclusion in page.texts and "old → new" in page.texts
    assert "missing: 1 case of backend fft" in " ".join(page.texts)
    assert found.method in page.texts and page.open == []


def test_the_chart_has_a_point_for_each_ratio_in_order(found: RunComparison) -> None:
    (chart,) = Page(text_of(found)).data["ratios"]
    ratios = [point["y"] for point in chart["points"]]
    assert ratios == sorted(pair.ratio for pair in found.pairs if pair.ratio is not None)
    assert chart["threshold"] == 0.05
    assert all(point["low"] <= point["y"] <= point["high"] for point in chart["points"])
    assert "triton" in chart["points"][-1]["text"] and chart["points"][-1]["verdict"] == "slower"


def test_means_are_over_all_and_by_backend(found: RunComparison) -> None:
    texts = Page(text_of(found)).texts
    (mean,) = found.means.values()
    assert set(mean.backends) == {"fft", "triton"}
    for each in (mean.overall, *mean.backends.values()):
        assert f"{each.ratio:.3f}" in texts


def test_nothing_is_fetched_and_hostile_text_is_inert(fake: Any) -> None:
    place = {"model": HOSTILE, "backend": HOSTILE, "operand_source": HOSTILE}
    base = fake.run([fake.timed(1e-3, **place), fake.timed(1e-3, seed=1, **place)], meta={"tag": HOSTILE})
    numbers = {"command": HOSTILE, "busy": [HOSTILE]}
    new = fake.run(
        [fake.timed(2e-3, numbers=numbers, **place), fake.failed("crash", HOSTILE, seed=1, **place)],
        meta={"tag": HOSTILE, "measurement": HOSTILE},
    )
    for force in (False, True):
        text = text_of(compare_runs(base, new, force=force))
        page = Page(text)
        assert "<img" not in text and "{{ 7*7 }}" in text and page.open == []
        assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
        for tag, attributes in page.elements:
            assert tag not in ("link", "iframe", "img") and "src" not in attributes
            assert attributes.get("href", "#").startswith("#")


def test_without_a_ratio_there_is_no_chart_and_no_plotting_library(fake: Any) -> None:
    base, new = fake.run([fake.timed(1e-3)]), fake.run([fake.failed("oom", "too big")])
    assert len(text_of(compare_runs(base, new))) < 100_000


def test_the_page_of_two_runs_has_no_verdicts(found: RunComparison) -> None:
    text = str(page_of_runs.html([found.base, found.new]))
    assert found.conclusion not in text
    assert all("verdict" not in row for row in Page(text).rows)


LOOK = """
  const box = document.querySelector("[data-cases]");
  const rows = () => [...box.querySelectorAll("tbody tr")];
  const verdict = (row) => row.querySelector(".status").textContent;
  await until(() => rows().length && document.querySelector("[data-ratios] .errorbar"));
  const head = [...box.querySelectorAll("th button")].find((b) => b.textContent === "new / base");
  head.click(); seen.least = verdict(rows()[0]); seen.last = verdict(rows().at(-1));
  head.click(); seen.most = verdict(rows()[0]);
  const list = box.querySelector('[data-axis="verdict"]');
  list.value = "wrong"; list.dispatchEvent(new Event("change"));
  seen.filtered = rows().map(verdict).join();
  rows()[0].querySelector("td.open button").click();
  await until(() => box.querySelector("tr.details"));
  seen.detail = box.querySelector("tr.details").textContent.includes("too far off");
  const plot = document.querySelector("[data-ratios]");
  seen.points = plot.data.reduce((sum, trace) => sum + trace.x.length, 0);
  seen.drawn = plot.querySelectorAll(".point").length;
  seen.bars = plot.querySelectorAll(".errorbar").length;
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to press the page's buttons")
def test_sorting_filtering_and_the_chart_work_in_a_browser(found: RunComparison, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(text_of(found))
    seen = browse(file, LOOK)
    assert (seen["least"], seen["most"], seen["last"]) == ("faster", "slower", "new")
    assert seen["filtered"] == "wrong" and seen["detail"] is True and seen["errors"] == seen["failed"] == []
    ratios = sum(pair.ratio is not None for pair in found.pairs)
    assert seen["points"] == seen["drawn"] == seen["bars"] == ratios
