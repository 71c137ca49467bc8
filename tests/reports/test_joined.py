"""All suites at a glance: what is joined, and who is on the Pareto front."""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports import frames, ranking
from ssmperf.reports.html import html
from ssmperf.reports.joined import Glance, glances

from ssmperf import Record, Section, Status

MEMORY = Section(title="Memory", question="", columns=("peak_bytes",), rank="peak_bytes")


def made(fake: Any, **numbers: tuple[float, float, float]) -> list[Record]:
    """Time, bytes and error over its tolerance of each backend."""
    records = []
    for name, (seconds, nbytes, ratio) in numbers.items():
        records.append(fake.timed(seconds, backend=name))
        case = fake.case(suite="memory", backend=name)
        records.append(Record(case, Status.OK, env_id="env1", numbers={"peak_bytes": nbytes}))
        for T in (64, 1024):
            case = fake.case(suite="correctness", backend=name, shape={"B": 2, "T": T, "C": 64})
            numbers_of = {"errors": {"output": ratio * 1e-5}, "tolerances": {"output": 1e-5}}
            records.append(Record(case, Status.OK, env_id="env1", numbers=numbers_of))
    return records


def of(fake: Any, records: list[Record]) -> dict[str, Glance]:
    run = run_of(fake, records)
    table = frames.frame([run])
    parts = {
        name: (section, ranking.ranked(table[table["suite"] == name], section.rank))
        for name, section in frames.sections([run], table).items()
    }
    return {each.backend: each for each in glances(parts)}


def run_of(fake: Any, records: list[Record]) -> Any:
    suites = {**fake.run([]).meta["suites"], "memory": MEMORY.to_json()}
    return fake.run(records, meta={"suites": suites})


def test_each_number_is_over_the_least_and_the_front_is_not_dominated(fake: Any) -> None:
    found = of(fake, made(fake, quick=(1.0, 400.0, 0.1), small=(3.0, 100.0, 0.1), neither=(3.1, 420.0, 0.1)))
    assert [found[name].front for name in ("quick", "small", "neither")] == [True, True, False]
    assert found["small"].slowness == pytest.approx(3) and found["quick"].memory == pytest.approx(4)
    assert found["quick"].error == pytest.approx(0.1) and found["quick"].longest == 1024


def test_a_backend_that_is_wrong_is_on_no_front_and_no_measure_for_others(fake: Any) -> None:
    records = made(fake, right=(2.0, 200.0, 0.5), broken=(1.0, 100.0, 0.5))
    long = {"B": 2, "T": 4096, "C": 64}
    records.append(fake.failed("wrong", "far off", suite="correctness", backend="broken", shape=long))
    found = of(fake, records)
    assert found["right"].front and found["right"].slowness == pytest.approx(1)
    assert not found["broken"].front and found["broken"].longest == 1024
    assert found["broken"].mark


def test_one_question_is_not_joined(fake: Any) -> None:
    assert of(fake, [fake.timed(1.0), fake.timed(2.0, backend="blelloch")]) == {}


def test_the_page_shows_it_and_escapes_names(fake: Any) -> None:
    records = made(fake, quick=(1.0, 400.0, 0.1), **{"<b>bold</b>": (0.5, 100.0, 0.1)})
    text = html([run_of(fake, records)])
    assert text is not None
    part = text[text.index('id="glance"') : text.index('id="best"')]
    assert "&lt;b&gt;bold&lt;/b&gt;" in part and "<b>bold</b>" not in part and ">front<" in part
