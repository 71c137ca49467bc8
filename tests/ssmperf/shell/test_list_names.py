"""`ssmperf list` with a word that is no model, but stands in a model's description."""

from __future__ import annotations

import pytest

from ssmperf.errors import UnknownName, UsageError
from ssmperf.shell.terminal.lists import listing


def test_a_word_of_a_description_names_its_model() -> None:
    with pytest.raises(
        UsageError, match="'s6', a word in the description of mamba_zoh: try `list mamba_zoh`"
    ):
        listing.model("s6")


@pytest.mark.parametrize("word", ["hgrm", "gated", ""])
def test_other_words_are_unknown(word: str) -> None:
    with pytest.raises(UnknownName):
        listing.model(word)
