"""All suites at a glance: what is joined, and who is on the Pareto front."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ssmperf.reports.formats import tables
from ssmperf.reports.pages.html import html
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.rows.joined import Glance, dominates, glances
from ssmperf.reports.views import glance

import ssmperf
from ssmperf import Record, Status
from ssmperf.suitekit import Section

MEMORY = Section(title="Memory", question="", columns=("peak_bytes",), rank="peak_bytes")
LIMITS = Section(title="Limits", question="", columns=("error_output",), envelope=("decay_span", "T"))
LENGTHS = (64, 256, 1024)


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


def judged(fake: Any, suite: str, backend: str, T: int, status: str = "ok", **changes: Any) -> Record:
    """Make a record of a judged case; one that is wrong is off by a thousand times the tolerance."""
    case = fake.case(suite=suite, backend=backend, shape={"B": 2, "T": T, "C": 64}, **changes)
    error = {"ok": 1e-6, "wrong": 1e-2}.get(status)
    numbers = {"decay_span": 16.0, "errors": {"output": error}, "tolerances": {"output": 1e-5}}
    reason = None if status == "ok" else "planted"
    return Record(case, Status(status), reason, "env1", numbers if error else {})


def timed(fake: Any, backend: str, seconds: float, lengths: tuple[int, ...] = LENGTHS) -> list[Record]:
    return [fake.timed(seconds, backend=backend, shape={"B": 2, "T": T, "C": 64}) for T in lengths]


def trained(fake: Any, task: str, status: str = "ok", **numbers: Any) -> Record:
    shape = {"B": 8, "T": 32, "C": 64}
    case = fake.case(suite="correctness", backend="quick", shape=shape, operand_source=f"task/{task}")
    return Record(case, Status(status), None if status == "ok" else "diverged", "env1", numbers)


def run_of(fake: Any, records: list[Record]) -> Any:
    suites = {**fake.run([]).meta["suites"], "memory": MEMORY.to_json(), "limits": LIMITS.to_json()}
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
    assert not found["broken"].front and found["broken"].mark
    assert (found["broken"].longest, found["broken"].limited) == (1024, True)
    assert glance.cells(found["broken"])[3] == "1,024" and glance.cells(found["right"])[3] == "≥1,024"


def test_beyond_its_envelope_it_does_not_count_and_inside_it_competes(fake: Any) -> None:
    """`quick` is right to T = 256; `sequential` is compared with it there, and with itself beyond."""
    limits = [judged(fake, "limits", "quick", T, "ok" if T < 1024 else "wrong") for T in LENGTHS]
    records = [*timed(fake, "sequential", 2.0), *timed(fake, "quick", 1.0), *limits]
    records += [judged(fake, "correctness", name, 64) for name in ("sequential", "quick")]
    found = of(fake, records)
    quick, slow = found["quick"], found["sequential"]
    assert (quick.standing, quick.front) == ("competes", True)
    assert quick.slowness == pytest.approx(1) and slow.slowness == pytest.approx(2 ** (2 / 3))
    assert (quick.longest, quick.limited, slow.longest, slow.limited) == (256, True, 64, False)
    assert quick.error == pytest.approx(0.1), "the errors beyond its envelope do not count"
    assert quick.envelopes == ["decay span ≥16, T 256"]
    assert "1 of 3" in quick.mark


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    statuses=st.lists(st.sampled_from(["ok", "wrong", "nan"]), min_size=6, max_size=6),
    suite=st.sampled_from(["limits", "correctness"]),
)
def test_who_wins_in_best_competes_here_and_nobody_else_is_on_the_front(
    fake: Any, statuses: list[str], suite: str
) -> None:
    records = [*timed(fake, "sequential", 2.0), *timed(fake, "quick", 1.0)]
    for name, found in (("sequential", statuses[:3]), ("quick", statuses[3:])):
        for T, status in zip(LENGTHS, found, strict=True):
            records.append(judged(fake, suite, name, T, status))
    records.append(judged(fake, "correctness", "neither", 64))
    # bytes of the longest case alone
    records += [
        Record(fake.case(suite="memory", backend=name), Status.OK, None, "env1", {"peak_bytes": 100.0})
        for name in ("sequential", "quick")
    ]
    winners = {name for contest in ssmperf.best([run_of(fake, records)]) for name in contest["fastest"]}
    lines = of(fake, records)
    assert winners <= {name for name, each in lines.items() if each.standing == "competes"}
    assert {name for name, each in lines.items() if each.front} <= winners
    assert any(each.front for each in lines.values()) == bool(winners)


def test_a_length_that_was_not_tried_is_no_fault(fake: Any) -> None:
    """Of two that are right as far as they were tried, the length decides nothing; one wrong beyond does."""
    place = ("gla", "float32", "cpu")
    short = Glance(place, "short", slowness=1.0, memory=1.0, error=0.1, longest=512)
    long = Glance(place, "long", slowness=2.0, memory=1.0, error=0.1, longest=4096)
    assert dominates(short, long) and not dominates(long, short)
    short.limited = True
    assert not dominates(short, long) and not dominates(long, short)
    long.slowness = 1.0
    assert dominates(long, short)
    short.limited = False
    assert not dominates(long, short)
    short.limited = long.limited = True
    assert dominates(long, short)
    long.longest, short.limited = 512, False
    assert not dominates(short, long) and not dominates(long, short)


def test_what_networks_learned_is_shown_and_is_no_length(fake: Any) -> None:
    """A training that diverged keeps nobody out, and its T is no length up to which a backend is right."""
    records = made(fake, quick=(1.0, 400.0, 0.1), small=(3.0, 100.0, 0.1))
    records += [
        trained(fake, "mqar", learned="learned", holds_to=8.0),
        trained(fake, "needle", learned="not learned", holds_to=None),
        trained(fake, "induction", "nan"),
    ]
    found = of(fake, records)
    assert found["quick"].learned == {
        "mqar": "learned, holds to 8 T = 256",
        "needle": "not learned",
        "induction": "nan",
    }
    assert found["quick"].front and (found["quick"].longest, found["quick"].limited) == (1024, False)
    assert found["small"].learned == {}


def test_a_training_makes_no_line_of_another_dtype(fake: Any) -> None:
    """Errors in another dtype alone are no line: it would show what networks in float32 learned."""
    error = {"errors": {"output": 1e-3}, "tolerances": {"output": 1e-2}}
    half = fake.case(suite="correctness", backend="quick", dtype="bfloat16", shape={"B": 1, "T": 64, "C": 8})
    records = [*made(fake, small=(1.0, 400.0, 0.1)), trained(fake, "mqar", learned="learned"),
               Record(half, Status.OK, env_id="env1", numbers=error)]  # fmt: skip
    run = run_of(fake, records)
    table = frames.frame([run])
    parts = {
        name: (section, ranking.ranked(table[table["suite"] == name], section.rank))
        for name, section in frames.sections([run], table).items()
    }
    lines = {(each.place[1], each.backend) for each in glances(parts)}
    assert lines == {("float32", "small"), ("float32", "quick")}


def test_the_scatter_has_a_point_per_line_and_the_front_below_all(fake: Any) -> None:
    numbers = {"quick": (1.0, 400.0, 0.1), "small": (3.0, 100.0, 0.1), "neither": (3.1, 420.0, 0.1)}
    found = of(fake, made(fake, **numbers))
    memory, _ = glance.charts(list(found.values()))
    ((_, lines),) = ((panel["name"], panel["lines"]) for panel in memory["panels"])
    points = {line["series"]: line for line in lines if not line["reference"]}
    (front,) = (line for line in lines if line["reference"])
    assert front["x"] == sorted(front["x"]) and front["y"] == sorted(front["y"], reverse=True)
    assert {name: line["standing"] == "competes" for name, line in points.items()} == {
        name: each.front for name, each in found.items()
    }
    for name, line in points.items():
        assert (line["x"], line["y"]) == ([found[name].slowness], [found[name].memory])
        below = [y for x, y in zip(front["x"], front["y"], strict=True) if x <= line["x"][0]]
        assert min(below) <= line["y"][0]


def test_one_question_is_not_joined(fake: Any) -> None:
    assert of(fake, [fake.timed(1.0), fake.timed(2.0, backend="blelloch")]) == {}


def test_the_page_shows_it_and_escapes_names(fake: Any) -> None:
    records = made(fake, quick=(1.0, 400.0, 0.1), **{"<b>bold</b>": (0.5, 100.0, 0.1)})
    text = html([run_of(fake, records)])
    assert text is not None
    part = text[text.index('id="glance"') : text.index('id="best"')]
    assert "&lt;b&gt;bold&lt;/b&gt;" in part and "<b>bold</b>" not in part and ">front<" in part


def test_the_terminal_has_the_lines_or_of_many_the_front(fake: Any, monkeypatch: Any) -> None:
    records = made(fake, quick=(1.0, 400.0, 0.1), small=(3.0, 100.0, 0.1), neither=(3.1, 420.0, 0.1))
    for most, shown, more in ((3, 3, False), (2, 2, True)):
        monkeypatch.setattr(glance, "MOST_LINES", most)
        text = str(tables.table([run_of(fake, records)]))
        block = text[text.index("All suites at a glance") :].split("\n\n")[1]
        assert len(block.splitlines()) == 1 + shown
        assert block.count("▸") == 2 and "≥1,024" in block
        assert ("and 1 more:" in text) == more
    assert "at a glance" not in str(tables.table([run_of(fake, records[:1])]))
