"""Every table of configurations among the kernels: named after its backend, with a small list to search."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from ssmperf.engine.tune import tables as configurations
from ssmperf.engine.tune.tables import Table, as_json, from_json, noted

ROOT = Path(__file__).parents[3] / "impls"
FILES = sorted(file for file in ROOT.glob("*/_*/*.py") if "Table(" in file.read_text())
MOST = 12


def tables(file: Path) -> list[Table[object]]:
    parts = file.relative_to(ROOT).with_suffix("").parts
    module = import_module(".".join(("ssmperf.impls", *parts)))
    return [value for value in vars(module).values() if isinstance(value, Table)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_table_is_small_and_fits(file: Path) -> None:
    folder, backend = file.relative_to(ROOT).parts[:2]
    found = tables(file)
    assert found
    for table in found:
        assert table.name.split("/")[:2] == [folder, backend.removeprefix("_")]
        assert configurations.imported_table(table.name) is table
        for key in table:
            others = table.others(key)
            assert len(others) <= MOST, (table.name, key)
            assert others or table.candidates is None, (table.name, key)
            assert table.fits(table.row(key), *key)
            assert all(table.fits(other, *key) and isinstance(other, table.type) for other in others)


def test_curated_rows_pass_through_a_file() -> None:
    for table in (table for file in FILES for table in tables(file)):
        with noted() as rows:
            for key in table:
                table[key]
        pytest.importorskip(table.name.split("/")[1] if "triton" in table.name else "ssmperf")
        assert from_json(as_json(rows)) == rows
