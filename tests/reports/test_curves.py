"""Charts of times over lengths: one line at equal tokens, nothing drawn twice, the pass with curves first."""

from __future__ import annotations

from typing import Any

from ssmperf.reports import frames, ranking, sections
from ssmperf.reports.charts import panels

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
