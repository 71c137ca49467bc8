"""The first screen of a page: who is the fastest, in a sentence, and the choices it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ssmperf.reports.pages import html as page
from ssmperf.reports.pages.best_table import best_table
from ssmperf.reports.rows.contests import contests
from support.results.browser import CHROMIUM, opened
from support.results.pages import Page

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to see the first screen")

SEE = """
  const answer = document.getElementById("answer");
  const lists = [...document.querySelectorAll("#choices select")];
  await until(() => lists.every((list) => !list.disabled));
  seen.answer = answer.textContent;
  seen.inside = answer.getBoundingClientRect().bottom <= innerHeight
    && answer.getBoundingClientRect().right <= innerWidth;
  seen.wide = document.documentElement.scrollWidth > innerWidth;
  seen.focus = document.activeElement.name;
  seen.chosen = lists.map((list) => list.value);
  seen.address = decodeURIComponent(location.hash);
  const missing = document.getElementById("missing");
  seen.missing = missing.hidden ? "" : missing.textContent;
  seen.others = [...document.querySelectorAll("#others li")].map((line) => line.textContent);
"""


def made(fake: Any) -> Any:
    """Make a run of two models at two lengths: triton is 71 times as fast as chunkwise."""
    limit = {"limit_fraction": 0.38}
    return fake.run([
        fake.timed(seconds * T / 4096, backend=backend, model=model, pass_=pass_, dtype="bfloat16",
                   shape={"B": 4, "T": T, "C": 64}, numbers=limit)
        for model in ("gla", "hgrn")
        for T in (1024, 4096)
        for pass_ in ("forward", "backward")
        for backend, seconds in (("triton", 262e-6), ("chunkwise", 71 * 262e-6))
    ])  # fmt: skip


def written(run: Any, folder: Path) -> Path:
    page.html([run], folder / "page.html")
    return folder / "page.html"


def test_without_scripts_the_page_begins_with_a_sentence(fake: Any) -> None:
    texts = Page(str(page.html([made(fake)]))).texts
    place = texts.index("gla at T = 1,024, bfloat16, forward: ")
    assert texts[place : place + 3] == [
        "gla at T = 1,024, bfloat16, forward: ",
        "triton 65.5 µs, 71.0× ahead of chunkwise",
        ", 38 % of the limit",
    ]
    assert place < texts.index("device")


def test_forward_and_backward_have_a_sum_and_the_newest_run_is_first(fake: Any) -> None:
    runs = [
        fake.run(
            [fake.timed(seconds, pass_=pass_) for pass_ in ("forward", "backward")],
            meta={"created": f"2026-01-0{day}T00:00:00+00:00", "tag": f"day {day}"},
        )
        for day, seconds in ((1, 8.0), (2, 2.0))
    ]
    found = {each["pass"]: each["lines"] for each in Page(str(page.html(runs))).data["answers"]}
    assert list(found) == ["forward", "backward", "forward + backward"]
    newest, oldest = found["forward + backward"]
    assert newest["winner"].startswith("sequential 4.00 s") and "day 2" in newest["about"]
    assert oldest["winner"].startswith("sequential 16.0 s") and "2026-01-01" in oldest["about"]


def test_a_winner_that_a_newer_run_finds_wrong_is_doubted_in_every_sentence(fake: Any) -> None:
    records = [fake.timed(1.0, backend="triton", numbers={"limit_fraction": 0.38}), fake.timed(2.0)]
    layer = {"layer": {"prefill": [record.case.id for record in records]}}
    made = fake.run(records, meta={"created": "2026-01-01T00:00:00+00:00", "workloads": layer})
    newer = fake.run(
        [fake.failed("wrong", "off", backend="triton")], meta={"created": "2026-02-01T00:00:00+00:00"}
    )
    doubt = "but wrong there on 2026-02-01"
    for runs in ([made, newer], [made]):
        lines = [each["lines"][0] for each in Page(str(page.html(runs))).data["answers"]]
        rest = ", 38 % of the limit" + (f", {doubt}" if newer in runs else "")
        assert [line["rest"] for line in lines] == [rest] * 2  # the workload's, and the model's
        texts = Page(str(page.html(runs))).texts
        assert rest in texts
        cards = [text for text in texts if "right to: " in text]
        assert cards and all((doubt in text) is (newer in runs) for text in cards)


def test_a_run_without_times_has_no_sentence(fake: Any) -> None:
    found = Page(str(page.html([fake.run([fake.failed("oom", "too large")])])))
    assert not found.having(id="answer") and "answers" not in found.data


def test_the_heat_map_has_no_column_of_ones_and_its_text_can_wrap(fake: Any) -> None:
    found = Page(str(page.html([made(fake)])))
    assert not found.having(**{"data-backend": "sequential"})
    both = [fake.timed(4.0), fake.timed(2.0, backend="triton"), fake.failed("oom", "no", seed=1)]
    assert Page(str(page.html([fake.run(both)]))).having(**{"data-backend": "sequential"})
    fine = Page(str(page.html([fake.run(both[:2])])))
    assert not fine.having(**{"data-backend": "sequential"}) and fine.having(**{"data-backend": "triton"})
    assert [each["class"] for tag, each in fine.elements if tag == "caption"] == ["hidden"] * 2


def test_the_sign_of_times_means_faster_everywhere(fake: Any) -> None:
    records = [fake.timed(seconds, backend=name) for name, seconds in (("triton", 1.0), ("chunkwise", 4.0))]
    phases = {"prefill": [record.case.id for record in records]}
    found = Page(str(page.html([fake.run(records, meta={"workloads": {"layer": phases}})])))
    assert sum("2× is twice as fast" in text for text in found.texts) == 1
    assert {"100 %", "25 %"} <= {*found.texts}
    assert any("by 4.00×" in text for text in found.texts)


@pytest.mark.slow(but=("1400",))
@needs_chromium
@pytest.mark.parametrize("width", [1400, 400])
def test_the_sentence_is_on_the_first_screen_and_follows_the_keyboard(
    fake: Any, tmp_path: Path, width: int
) -> None:
    with opened(written(made(fake), tmp_path), width=width, height=800) as browser:
        seen = browser.look(SEE)
        assert seen["answer"].startswith("gla at T = 1,024, bfloat16, forward: triton 65.5 µs, 71.0× ahead")
        assert seen["inside"] and not seen["wide"]
        for key in ("Tab", "Tab", "ArrowDown", "Tab", "ArrowDown"):  # past the link that skips
            browser.press(key)
        seen = browser.look(SEE)
        assert seen["chosen"] == ["hgrn", "4096", "bfloat16", "forward"] and seen["focus"] == "T"
        assert seen["answer"].startswith("hgrn at T = 4,096, bfloat16, forward: triton 262 µs, 71.0× ahead")
        assert seen["address"] == "#name=hgrn&T=4096&dtype=bfloat16&pass=forward"
        assert seen["inside"] and seen["errors"] == seen["failed"] == []


@needs_chromium
def test_the_address_chooses_and_says_what_was_not_measured(fake: Any, tmp_path: Path) -> None:
    address = "#name=hgrn&T=99&pass=backward"
    with opened(written(made(fake), tmp_path), fragment=address) as browser:
        seen = browser.look(SEE)
        assert seen["chosen"] == ["hgrn", "1024", "bfloat16", "backward"]
        assert seen["missing"] == "Not measured here: T 99. Shown instead:"
        seen = browser.look('location.hash = "#name=gla&T=4096";' + SEE.replace(
            "seen.answer", "await until(() => lists[0].value === 'gla'); seen.answer", 1
        ))  # fmt: skip
        assert seen["answer"].startswith("gla at T = 4,096") and seen["missing"] == ""


@needs_chromium
def test_names_from_results_are_inert_in_the_sentence(fake: Any, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=document.title=1><b>"
    records = [fake.timed(seconds, model=hostile, backend=hostile, shape={"B": 1, "T": T, "C": 8})
               for T, seconds in ((8, 1.0), (16, 2.0))]  # fmt: skip
    with opened(written(fake.run(records), tmp_path), fragment="#name=x&T=<img>") as browser:
        browser.look(SEE)
        seen = browser.look(SEE + """
          lists[1].value = "16"; lists[1].dispatchEvent(new Event("change"));
          seen.answer = answer.textContent;
          seen.made = document.querySelectorAll("img, #answer b b").length; seen.title = document.title;
        """)  # fmt: skip
    assert seen["answer"].startswith(f"{hostile} at T = 16") and f"{hostile} 2.00 s" in seen["answer"]
    assert seen["made"] == 0 and seen["title"] != "1" and seen["errors"] == []


def test_best_says_once_where_all_was_measured_and_has_a_column_for_dates_and_axes(fake: Any) -> None:
    runs = [
        fake.run([fake.timed(1.0, gate_dtype=dtype)], meta={"created": f"2026-01-0{day}T00:00:00+00:00"})
        for day, dtype in ((1, "float32"), (2, "bfloat16"))
    ]
    shown = [heading for heading, _ in best_table(contests(runs))["headings"]]
    assert shown == ["model", "T", "gate dtype", "fastest", "time", "measured"]
    assert "where Example CPU 9000" in best_table(contests(runs))["same"]
    alone = best_table(contests(runs[:1]))
    assert "measured" not in dict(alone["headings"]) and "measured 2026-01-01" in " ".join(alone["same"])


BEST = """
  const table = document.querySelector(".winners");
  const rows = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const texts = (cells) => [...cells].map((cell) => cell.textContent);
  const box = document.querySelector("[data-find]");
  seen.headings = texts(table.tHead.rows[0].cells);
  seen.same = table.closest(".block").querySelector(".note").textContent;
  seen.count = rows().length;
  box.value = "HGRN 4,096 backward"; box.dispatchEvent(new Event("input"));
  seen.rows = rows().map((row) => texts(row.cells));
  seen.told = table.closest(".block").querySelector("output").textContent;
  const seenAs = (name) => rows()[0].querySelector(`[data-column=${name}]`).getBoundingClientRect();
  seen.order = ["fastest", "time", "model"].map((name) => [seenAs(name).top, seenAs(name).right]);
"""


@pytest.mark.slow(but=("400",))
@needs_chromium
@pytest.mark.parametrize("width", [1400, 400])
def test_rows_of_best_are_found_and_its_winner_comes_first_on_a_phone(
    fake: Any, tmp_path: Path, width: int
) -> None:
    with opened(written(made(fake), tmp_path), width=width) as browser:
        seen = browser.look(BEST)
    assert seen["headings"] == ["model", "T", "pass", "fastest", "time"]
    assert seen["same"].startswith("In all rows: other sizes B4 C64, dtype bfloat16, where Example CPU 9000")
    assert "by 71.0×" in seen["same"] and seen["count"] == 8 and seen["told"] == "1 of 8 rows"
    assert seen["rows"] == [["hgrn", "4,096", "backward", "triton", "262 µs"]]
    (fastest, _), (time, right), (model, _) = seen["order"]
    assert right <= width and fastest == time and (time < model if width == 400 else time == model)
