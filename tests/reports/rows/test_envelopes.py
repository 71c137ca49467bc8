"""Envelopes: a backend wins only as far as it was seen to be right; lines and maps show how far that is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ssmperf.reports.rows import frames
from ssmperf.reports.views import maps
from support.results.claims import page, report

import ssmperf
from ssmperf import Record, Status
from ssmperf.suitekit import Section, envelope_of, standings

FIELDS = ("decay_span", "T")
SECTION = Section(
    title="Limits",
    question="Up to where?",
    columns=("error_output", "first_nan_step", "deterministic"),
    envelope=FIELDS,
    map=("operand_source", "T", "error_output"),
)
META = {
    "suites": {
        "throughput": {"title": "Throughput", "question": "", "columns": [], "rank": "latency_s"},
        "limits": SECTION.to_json(),
    }
}
WRONG = "output: relative error 1.0e-01 is above the tolerance 2.0e-05"


def tried(fake: Any, T: int, span: float | None, status: str = "ok", **changes: Any) -> Record:
    """Make a record of the suite that gives envelopes."""
    place = {"suite": "limits", "backend": "quick", "shape": {"B": 1, "T": T, "C": 64}, **changes}
    numbers = {"decay_span": span, "error_output": 1e-6 if status == "ok" else 0.1, "deterministic": True}
    return Record(fake.case(**place), Status(status), None if status == "ok" else WRONG, "env1", numbers)


def timed(fake: Any, T: int, **changes: Any) -> list[Record]:
    """Time two backends, of which `quick` takes half as long."""
    shape = {"B": 8, "T": T, "C": 64}
    times = (("sequential", 2.0), ("quick", 1.0))
    return [fake.timed(seconds, backend=name, shape=shape, **changes) for name, seconds in times]


def fastest(run: Any) -> dict[str, list[str]]:
    return {contest["shape"]: contest["fastest"] for contest in ssmperf.best([run])}


def test_beyond_its_envelope_a_backend_stands_beside(fake: Any) -> None:
    limits = [tried(fake, 64, 5.0), tried(fake, 1024, 80.0), tried(fake, 4096, 20.0, "wrong")]
    run = fake.run([*timed(fake, 1024), *timed(fake, 4096), *limits], meta=META)
    assert fastest(run) == {"B8 T1024 C64": ["quick"], "B8 T4096 C64": ["sequential"]}
    (standing,) = [
        standing
        for record, standing in zip(run.records, standings(run), strict=True)
        if record.case.backend == "quick"
        and record.case.suite == "throughput"
        and record.case.shape["T"] == 4096
    ]
    assert (standing.name, standing.mark) == ("beside", "beyond its T")
    assert standing.reason == "limits: right to decay span 80, T 1,024 in float32; here T is 4,096"


def test_the_span_of_a_timed_case_is_that_per_step_of_what_was_tried(fake: Any) -> None:
    """At 0.25 per step the span of 88 is passed between T = 256 and T = 1,024."""
    limits = [tried(fake, 64, 16.0), tried(fake, 256, 64.0), tried(fake, 4096, 0.0, operand_source="decay/0"),
              tried(fake, 1024, 256.0, "nan")]  # fmt: skip
    run = fake.run([*timed(fake, 256), *timed(fake, 1024), *timed(fake, 8192), *limits], meta=META)
    assert fastest(run) == {
        "B8 T256 C64": ["quick"],
        "B8 T1024 C64": ["sequential"],
        "B8 T8192 C64": ["sequential"],
    }


def test_what_was_right_on_the_same_operands_is_inside(fake: Any) -> None:
    """Without decay it fails at T = 4,096; with the model's own decay it was right there."""
    limits = [
        tried(fake, 64, 5.0),
        tried(fake, 4096, 300.0),
        tried(fake, 4096, 0.0, "wrong", operand_source="decay/0"),
    ]
    run = fake.run([*timed(fake, 1024), *timed(fake, 8192), *limits], meta=META)
    assert fastest(run) == {"B8 T1024 C64": ["quick"], "B8 T8192 C64": ["sequential"]}


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"model": "hgrn"}, {"device": "cuda"}])
def test_an_envelope_concerns_its_own_model_dtype_and_device(fake: Any, changes: dict[str, Any]) -> None:
    limits = [tried(fake, 64, 5.0, **changes), tried(fake, 1024, 80.0, "wrong", **changes)]
    run = fake.run([*timed(fake, 4096), *limits], meta=META)
    assert fastest(run) == {"B8 T4096 C64": ["quick"]}


