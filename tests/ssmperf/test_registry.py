"""Registration and look-up: unknown names list the nearest, a name is registered once."""

from __future__ import annotations

from pathlib import Path

import pytest

import ssmperf
from ssmperf import DuplicateName, PluginError, UnknownName, registry


def test_unknown_names_list_the_known_and_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean hgrn.*known: gateloop"):
        registry.model("hgrm")
    with pytest.raises(UnknownName, match="did you mean blelloch"):
        registry.backend("scan", "bleloch")
    with pytest.raises(UnknownName, match="linear_attention"):
        registry.recurrence("linear_atention")
    with pytest.raises(UnknownName, match="model or recurrence"):
        ssmperf.backends("nothing")


def test_a_backend_of_a_model_is_found_through_its_recurrence() -> None:
    assert registry.backend("hgrn", "blelloch") is registry.backend("scan", "blelloch")
    assert registry.recurrence_of("hgrn") == "scan"
    assert registry.recurrence_of("scan") == "scan"


@pytest.mark.parametrize("name", ["blelloch", "triton"])
def test_a_built_in_backend_s_name_is_taken_even_before_its_file_is_imported(name: str) -> None:
    with pytest.raises(DuplicateName, match=f"scan/{name}"):
        ssmperf.backend("scan", name=name)(lambda log_a, b: None)


def test_a_plugin_is_loaded_once_and_its_names_stay_unique(tmp_path: Path) -> None:
    source = (
        "import ssmperf\n@ssmperf.backend('scan', name='brought_by_a_test')\ndef f(log_a, b): return b, b\n"
    )
    (tmp_path / "one.py").write_text(source)
    (tmp_path / "two.py").write_text(source)
    registry.load_plugin(tmp_path / "one.py")
    registry.load_plugin(tmp_path / "one.py")
    assert "brought_by_a_test" in registry.backend_names("hgrn")
    with pytest.raises(DuplicateName, match="brought_by_a_test"):
        registry.load_plugin(tmp_path / "two.py")


def test_a_plugin_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(PluginError, match=r"bad\.py: ZeroDivisionError"):
        registry.load_plugin(tmp_path / "bad.py")
    with pytest.raises(PluginError, match="no such file"):
        registry.load_plugin(tmp_path / "none.py")


def test_models_tell_their_paper_and_recurrence() -> None:
    assert len(ssmperf.models()) >= 16
    for entry in ssmperf.models():
        assert entry.paper
        assert entry.recurrence in registry.recurrences()
        assert entry.shapes("smoke")
