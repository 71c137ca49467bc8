"""docs/notebook.ipynb runs in a kernel: a bar moves while a cell measures, and results are tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_results(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": tmp_path}}).execute()
    run, best, frame, compared = (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    for outputs in (run, compared):
        assert "/8 [" in streams(outputs) or "/4 [" in streams(outputs)
    assert "8 ok" in html(run) and "<th>fastest</th>" in html(run)
    assert "gla at T = 256 " in html(best) and "ahead of sequential" in html(best)
    assert "latency_s" in html(frame)
    assert "<th>verdict</th>" in html(compared)


def streams(outputs: list[Any]) -> str:
    return "".join(each.text for each in outputs if each.output_type == "stream")


def html(outputs: list[Any]) -> str:
    (shown,) = (each.data for each in outputs if each.output_type == "execute_result")
    return str(shown["text/html"])