def test_what_nothing_limits_was_only_tried(fake: Any) -> None:
    """A backend that was right wherever it was tried wins beyond that, too."""
    run = fake.run([*timed(fake, 65536), tried(fake, 64, 5.0), tried(fake, 1024, 80.0)], meta=META)
    assert fastest(run) == {"B8 T65536 C64": ["quick"]}


CASES = st.lists(
    st.tuples(st.sampled_from(["ok", "wrong", "nan", "oom"]), st.integers(0, 5), st.integers(1, 5)),
    max_size=12,
)


@given(cases=CASES)
def test_no_broken_case_is_inside(cases: list[tuple[str, int, int]]) -> None:
    found = envelope_of([(status, {"decay_span": s, "T": T}) for status, s, T in cases], FIELDS)
    inside = [status for status, s, T in cases
              if found.largest and s <= found.largest["decay_span"] and found.largest["T"] >= T]  # fmt: skip
    assert not {"wrong", "nan"} & set(inside)
    assert ("ok" in inside) == bool(found.largest)
    for status, s, T in cases:
        if status in ("wrong", "nan"):
            assert found.exceeded({"decay_span": s, "T": T}) is not None


def test_cases_without_a_finite_span_do_not_count() -> None:
    cases = [("ok", {"decay_span": 3.0, "T": 64}), ("unsupported", {"decay_span": float("inf"), "T": 64}),
             ("unsupported", {"T": 64})]  # fmt: skip
    found = envelope_of(cases, FIELDS)
    assert str(found) == "right to decay span 3, T 64" and not found.limited
    assert str(envelope_of(cases[1:], FIELDS)) == "not tried"
    assert str(envelope_of([("wrong", {"decay_span": 3.0, "T": 64})], FIELDS)) == "right nowhere"


def test_the_terminal_has_a_line_per_model_and_backend(fake: Any) -> None:
    limits = [
        tried(fake, T, T / 4, status, dtype=dtype, operand_source=source)
        for dtype in ("float32", "bfloat16")
        for source in ("model", "decay/0")
        for T, status in ((64, "ok"), (256, "ok"), (1024, "ok" if dtype == "float32" else "wrong"))
    ]
    text = report("table", [fake.run([*limits, tried(fake, 64, 1.0, backend="slow")], meta=META)])
    (line,) = [line for line in text.splitlines() if "quick" in line and "ok" in line]
    assert " 64 / ≥256 " in line and " ≥256 / ≥1,024 " in line
    assert "1.0e-01 / 1.0e-06" in line and "yes" in line and "10 ok, 2 wrong" in line
    (slow,) = [line for line in text.splitlines() if "slow" in line]
    assert slow.split()[:4] == ["mingru", "slow", "≥1", "≥64"]


def test_the_map_has_sources_by_lengths_in_logarithmic_colours(fake: Any) -> None:
    sources = (("decay/10", 40.0), ("decay/0", 0.0), ("model", 4.0), ("decay/reset", None))
    limits = [tried(fake, T, span, operand_source=source) for T in (64, 1024) for source, span in sources]
    run = fake.run([*limits, tried(fake, 4096, 9.0, "wrong", operand_source="model")], meta=META)
    shown = page([run])
    (table,) = [table for table in shown.all("table") if "map" in table.classes]
    rows = list(table.all("tr"))
    assert [next(row.all("th")).text for row in rows[2:]] == ["decay/0", "model", "decay/10", "decay/reset"]
    assert [cell.text for cell in rows[1].all("th")] == ["operand source", "64", "1,024", "4,096"]
    model = rows[3].all("td")
    assert [tuple(cell.classes) for cell in model] == [("level",), ("level",), ("broken",)]
    assert maps.level(1e-8) == 0 and maps.level(1e-4) == 0.5 and maps.level(3.0) == 1
    assert frames.frame([run])["standing"].value_counts().to_dict() == {"competes": 8, "wrong": 1}


def test_maps_with_values_in_one_row_come_last(fake: Any) -> None:
    """The page shows the first one, which should have decay in it."""
    plain = [tried(fake, T, None, model="attention", operand_source="model") for T in (64, 1024)]
    sources = (("decay/0", 0.0), ("model", 4.0))
    both = [tried(fake, T, span, operand_source=source) for T in (64, 1024) for source, span in sources]
    table = frames.frame([fake.run([*plain, *both], meta=META)])
    assert [each["label"] for each in maps.maps(table, SECTION)] == [
        "mingru · float32",
        "attention · float32",
    ]
