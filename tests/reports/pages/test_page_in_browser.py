"""The page in a browser: tables are drawn, sorted, filtered and unfolded; text from outside is inert."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.pages import html as page
from ssmperf.reports.rows import units
from support.results.browser import CHROMIUM, browse

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to press the page's buttons")

HOSTILE = (
    "</script><img src=x onerror=document.title=1><!--\u2028'\"{{ 7*7 }}<script>document.title=1</script>"
)
SHOWN = HOSTILE.replace("\u2028", " ")

TABLE = """
  const box = document.querySelector("[data-cases]");
  const body = box.querySelector("tbody");
  const rows = () => [...body.children].filter((row) => row.className !== "details");
  const headings = () => [...box.querySelectorAll("th button")].map((button) => button.textContent);
  const cell = (row, name) => row.cells[headings().indexOf(name) + 1];
  const backend = (row) => cell(row, "backend").firstChild.textContent;
  const order = () => rows().map(backend).join();
  const press = (name) => box.querySelectorAll("th button")[headings().indexOf(name)].click();
  const choose = (axis, value) => {
    const list = box.querySelector(`[data-axis="${axis}"]`);
    list.value = value;
    list.dispatchEvent(new Event("change"));
  };
  const find = (words) => {
    box.querySelector("input").value = words;
    box.querySelector("input").dispatchEvent(new Event("input"));
  };
  const count = () => box.querySelector("output").textContent;
  await until(() => rows().length);
