"""References of models: `title (year), arXiv:number, place`, several joined by semicolons."""

from __future__ import annotations

import re

import pytest

from ssmperf.suitekit import registry

REFERENCE = re.compile(
    r"(?P<title>[^();]+(?:\([^();]+\)[^();]+)*) \((?P<year>\d{4}|undated)\), "
    r"(?:arXiv:(?P<arxiv>\d{4}\.\d{4,5})|(?P<venue>[A-Z][^,;]+)|no arXiv number), (?P<place>[^;]+)"
)
PLACE = re.compile(
    r"section|eqs?\. |Table|Fig\. |theorem|proposition|algorithm|appendix|example"
    r"|form|S4D-|S6|Attention|rule|update"
)
MODELS = sorted(registry.models())


def parse(paper: str) -> list[re.Match[str]]:
    found = [REFERENCE.fullmatch(reference) for reference in paper.split("; ")]
    assert all(found), f"not title (year), arXiv:number, place: {paper!r}"
    return [reference for reference in found if reference is not None]


@pytest.mark.parametrize("name", MODELS)
def test_a_reference_has_title_year_number_and_place(name: str) -> None:
    for reference in parse(registry.model(name).paper):
        assert len(reference["title"]) > 15
        assert PLACE.search(reference["place"]), reference["place"]
        if reference["arxiv"]:
            assert reference["year"] == f"20{reference['arxiv'][:2]}"
        else:
            assert reference["venue"] or reference["year"] == "undated"


def test_one_number_has_one_title() -> None:
    titles: dict[str, set[str]] = {}
    for name in MODELS:
        for reference in parse(registry.model(name).paper):
            if reference["arxiv"]:
                titles.setdefault(reference["arxiv"], set()).add(reference["title"])
    assert len(titles) >= 30
    assert all(len(found) == 1 for found in titles.values())


@pytest.mark.parametrize(
    ("name", "cited"),
    [
        (
            "longhorn",
            "Longhorn: State Space Models are Amortized Online Learners (2024), arXiv:2407.14207, eqs. 8–9",
        ),
        ("longhorn_exact", "arXiv:2407.14207, theorem 3.1"),
        ("gfw", "Gated Fast Weights for Associative Retrieval (2018)"),
        (
            "gru",
            "RNN Encoder-Decoder for Statistical Machine Translation (2014), arXiv:1406.1078",
        ),
        ("mingru", "On the Linearization of Recurrent Modeling (undated), no arXiv number"),
        ("minlstm", "On the Linearization of Recurrent Modeling (undated), no arXiv number"),
        ("mamba_zoh", "On the Linearization of Recurrent Modeling (undated), no arXiv number"),
        ("f4_vector", "arXiv:2510.26692"),
        ("f4_scalar", "arXiv:2412.06464"),
        ("gateloop_fixed", "arXiv:2311.01927, Fig. 6"),
    ],
)
def test_models_cite_their_source(name: str, cited: str) -> None:
    assert cited in registry.model(name).paper


@pytest.mark.parametrize(
    "wrong",
    [
        "Longhorn (Liu et al., 2024), eqs. 8–9",
        "Longhorn: State Space Models are Amortized Online Learners (2024), arXiv:2407.14207",
        "Longhorn: State Space Models are Amortized Online Learners, arXiv:2407.14207, eqs. 8–9",
        "Longhorn: State Space Models are Amortized Online Learners (2024), arXiv:24.07, eqs. 8–9",
    ],
)
def test_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(AssertionError, match="title"):
        parse(wrong)
