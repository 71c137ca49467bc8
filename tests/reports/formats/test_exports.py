"""Exports hold every record, and text from outside stays text."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ssmperf.reports.formats import exports

from ssmperf import Record, UsageError
from ssmperf.suitekit import registry

HOSTILE = "</script><img src=x onerror=alert(1)>|`x`[a](javascript:b)\n=cmd()"


@pytest.fixture
def run(fake: Any) -> Any:
    return fake.plausible(models=("gla", "rwkv6"), lengths=(1024,), passes=("forward",), samples=3)


def test_csv_holds_every_record_and_field(run: Any) -> None:
    table = pd.read_csv(io.StringIO(str(exports.csv([run]))))
    assert list(table["case_id"]) == [record.case.id for record in run.records]
    first = next(record for record in run.records if "samples_s" in record.numbers)
    row = table.set_index("case_id").loc[first.case.id]
    assert json.loads(row["samples_s"]) == first.numbers["samples_s"]
    assert json.loads(row["errors"]) == first.numbers["errors"]
    assert row["latency_s"] == first.numbers["latency_s"] and row["speedup"] > 0


def test_csv_leaves_text_as_data(fake: Any) -> None:
    text = str(exports.csv([fake.run([fake.timed(1.0, model=HOSTILE)])]))
    assert pd.read_csv(io.StringIO(text))["model"].item() == HOSTILE


def test_missing_is_empty_and_never_zero(fake: Any) -> None:
    records = [fake.timed(1.0), fake.failed("oom", "too large", backend="triton")]
    table = pd.read_csv(io.StringIO(str(exports.csv([fake.run(records)]))))
    assert table["latency_s"].isna().tolist() == [False, True]


def test_parquet_keeps_lists_and_types(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.parquet"
    exports.parquet([run], file)
    table = pd.read_parquet(file)
    assert list(table["case_id"]) == [record.case.id for record in run.records]
    timed = table[table["latency_s"].notna()].iloc[0]
    assert len(timed["samples_s"]) == 3 and isinstance(timed["errors"], str)


def test_parquet_takes_values_of_mixed_kinds(fake: Any, tmp_path: Path) -> None:
    values: list[Any] = [1, "two", [3.0], {"four": {}}, None]
    records = [fake.timed(1.0, seed=i, numbers={"odd": value}) for i, value in enumerate(values)]
    exports.parquet([fake.run(records)], tmp_path / "odd.parquet")
    column = pd.read_parquet(tmp_path / "odd.parquet")["odd"]
    assert [None if value != value or value is None else json.loads(value) for value in column] == values


def test_json_gives_the_records_back(run: Any) -> None:
    document = json.loads(str(exports.json_([run, run])))
    assert [each["meta"]["created"] for each in document["runs"]] == [run.meta["created"]] * 2
    again = [Record.from_json({k: v for k, v in each.items() if k != "run"}) for each in document["records"]]
    assert [record.case for record in again] == [record.case for record in run.records] * 2
    assert [record.status for record in again] == [record.status for record in run.records] * 2


def test_markdown_has_a_table_row_for_every_record(run: Any) -> None:
    text = str(exports.markdown([run]))
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| model")]
    assert len(rows) == len(run.records)
    assert re.search(r"\*\*[\d.]+ [µm]s ±", text) and "## Throughput" in text


def test_markdown_escapes_text_from_outside(fake: Any) -> None:
    records = [fake.timed(1.0, model=HOSTILE), fake.failed("crash", HOSTILE, backend=HOSTILE)]
    text = str(exports.markdown([fake.run(records, meta={"tag": HOSTILE})]))
    assert "<img" not in text and "</script" not in text and "](javascript" not in text.replace("\\]", "")
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1


@pytest.mark.parametrize("name", ["csv", "json", "markdown", "parquet", "table", "html"])
def test_a_missing_folder_is_a_one_line_usage_error(fake: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no folder") as caught:
        registry.report(name)([fake.run([fake.timed(1.0)])], tmp_path / "missing" / "file")
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_a_file_is_a_usage_error(fake: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        exports.csv([fake.run([fake.timed(1.0)])], tmp_path)


def test_binary_formats_need_a_file(fake: Any) -> None:
    for name in ("parquet", "figures"):
        with pytest.raises(UsageError, match="name the"):
            registry.report(name)([fake.run([])], None)


@pytest.mark.slow(but=("markdown", "csv"))
@pytest.mark.parametrize("name", ["csv", "json", "markdown", "table", "html"])
def test_the_same_run_gives_the_same_bytes(run: Any, name: str) -> None:
    assert registry.report(name)([run], None) == registry.report(name)([run], None)


@pytest.mark.parametrize("name", ["csv", "json", "markdown", "table", "html"])
def test_an_empty_run_is_no_error(fake: Any, name: str) -> None:
    assert registry.report(name)([fake.run([])], None)
