"""The page of a history: complete, self-contained, inert, and usable."""

from __future__ import annotations

from pathlib import Path

import pytest
from ssmperf.reports.formats import history as texts
from support.results.browser import CHROMIUM, browse
from support.results.histories import commit, step, write
from support.results.pages import Page

import ssmperf
from ssmperf import History
from ssmperf.suitekit import registry


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("history")
    shifts = {1: step(12, 0.08), 4: step(25, 0.08), 5: lambda run: 0.005 * run, 7: step(18, -0.08)}
    write(folder, shifts=shifts, count=8)
    return ssmperf.history(folder)


def text_of(history: History) -> str:
    return str(registry.report("html", "history")(history, None))


@pytest.mark.slow
def test_every_case_step_and_alarm_is_on_the_page(found: History) -> None:
    page = Page(text_of(found))
    charts = [attributes for _, attributes in page.elements if "data-course" in attributes]
    assert len(charts) == len(page.data["courses"]) == len(found.cases) == 8
    assert [len(course["y"]) for course in page.data["courses"]] == [30] * 8
    assert sorted(mark["place"] for course in page.data["courses"] for mark in course["steps"]) == [
        12,
        18,
        25,
    ]
    words = " ".join(page.texts)
    assert all(commit(run)[:10] in words for run in (12, 18, 25)) and "slower, fresh" in words
    assert found.conclusion in page.texts and page.open == []
    assert sum("creeps" in text for text in page.texts) == 1


def test_the_page_fetches_nothing_and_text_from_outside_is_escaped(found: History, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>{{ 7*7 }}<b>"
    (tmp_path / hostile.replace("/", "_")).mkdir()
    write(tmp_path / hostile.replace("/", "_"), count=2, runs=8, tag=hostile)
    for history in (found, ssmperf.history(tmp_path)):
        page = Page(text_of(history))
        assert not page.having(src="x") and not [a for _, a in page.elements if "src" in a or "onerror" in a]
        assert page.open == []
    assert hostile in Page(text_of(ssmperf.history(tmp_path))).data["courses"][0]["text"][0]


def test_the_same_runs_give_the_same_bytes(found: History) -> None:
    assert text_of(found) == text_of(found)


@pytest.mark.parametrize("count", [1, 5, 30, 31, 400])
def test_a_course_has_a_letter_per_run_up_to_its_width(count: int) -> None:
    values = [1.0 + (0.5 if place >= count / 2 else 0.0) for place in range(count)]
    drawn = texts.course(values, 0.05)
    assert len(drawn) == min(count, texts.WIDTH)
    if count > 1:
        assert set(drawn) == {"▁", "█"} and drawn == "".join(sorted(drawn))


def test_noise_within_the_threshold_is_drawn_flat() -> None:
    assert set(texts.course([1.0, 1.01, 0.99, 1.005], 0.05)) <= set("▄▅")
    assert set(texts.course([2.0] * 4, 0.05)) <= set("▄▅")


LOOK = """
  const cards = () => [...document.querySelectorAll("[data-case]")].filter((card) => !card.hidden).length;
  const rows = () => [...document.querySelectorAll("tr.item")].filter((row) => !row.hidden).length;
  const marks = () => document.querySelectorAll(".shapelayer path").length;
  await until(() => marks() >= 3);
  seen.drawn = document.querySelectorAll(".plot .main-svg").length > 0;
  seen.all = [cards(), rows()];
  seen.marked = marks();
  const select = document.querySelector('select[data-axis="backend"]');
  select.value = "triton";
  select.dispatchEvent(new Event("change"));
  seen.triton = [cards(), rows()];
  seen.output = document.querySelector("#filters output").textContent;
  document.querySelector(".reset").click();
  seen.reset = cards();
  const over = document.getElementById("over");
  over.value = "run";
  over.dispatchEvent(new Event("change"));
  seen.bold = document.querySelectorAll("img").length;
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_charts_are_drawn_and_filters_work_in_a_browser(found: History, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(text_of(found))
    seen = browse(file, LOOK)
    assert seen["all"] == [8, 4] and seen["drawn"] and seen["marked"] == 3
    assert seen["triton"] == [4, 1] and seen["output"] == "4 of 8 cases"
    assert seen["reset"] == 8 and seen["bold"] == 0 and seen["errors"] == seen["failed"] == []
