"""Tables of configurations: overrides, recorded look-ups, and the validation of files."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from ssmperf import DuplicateName, UnknownName, UsageError
from ssmperf.engine.tune import tables as configurations
from ssmperf.engine.tune.tables import Table, as_json, from_json, noted, using


@dataclass(frozen=True)
class Cut:
    size: int
    share: float = 1.0
    registers: int | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError("a size is above 0")


NAME = "scan/sequential/cuts"  # the name of an existing backend, so that a file can name the table
FORWARD, BACKWARD = ("forward", 4), ("backward", 2)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Table[Cut]:
    monkeypatch.setattr(configurations, "_tables", dict(configurations._tables))
    return Table(
        NAME,
        Cut,
        {FORWARD: Cut(8), BACKWARD: Cut(4, registers=96)},
        lambda pass_, width: [Cut(8), Cut(2), Cut(16), Cut(2), Cut(64)],
        lambda cut, pass_, width: cut.size <= 4 * width,
    )


def test_the_curated_row_unless_another_is_in_force(cuts: Table[Cut]) -> None:
    with using({(NAME, FORWARD): Cut(2)}):
        assert (cuts[FORWARD], cuts[BACKWARD]) == (Cut(2), Cut(4, registers=96))
        with using({(NAME, FORWARD): Cut(3)}):
            assert cuts[FORWARD] == Cut(3)
        assert cuts[FORWARD] == Cut(2)
    assert cuts[FORWARD] == Cut(8)
    with pytest.raises(KeyError):
        cuts["forward", 8]


def test_a_block_that_raises_leaves_nothing_in_force(cuts: Table[Cut]) -> None:
    with pytest.raises(ZeroDivisionError), using({(NAME, FORWARD): Cut(2)}), noted():
        raise ZeroDivisionError
    assert cuts[FORWARD] == Cut(8)
    assert configurations._notes == ()


def test_notes_hold_what_was_looked_up_in_any_thread(cuts: Table[Cut]) -> None:
    with noted() as outer:
        cuts[BACKWARD]
        with using({(NAME, FORWARD): Cut(2)}), noted() as inner:
            thread = threading.Thread(target=lambda: cuts[FORWARD])
            thread.start()
            thread.join()
    cuts.row(FORWARD)
    assert inner == {(NAME, FORWARD): Cut(2)}
    assert outer == inner | {(NAME, BACKWARD): Cut(4, registers=96)}


def test_who_only_asks_leaves_no_note(cuts: Table[Cut]) -> None:
    with noted() as note:
        assert cuts.row(FORWARD) == Cut(8)
    assert note == {}


def test_candidates_fit_are_tried_once_and_differ_from_what_is_in_force(cuts: Table[Cut]) -> None:
    assert cuts.others(FORWARD) == [Cut(2), Cut(16)]
    with using({(NAME, FORWARD): Cut(16)}):
        assert cuts.others(FORWARD) == [Cut(8), Cut(2)]
    assert cuts.others(BACKWARD) == [Cut(8), Cut(2)]


def test_rows_pass_through_json(cuts: Table[Cut]) -> None:
    rows = {(NAME, FORWARD): Cut(16, 0.5, 128), (NAME, BACKWARD): Cut(1)}
    assert from_json(as_json(rows)) == rows
    assert as_json({(NAME, BACKWARD): Cut(1)}) == {
        "scan/sequential/cuts:backward/2": {"size": 1, "share": 1.0, "registers": None}
    }


LABEL = f"{NAME}:forward/4"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no place": ({"scan": {}}, "TABLE:KEY"),
    "unknown recurrence": ({"skan/sequential:a": {}}, "scan"),
    "unknown backend": ({"scan/sequentiell:a": {}}, "sequential"),
    "unknown table": ({"scan/sequential/cut:a": {}}, NAME),
    "unknown key": ({f"{NAME}:forward/5": {}}, "forward/4"),
    "unknown field": ({LABEL: {"sizes": 4}}, "did you mean size"),
    "no object": ({LABEL: [4]}, "an object"),
    "missing field": ({LABEL: {}}, "size"),
    "text for a number": ({LABEL: {"size": "4"}}, "must be of type int"),
    "truth for a number": ({LABEL: {"size": True}}, "must be of type int"),
    "null for a number": ({LABEL: {"size": None}}, "must be of type int"),
    "fraction for a number": ({LABEL: {"size": 4, "registers": 1.5}}, "must be of type int or NoneType"),
    "what can never run": ({LABEL: {"size": 0}}, "above 0"),
    "what cannot run there": ({LABEL: {"size": 64}}, "cannot run there"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_of_a_file_are_checked(name: str, cuts: Table[Cut]) -> None:
    data, expected = BAD[name]
    with pytest.raises(UsageError, match=expected):
        from_json(data)


def test_names_and_keys_are_checked(cuts: Table[Cut]) -> None:
    Table(NAME, Cut, {FORWARD: Cut(1)})  # the same module again
    with pytest.raises(DuplicateName):
        Table(NAME, Table, {})
    for name, key in (("cuts", FORWARD), (f"{NAME}/more", FORWARD), ("a/b", ("4",)), ("a/b", ("x/y",))):
        with pytest.raises(UsageError):
            Table(name, Cut, {key: Cut(1)})
    with pytest.raises(UnknownName):
        configurations.table("scan/sequential/other")
