"""What the documents say: their code works, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from ssmperf import registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The backend of docs/extending.md as a plug-in file; what it registers is forgotten afterwards."""
    registry.recurrences()
    monkeypatch.setattr(registry, "_tables", {kind: dict(table) for kind, table in registry._tables.items()})
    monkeypatch.setattr(registry, "_origins", dict(registry._origins))
    monkeypatch.setattr(registry, "_plugins", list(registry._plugins))
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    assert block is not None
    file = tmp_path / "my_loop.py"
    file.write_text(block[1])
    return file


def test_the_example_backend_computes_its_recurrence(plugin: Path) -> None:
    registry.load_plugin(plugin)
    scan = registry.recurrence("scan")
    operands = {
        "log_a": torch.nn.functional.logsigmoid(torch.randn(2, 7, 3, dtype=torch.float64)),
        "b": torch.randn(2, 7, 3, dtype=torch.float64),
        "initial_state": torch.randn(2, 3, dtype=torch.float64),
    }
    output, state = registry.backend("scan", "my_loop").function(**operands)
    torch.testing.assert_close((output, state), scan.definition(**operands))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    local = [link for link in links if "://" not in link]
    missing = [link for link in local if not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_documents_name_files_that_exist(document: Path) -> None:
    """Paths in code spans that start with a folder of the repository."""
    text = document.read_text()
    paths = re.findall(r"`((?:ssmperf|impls|suites|reports|tests|ci|docs)/[\w./-]+)`", text)
    missing = [path for path in paths if not (ROOT / path).exists() and "my_" not in path]
    assert missing == []