"""


def look(run: Any, folder: Path, script: str) -> Any:
    file = folder / "page.html"
    page.html([run], file)
    return browse(file, TABLE + script)


@pytest.mark.slow
def test_sorting_filtering_and_details_work(fake: Any, tmp_path: Path) -> None:
    numbers = {"command": f"run {HOSTILE}", "samples_s": [3.0, 1.0, 2.0]}
    records = [
        fake.timed(3.0, numbers=numbers), fake.timed(1.0, backend="triton", numbers=numbers),
        fake.timed(2.0, backend=HOSTILE, numbers=numbers), fake.failed("oom", "too large", backend="fft"),
    ]  # fmt: skip
    script = """
      seen.drawn = order();
      seen.best = [...body.querySelectorAll("b.best")].map((badge) => badge.closest("td").textContent);
      press("time"); seen.ascending = order();
      seen.sort = [...box.querySelectorAll("[aria-sort=ascending]")].map((head) => head.textContent);
      press("time"); seen.descending = order();
      choose("status", "oom"); seen.filtered = order(); seen.count = count();
      seen.reason = [rows()[0].lastChild.textContent, rows()[0].lastChild.title];
      seen.widths = [...new Set([...box.querySelectorAll("thead tr"), ...rows()].map(
        (row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0)))].length;
      box.querySelector(".reset").click(); seen.reset = count();
      find("TRITON fastest"); seen.found = order(); find("too large"); seen.why = order(); find("");
      choose("backend", "sequential");
      rows()[0].querySelector("button").click();
      await until(() => body.querySelector("tr.details"));
      const details = body.querySelector("tr.details");
      seen.detail = details.querySelector("code").textContent;
      seen.samples = details.querySelectorAll("svg.samples").length;
      seen.fields = [...details.querySelectorAll("dl div")].map(
        (pair) => [pair.firstChild.textContent, pair.lastChild.textContent]);
      choose("backend", ""); press("time");
      seen.stays = rows().map((row) => row.nextSibling === details && backend(row)).filter(Boolean).join();
      rows().find((row) => row.nextSibling === details).querySelector("button").click();
      await until(() => !body.querySelector("tr.details"));
      seen.images = document.querySelectorAll("img").length; seen.title = document.title;
      await until(() => document.querySelector(".js-plotly-plot"));
    """
    seen = look(fake.run(records), tmp_path, script)
    assert seen["drawn"] == seen["ascending"] == f"triton,{SHOWN},sequential,fft" and seen["sort"] == ["time"]
    assert seen["descending"] == f"sequential,{SHOWN},triton,fft"
    assert seen["best"] == ["tritonfastest"]
    assert seen["filtered"] == "fft" and seen["count"] == "1 of 4 rows" and seen["reset"] == "4 rows"
    assert seen["reason"] == ["too large"] * 2 and seen["widths"] == 1
    assert seen["found"] == "triton" and seen["why"] == "fft"
    assert seen["detail"] == f"run {SHOWN}" and seen["samples"] == 1 and seen["stays"] == "sequential"
    assert {("backend", "sequential"), ("status", "ok"), ("seed", "0")} <= {*map(tuple, seen["fields"])}
    assert seen["images"] == 0 and seen["title"] != "1" and seen["errors"] == seen["failed"] == []


def test_text_from_outside_is_inert_in_every_cell_and_detail(fake: Any, tmp_path: Path) -> None:
    place = {"model": HOSTILE, "operand_source": HOSTILE}
    numbers = {"command": HOSTILE, "clock": HOSTILE, HOSTILE: HOSTILE, "traceback": HOSTILE,
               "kernels": [HOSTILE], "configuration": {HOSTILE: {HOSTILE: HOSTILE}}, "busy": [HOSTILE],
               "errors": {HOSTILE: 1e-3},
               "diagnosis": [{"object": HOSTILE, "text": HOSTILE, "envelope": [1.0, 2.0]}]}  # fmt: skip
    wrong = fake.failed("wrong", HOSTILE, backend="b", **place)
    records = [
        fake.timed(1.0, backend=HOSTILE, numbers=numbers, **place),
        fake.timed(1.0, backend="b", seed=1, numbers=numbers, **place),
        dataclasses.replace(wrong, numbers=numbers),
    ]
    script = """
      for (const row of rows()) row.querySelector("button").click();
      await until(() => body.querySelectorAll("tr.details").length === rows().length);
      await until(() => document.querySelector(".js-plotly-plot"));
      seen.told = [...body.children].map((row) => row.textContent);
      seen.images = document.querySelectorAll("img").length;
      seen.title = document.title;
      seen.made = document.querySelectorAll("td script, .plot script, [onerror]").length;
      seen.hover = [...document.querySelectorAll(".js-plotly-plot")].flatMap(
        (plot) => plot.data.flatMap((line) => line.text)).join("").replaceAll("<br>", "");
    """
    seen = look(fake.run(records), tmp_path, script)
    assert "7*7" in seen["hover"] and "<" not in seen["hover"]  # which plotly would read as markup
    assert len(seen["told"]) == 6 and all(SHOWN in text for text in seen["told"])
    assert (
        seen["images"] == seen["made"] == 0
        and seen["title"] != "1"
        and seen["errors"] == seen["failed"] == []
    )


@pytest.mark.slow
def test_a_long_table_is_drawn_in_pieces_but_searched_and_sorted_whole(fake: Any, tmp_path: Path) -> None:
    records = [fake.timed(1.0 + (7 * seed) % 1000, seed=seed) for seed in range(1000)]
    script = """
      seen.drawn = rows().length; seen.count = count();
      press("time"); press("time"); seen.last = cell(rows()[0], "time").firstChild.textContent;
      find("3.00"); seen.found = rows().map((row) => cell(row, "time").firstChild.textContent); find("");
      const scroll = box.querySelector(".scroll");
      scroll.scrollTop = scroll.scrollHeight; scroll.dispatchEvent(new Event("scroll"));
      seen.scrolled = rows().length;
      dispatchEvent(new Event("beforeprint")); seen.printed = rows().length;
      seen.places = new Set(rows().map((row) => row.dataset.place)).size;
    """
    seen = look(fake.run(records), tmp_path, script)
    assert seen["drawn"] < seen["scrolled"] < 1000 == seen["printed"] == seen["places"]
    assert seen["count"] == "1000 rows" and seen["errors"] == seen["failed"] == []
    values = sorted((record.numbers["latency_s"] for record in records), reverse=True)
    assert seen["last"] == units.number("latency_s", values[0]) and seen["found"] == ["3.00 s"]


@pytest.mark.slow
def test_a_cell_of_the_matrix_filters_the_table(fake: Any, tmp_path: Path) -> None:
    run = fake.plausible(models=("gla", "mingru"), backends=("sequential", "triton"), lengths=(256, 512))
    script = """
      const button = document.querySelector('.matrices button[data-subject="gla"][data-backend="triton"]');
      button.click();
      await until(() => count().includes(" of "));
      seen.rows = rows().map((row) => [cell(row, "model").textContent, backend(row)].join());
    """
    seen = look(run, tmp_path, script)
    assert set(seen["rows"]) == {"gla,triton"} and seen["errors"] == seen["failed"] == []


@pytest.mark.slow
def test_backends_at_one_length_each_are_named_beside_their_points(fake: Any, tmp_path: Path) -> None:
    """A point per backend over T would be a column of marks that only a colour tells apart."""
    lengths = {"sequential": 256, "triton": 2048, "fft": 2048}
    records = [
        fake.timed(seconds, backend=name, shape={"B": 1, "T": T, "C": 8})
        for seconds, (name, T) in enumerate(lengths.items(), 1)
    ]
    seen = look(fake.run(records), tmp_path, """
        const plot = document.querySelector(".plot");
        plot.scrollIntoView();
        await until(() => plot.querySelectorAll(".ytick text").length);
        const top = (tick) => tick.getBoundingClientRect().top;
        const ticks = [...plot.querySelectorAll(".ytick text")].sort((a, b) => top(a) - top(b));
        seen.names = ticks.map((tick) => tick.textContent);
        seen.title = plot.querySelector(".xtitle").textContent;
    """)  # fmt: skip
    assert seen["names"] == ["sequential, T 256", "triton, T 2K", "fft, T 2K"]
    assert seen["title"] == "time" and not seen["errors"]


@pytest.mark.slow
def test_a_single_time_has_a_tick(fake: Any, tmp_path: Path) -> None:
    seen = look(fake.run([fake.timed(374e-6)]), tmp_path, """
        const plot = document.querySelector(".plot");
        plot.scrollIntoView();
        await until(() => plot.querySelectorAll(".ytick text").length);
        seen.times = [...plot.querySelectorAll(".xtick text")].map((tick) => tick.textContent);
    """)  # fmt: skip
    assert seen["times"] == ["370 µs"] and not seen["errors"]


@pytest.mark.slow
def test_a_damaged_page_says_so(fake: Any, tmp_path: Path) -> None:
    text = str(page.html([fake.run([fake.timed(1.0)])]))
    (packed,) = re.findall(r'id="cases-1">([^<]+)<', text)
    damaged = base64.b64encode(gzip.compress(b"{")[:-3]).decode()
    file = tmp_path / "page.html"
    file.write_text(text.replace(packed, damaged))
    (told,) = browse(file, "await until(() => failed().length);")["failed"]
    assert "The page is damaged: its part “cases-1” cannot be read" in told
