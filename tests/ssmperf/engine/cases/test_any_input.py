"""Properties for any input: cases, records and sizes survive their texts, and nonsense is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmperf import Case, Record, Shape, Status, UnreadableRun, UsageError
from ssmperf.engine.plan.run_options import names
from ssmperf.engine.plan.sizes import parse_one, spread
from ssmperf.suitekit import DIMENSIONS, axes

TEXTS = st.text(max_size=20)
LETTERS = tuple(letter for letter in DIMENSIONS if letter != "G")  # which divides H
SHAPES = st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 2**40), min_size=1).map(Shape)
NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
FORMS = {"packing": ("none", "5,0,2", "3x4"), "call": ("none", "bonus read=pre", "grad=k,v autocast")}
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case with any legal value on every axis."""
    chosen: dict[str, Any] = {}
    for name, declared in axes().items():
        if declared.valid is not None:
            chosen[name] = draw(st.sampled_from(declared.valid))
        elif name in FORMS:
            chosen[name] = draw(st.sampled_from(FORMS[name]))
        elif isinstance(declared.default, int):
            chosen[name] = draw(st.integers(0, 2**63 - 1))
        else:
            chosen[name] = draw(TEXTS)
    return Case(draw(TEXTS), draw(TEXTS), draw(TEXTS), draw(SHAPES), draw(st.none() | TEXTS), **chosen)


@given(cases())
def test_a_case_survives_its_json(case: Case) -> None:
    again = Case.from_json(json.loads(json.dumps(case.to_json())))
    assert again == case and again.id == case.id and hash(again) == hash(case)


@given(cases(), cases())
def test_equal_ids_are_equal_cases(one: Case, other: Case) -> None:
    assert (one.id == other.id) == (one == other)


@given(cases(), st.sampled_from(Status), TEXTS, st.dictionaries(st.text("abc", min_size=1), NUMBERS))
def test_a_record_survives_its_line(case: Case, status: Status, reason: str, numbers: dict[str, Any]) -> None:
    record = Record(case, status, f"why {reason}", "env", {f"error_{name}": x for name, x in numbers.items()})
    line = record.to_line()
    assert "\n" not in line
    again = Record.from_json(json.loads(line))
    assert (again.status, again.reason, again.numbers) == (status, record.reason, record.numbers)


@given(NONSENSE)
def test_what_is_no_record_is_refused(data: Any) -> None:
    with pytest.raises(UnreadableRun):
        Record.from_json(data)


@given(st.text("TBCHKVDN=:x+,0123456789 -", max_size=24))
@settings(max_examples=400)
def test_sizes_are_read_or_refused(text: str) -> None:
    try:
        sizes = parse_one(text)
    except UsageError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert sizes.sizes and min(sizes.sizes) >= 1 and len(set(sizes.sizes)) == len(sizes.sizes)
    shape = Shape({sizes.name: 1})
    assert [each[sizes.name] for each in spread((shape,), (sizes,))] == list(sizes.sizes)


@given(st.text(max_size=30))
def test_names_are_read_or_refused(text: str) -> None:
    try:
        found = names(text)
    except UsageError:
        assert not text.replace(",", " ").strip()
        return
    assert found and all(name and name == name.strip() and "," not in name for name in found)
    assert len(set(found)) == len(found)
