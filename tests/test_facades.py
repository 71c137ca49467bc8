"""The façades: what they list can be imported, and documents write no other name of `ssmperf`."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import ssmperf

ROOT = Path(__file__).parents[1]
FACADES = ("ssmperf", "ssmperf.authoring", "ssmperf.suitekit")
STARTER = ROOT / "ssmperf" / "authors" / "starter"
SHOWN = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *STARTER.glob("*.py"), *STARTER.glob("files/*")]
)
ATTRIBUTE = re.compile(r"(?<![\w/.\-])ssmperf\.(\w+(?:\.\w+)*)")
IMPORT = re.compile(r"^ *from (ssmperf[\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)


def written_names(text: str) -> set[str]:
    """List the dotted names of `ssmperf` that a text reads or imports."""
    found = {f"ssmperf.{name}" for name in ATTRIBUTE.findall(text)}
    for module, names in IMPORT.findall(text):
        found |= {f"{module}.{name}" for name in re.findall(r"\w+", names.partition("#")[0])}
    return found


def exists(name: str) -> bool:
    """Tell whether a dotted name leads to a module or to what it has."""
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.parametrize("facade", FACADES)
def test_each_listed_name_can_be_imported(facade: str) -> None:
    module = importlib.import_module(facade)
    assert dir(module) == module.__all__
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []


@pytest.mark.parametrize("facade", FACADES[1:])
def test_each_name_is_the_same_in_ssmperf(facade: str) -> None:
    module = importlib.import_module(facade)
    other = [name for name in module.__all__ if getattr(ssmperf, name) is not getattr(module, name)]
    assert other == []


@pytest.mark.parametrize("facade", FACADES)
def test_an_unknown_name_is_refused(facade: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{facade}' has no attribute 'nothing'"):
        _ = importlib.import_module(facade).nothing


@pytest.mark.parametrize("document", SHOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_names_in_documents_can_be_imported(document: Path) -> None:
    assert [name for name in sorted(written_names(document.read_text())) if not exists(name)] == []


def test_a_missing_name_is_found() -> None:
    text = "`ssmperf.gone`\nfrom ssmperf import (\n    run,\n    lost,\n)\nfrom ssmperf.suitekit import gone"
    found = written_names(text)
    assert found == {
        "ssmperf.gone",
        "ssmperf.run",
        "ssmperf.lost",
        "ssmperf.suitekit",
        "ssmperf.suitekit.gone",
    }
    assert {name for name in found if not exists(name)} == {
        "ssmperf.gone",
        "ssmperf.lost",
        "ssmperf.suitekit.gone",
    }
