"""Section: what a suite declares for reports survives a run's file, and damage is found when it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmperf import UnknownName, UnreadableRun
from ssmperf.engine.registry.sections import ROWS
from ssmperf.suitekit import Chart, Section, registry

CHARTS = st.builds(
    Chart, x=st.text(), y=st.text(), series=st.text(), facet=st.text(), log=st.booleans(), title=st.text()
)
SECTIONS = st.builds(
    Section,
    title=st.text(),
    question=st.text(),
    columns=st.lists(st.text()).map(tuple),
    rank=st.none() | st.text(),
    charts=st.lists(CHARTS, max_size=3).map(tuple),
    split=st.lists(st.sampled_from(["pass", "dtype", "layout", "T", "C"])).map(tuple),
    rows=st.sampled_from(ROWS),
    note=st.none() | st.text(),
)
WHOLE = Section("Title", "Question?", ("latency_s",), "latency_s", (Chart("T", "latency_s"),)).to_json()


@given(section=SECTIONS)
def test_a_section_survives_a_file(section: Section) -> None:
    assert Section.from_json(json.loads(json.dumps(section.to_json()))) == section


def test_the_sections_of_all_suites_survive_a_file() -> None:
    sections = [entry.section for entry in registry.suites().values()]
    assert len(sections) >= 5
    for section in sections:
        assert Section.from_json(json.loads(json.dumps(section.to_json()))) == section


def test_unknown_keys_are_ignored() -> None:
    newer = {**WHOLE, "colour": "red", "charts": [{**WHOLE["charts"][0], "colour": "red"}]}
    assert Section.from_json(newer) == Section.from_json(WHOLE)


@pytest.mark.parametrize("missing", ["rank", "charts", "split", "rows", "note"])
def test_an_older_run_without_a_field_has_its_default(missing: str) -> None:
    older = {name: value for name, value in WHOLE.items() if name != missing}
    default = getattr(Section("", "", ()), missing)
    assert getattr(Section.from_json(older), missing) == default


@pytest.mark.parametrize("missing", ["title", "question", "columns"])
def test_a_field_without_a_default_must_be_there(missing: str) -> None:
    with pytest.raises(UnreadableRun, match=f"no {missing}"):
        Section.from_json({name: value for name, value in WHOLE.items() if name != missing})


@pytest.mark.parametrize(
    "damage",
    [
        {"title": None},
        {"question": ["?"]},
        {"columns": "latency_s"},
        {"columns": ["latency_s", 1]},
        {"rank": 1},
        {"charts": {"x": "T"}},
        {"charts": ["T"]},
        {"charts": [{"x": "T"}]},
        {"charts": [{"x": "T", "y": "latency_s", "log": "yes"}]},
        {"split": ["moon"]},
        {"split": None},
        {"rows": "columns"},
        {"note": False},
    ],
    ids=str,
)
def test_a_damaged_section_is_unreadable(damage: dict[str, Any]) -> None:
    with pytest.raises(UnreadableRun, match=next(iter(damage)).rstrip("s")):
        Section.from_json({**WHOLE, **damage})


@pytest.mark.parametrize("data", [None, [], "section", 3])
def test_a_section_is_an_object(data: Any) -> None:
    with pytest.raises(UnreadableRun, match="not an object"):
        Section.from_json(data)


@pytest.mark.parametrize("declared", [{"rows": "model"}, {"split": ("moon",)}])
def test_a_suite_cannot_declare_what_no_report_can_draw(declared: dict[str, Any]) -> None:
    with pytest.raises(UnknownName):
        Section("Title", "Question?", (), **declared)
