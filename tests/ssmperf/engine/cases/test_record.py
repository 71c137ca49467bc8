"""Record: a failed case carries no time, missing values are null, newer schemas are refused."""

from __future__ import annotations

import json
import math

import pytest

from ssmperf import Case, Record, Shape, Status, UnreadableRun
from ssmperf.engine.cases.record import SCHEMA_VERSION

CASE = Case(suite="throughput", recurrence="scan", backend="blelloch", shape=Shape(B=2, T=7, C=3))
REQUIRED = {
    "schema_version",
    "case_id",
    "env_id",
    "suite",
    "model",
    "recurrence",
    "backend",
    "shape",
    "dtype",
    "device",
    "pass",
    "seed",
    "status",
    "reason",
}


def test_json_has_every_required_key_and_survives_a_round_trip() -> None:
    record = Record(CASE, Status.OK, None, "e1", {"latency_s": 1.5e-3, "samples_s": [1.0, 2.0]})
    data = json.loads(record.to_line())
    assert data.keys() >= REQUIRED
    assert data["shape"] == {"B": 2, "T": 7, "C": 3}
    assert Record.from_json(data) == Record(
        CASE, Status.OK, None, "e1", {"latency_s": 1.5e-3, "samples_s": [1.0, 2.0]}
    )


@pytest.mark.parametrize("name", ["latency_s", "tokens_per_s", "energy_j", "copy_fraction"])
@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_failed_case_carries_no_time(status: Status, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Record(CASE, status, "because", None, {name: 0.0})
    assert Record(CASE, status, "because", None, {name: None}).numbers == {name: None}


def test_a_failed_case_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        Record(CASE, Status.WRONG)


def test_nan_and_infinity_become_null() -> None:
    record = Record(CASE, Status.OK, None, None, {"a": math.nan, "b": [math.inf], "c": {"d": -math.inf}})
    assert {k: v for k, v in json.loads(record.to_line()).items() if k in "abc"} == {
        "a": None,
        "b": [None],
        "c": {"d": None},
    }


def test_a_newer_schema_is_refused() -> None:
    data = Record(CASE, Status.OK).to_json() | {"schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(UnreadableRun, match="upgrade"):
        Record.from_json(data)


@pytest.mark.parametrize(
    "damage",
    [
        {"status": "fine"},
        {"shape": {"T": 0}},
        {"schema_version": "x"},
        {"dtype": "f8"},
        {"latency_s": "<b>"},
        {"latency_s": True},
        {"samples_s": [1.0, "2"]},
        {"peak_bytes": {}},
        {"tokens_per_s": "many"},
        {"copy_fraction": [[]]},
        {"reason": 5},
        {"env_id": []},
        {"model": 1},
        {"backend": None},
    ],
)
def test_damaged_records_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(UnreadableRun):
        Record.from_json(Record(CASE, Status.OK).to_json() | damage)


@pytest.mark.parametrize("data", [[1], "record", None, 3])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(UnreadableRun):
        Record.from_json(data)  # type: ignore[arg-type]


def test_missing_numbers_are_read() -> None:
    numbers = {"latency_s": None, "samples_s": [1, None], "peak_bytes": 3, "peak_bytes_reason": "none"}
    assert Record.from_json(Record(CASE, Status.OK, None, None, numbers).to_json()).numbers == numbers


def test_a_reason_is_one_printable_line() -> None:
    reason = Record(CASE, Status.CRASH, "\ud800 a\x00b\n\x1b[31m  red " + "z" * 900).reason
    assert reason is not None
    assert reason.startswith("\ufffd a\ufffdb \ufffd[31m red zzz")
    assert len(reason) == 500
    with pytest.raises(ValueError, match="reason"):
        Record(CASE, Status.CRASH, " \n ")


def test_every_record_can_be_written() -> None:
    record = Record(CASE, Status.OK, None, None, {"command": "\udc80", "kernels": {"\ud800": 1}})
    assert json.dumps(record.to_json(), ensure_ascii=False).encode().count(b"?") == 2


def test_numbers_cannot_hide_the_head() -> None:
    with pytest.raises(ValueError, match="status"):
        Record(CASE, Status.OK, None, None, {"status": "ok"}).to_json()
