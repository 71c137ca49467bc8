"""What the documents say: their code works, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import ssmperf
from ssmperf import Shape, Status, registry
from ssmperf.tune import tables as configurations

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.fixture
def plugin(request: pytest.FixtureRequest, tmp_path: Path, own_registrations: None) -> Path:
    """An example of docs/extending.md as a plug-in file; what it registers is forgotten afterwards."""
    file = tmp_path / "example.py"
    file.write_text(example(request.param))
    return file


def example(registered: str) -> str:
    """The code of docs/extending.md that registers something of this name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if re.search(rf'@\S+\([^)]*"{registered}"', block)]
    return str(block)


@pytest.mark.parametrize("plugin", ["my_loop"], indirect=True)
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


def built_in(model: str) -> list[str]:
    """Its backends that run here; not those that other tests planted."""
    return [
        backend.name
        for backend in registry.backends(model)
        if backend.function.__module__.startswith("ssmperf.")
        and backend.refusal(device="cpu", gate_kind="data") is None
    ]


def test_the_example_model_is_one_short_file() -> None:
    assert len(example("qrnn").splitlines()) < 60


@pytest.mark.parametrize("plugin", ["qrnn"], indirect=True)
def test_the_example_model_runs_on_every_backend_and_trains(plugin: Path) -> None:
    registry.load_plugin(plugin)
    torch.manual_seed(0)
    layer = registry.model("qrnn").cls(Shape(B=2, T=9, C=4)).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    expected = layer.definition(x)
    runnable = built_in("qrnn")
    assert {"sequential", "blelloch", "logspace"} <= set(runnable)
    for name in runnable:
        y, state = layer(x, backend=name)
        torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
        halfway, between = layer(x[:, :5], backend=name)
        rest, after = layer(x[:, 5:], backend=name, state=between)
        torch.testing.assert_close(torch.cat([halfway, rest], dim=1), y)
        torch.testing.assert_close(after, state)
        layer.zero_grad()
        y.square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in layer.parameters())


@pytest.mark.parametrize("plugin", ["qrnn"], indirect=True)
def test_the_example_model_passes_the_suites(plugin: Path, tmp_path: Path) -> None:
    registry.load_plugin(plugin)
    done = ssmperf.run(
        "correctness,throughput", models="qrnn", preset="smoke", device="cpu", axis="T=16",
        backends=built_in("qrnn"), out=tmp_path / "run",
    )  # fmt: skip
    assert {record.status for record in done.records} <= {Status.OK, Status.UNSUPPORTED}
    assert sum(record.status is Status.OK for record in done.records) >= 10


def test_the_example_table_can_be_searched(own_registrations: None, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "Table(" in block]
    (tmp_path / "tiles.py").write_text(code)
    registry.load_plugin(tmp_path / "tiles.py")
    table = configurations.imported_table("scan/my_kernel")
    assert {key: len(table.others(key)) for key in table} == {("forward", "half"): 5, ("backward", "half"): 5}


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
