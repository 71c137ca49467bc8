"""Charts of times over lengths: one line at equal tokens, nothing drawn twice, the pass with curves first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ssmperf.reports.pages import sections
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.views import charts
from ssmperf.reports.views.charts import panels

from ssmperf.suitekit import Chart

LENGTHS = (64, 128, 256)


def ranked(fake: Any, records: list[Any]) -> Any:
    return ranking.ranked(frames.frame([fake.run(records)]), "latency_s")


def curve(fake: Any, batch: Any, **changes: Any) -> list[Any]:
    return [fake.timed(1e-3, shape={"B": batch(T), "T": T, "C": 8}, **changes) for T in LENGTHS]


def test_lengths_with_equal_tokens_are_one_line_and_so_are_those_with_equal_batches(fake: Any) -> None:
    chart = frames.sections([run := fake.run([fake.timed(1.0)])], frames.frame([run]))["throughput"].charts[0]
    for batch, rest in ((lambda T: 512 // T, "512 tokens C8"), (lambda T: 2, "B2 C8")):
        (line,) = panels(chart, ranked(fake, curve(fake, batch)))["mingru"]
        assert (line["x"], line["rest"]) == ([*LENGTHS], rest)
    apart = [*curve(fake, lambda T: 2), *curve(fake, lambda T: 4)]
    assert [line["rest"] for line in panels(chart, ranked(fake, apart))["mingru"]] == ["B2 C8", "B4 C8"]


def test_what_was_timed_as_another_model_is_drawn_there_alone(fake: Any) -> None:
    own = curve(fake, lambda T: 2, model="hgrn")
    copies = curve(fake, lambda T: 2, numbers={"timed_as": "hgrn"})
    run = fake.run([*own, *copies])
    section = frames.sections([run], frames.frame([run]))["throughput"]
    rows = ranked(fake, [*own, *copies])
    assert [*panels(section.charts[0], rows)] == ["hgrn"]
    view = sections.view(section, rows)
    assert {*view["table"]["marks"].values()} == {"as hgrn"} and len(view["table"]["marks"]) == len(copies)
    assert "mingru (as hgrn)" in {name for view in view["matrices"] for name, _ in view["rows"]}


def test_the_pass_with_curves_is_shown_first(fake: Any) -> None:
    records = [*curve(fake, lambda T: 2, pass_="forward"), fake.timed(1.0, pass_="backward")]
    run = fake.run(records)
    section = frames.sections([run], frames.frame([run]))["throughput"]
    (chart,) = sections.view(section, ranked(fake, records))["charts"]
    assert [axis["values"] for axis in chart["axes"]] == [["forward", "backward"]]


def test_the_choice_with_most_panels_is_shown_first(fake: Any) -> None:
    most = [("mingru", "decay/0"), ("mingru", "decay/10"), ("gla", "decay/10")]
    records = [
        each
        for model, source in most
        for each in curve(fake, lambda T: 2, model=model, operand_source=source)
    ]
    run = fake.run(records)
    section = frames.sections([run], frames.frame([run]))["throughput"]
    (chart,) = sections.view(section, ranked(fake, records))["charts"]
    assert [axis["values"] for axis in chart["axes"]] == [["decay/10", "decay/0"]]


def test_a_chart_of_which_no_case_has_numbers_is_left_out(fake: Any) -> None:
    """As where every training failed, or where a recurrence, which nothing trains, was asked for."""
    section = dataclasses.replace(
        frames.sections([run := fake.run([fake.timed(1.0)])], frames.frame([run]))["throughput"],
        charts=(Chart(x="test_lengths", y="accuracies", series="model", facet="operand_source"),
                Chart(x="T", y="tokens_per_s", series="network", facet="dtype"),
                Chart(x="T", y="latency_s")),
    )  # fmt: skip
    view = sections.view(section, ranked(fake, [fake.timed(1.0)]))
    assert [chart["y"] for chart in view["charts"]] == ["time"]


def test_a_page_has_the_text_of_every_point_with_common_lines_once(fake: Any) -> None:
    run = fake.plausible(models=("gla", "mingru"), samples=2)
    section = frames.sections([run], table := frames.frame([run]))["throughput"]
    rows = ranking.ranked(table[table["suite"] == "throughput"], "latency_s")
    (chart,) = sections.view(section, rows)["charts"]
    full = [line for panel in chart["panels"] for line in panel["lines"]]
    lean = [line for panel in charts.lean(chart)["panels"] for line in panel["lines"]]
    for before, after in zip(full, lean, strict=True):
        told = [f"{text}\n{after['tail']}" if after["tail"] else text for text in after["text"]]
        assert told == before["text"] and after["x"] == before["x"]
        assert after["y"] == pytest.approx(before["y"], rel=1e-5)
        assert after["below"] == pytest.approx(before["below"], rel=1e-2)
    assert any(line["tail"] for line in lean)
