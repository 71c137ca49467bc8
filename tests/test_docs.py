"""The documents: their code works, their links lead somewhere, and they name what is registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf import Status
from ssmperf.engine.tune import tables as configurations
from ssmperf.suitekit import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
SOURCES = ("ssmperf", "impls", "suites", "reports", "examples", "tests", "ci")
LARGEST = 3_000_000  # bytes of docs/, of which whole runs of suites are the most

FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
CITATION = re.compile(r"([\w./-]+\.md)#([\w-]+)")


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


@pytest.mark.parametrize("plugin", ["gla:parameters"], indirect=True)
def test_the_example_claim_is_run_and_judged(plugin: Path, tmp_path: Path) -> None:
    registry.load_plugin(plugin)
    (found,) = ssmperf.reproduce("gla:parameters", out=tmp_path / "out", device="cpu").results
    assert found.agreement is ssmperf.Agreement.AGREES


def test_the_example_table_can_be_searched(own_registrations: None, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "Table(" in block]
    (tmp_path / "tiles.py").write_text(code)
    registry.load_plugin(tmp_path / "tiles.py")
    table = configurations.imported_table("scan/my_kernel")
    assert {key: len(table.others(key)) for key in table} == {("forward", "half"): 5, ("backward", "half"): 5}


def anchors(text: str) -> set[str]:
    """List the anchors that GitHub gives a document's headings."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return names


def leads_somewhere(document: Path, text: str, link: str) -> bool:
    """Whether a link of a document is external, or its file and its heading exist."""
    path, _, anchor = link.partition("#")
    if "://" in link or link.startswith("mailto:"):
        return True
    if path and not (document.parent / path).exists():
        return False
    return not anchor or anchor in anchors((document.parent / path).read_text() if path else text)


def dead_links(document: Path, text: str) -> list[str]:
    """List the relative links of a document whose file or heading does not exist."""
    links = LINK.findall(SPAN.sub("", FENCED.sub("", text)))
    return [link for link in links if not leads_somewhere(document, text, link)]


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert dead_links(document, document.read_text()) == []


def test_a_dead_link_is_found() -> None:
    text = (
        "# One thing\n\n[here](#one-thing) [not here](#two) [gone](docs/gone.md) [no heading](README.md#gone)"
    )
    assert dead_links(ROOT / "planted.md", text) == ["#two", "docs/gone.md", "README.md#gone"]


def test_anchors_are_those_of_github() -> None:
    text = "# A `code_name`, twice!\n```text\n# no heading\n```\n## A `code_name`, twice!\n### RG-LRU"
    assert anchors(text) == {"a-code_name-twice", "a-code_name-twice-1", "rg-lru"}


def cited_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield (file, anchor) of each section of a document that a source file cites by path."""
    for path, anchor in CITATION.findall(text):
        if path.startswith("docs/"):
            yield path, anchor


def dead_citations(text: str) -> list[str]:
    """List the cited sections of documents that do not exist."""
    return [
        f"{path}#{anchor}"
        for path, anchor in cited_sections(text)
        if not (ROOT / path).exists() or anchor not in anchors((ROOT / path).read_text())
    ]


@pytest.mark.parametrize("folder", SOURCES)
def test_sections_that_the_code_cites_exist(folder: str) -> None:
    files = [file for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".cu", ".cuh", ".sh")]
    dead = {
        name_of(file): missing
        for file in files
        if file != Path(__file__) and (missing := dead_citations(file.read_text()))
    }
    assert files
    assert dead == {}


def test_a_dead_citation_is_found() -> None:
    text = '"""See docs/recurrences.md#tolerances, docs/recurrences.md#gone and docs/gone.md#tolerances."""'
    assert dead_citations(text) == ["docs/recurrences.md#gone", "docs/gone.md#tolerances"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_documents_name_files_that_exist(document: Path) -> None:
    """Paths in code spans that start with a folder of the repository."""
    text = document.read_text()
    paths = re.findall(r"`((?:ssmperf|impls|suites|reports|examples|tests|ci|docs)/[\w./-]+)`", text)
    missing = [path for path in paths if not (ROOT / path).exists() and "my_" not in path]
    assert missing == []


def test_every_recurrence_has_its_section() -> None:
    headings = anchors((DOCS / "recurrences.md").read_text())
    assert set(built_in_names(registry.recurrences())) - headings == set()


def test_every_model_is_described() -> None:
    """The name in a code span; of the LCSM grid, the form of its names."""
    spans = set(SPAN.findall(FENCED.sub("", (DOCS / "recurrences.md").read_text())))
    names = [name for name in built_in_names(registry.models()) if not name.startswith("lcsm:")]
    assert len(names) > 50
    assert set(names) - spans == set()
    assert "lcsm:e-o-s-a[:tau]" in spans


def built_in_names(entries: dict[str, Any]) -> list[str]:
    """Names whose code is the repository's; not those that other tests planted."""
    code = {name: getattr(entry, "cls", None) or entry.definition for name, entry in entries.items()}
    return [name for name, source in code.items() if source.__module__.startswith("ssmperf.")]


def test_the_documents_stay_small() -> None:
    """Leave out what `gunzip --keep` unpacked beside its archive."""
    files = [file for file in DOCS.rglob("*") if file.is_file()]
    kept = [file for file in files if not file.with_name(f"{file.name}.gz").exists()]
    assert sum(file.stat().st_size for file in kept) < LARGEST


def test_a_kept_run_can_be_shown_again() -> None:
    """As it is packed."""
    records = ssmperf.load(DOCS / "results" / "h200-lengths").records
    assert len(records) == 16
    assert sum(record.status is Status.OK for record in records) == 15
