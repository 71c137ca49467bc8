"""Longhorn, Table 3: the parameters of the networks that were compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._counting import COUNTS, count, of_count

VOCABULARY = 50304  # GPT-2's tokens, padded to a multiple of 64, as in Longhorn's published training code
MAMBA = ({"D": 1536, "N": 16}, 24), ({"D": 2048, "N": 16}, 48)  # sizes and blocks of the two networks
ATTENTION = ({"H": 4, "K": 192, "V": 192}, 12), ({"H": 4, "K": 256, "V": 256}, 24)
NARROW_KEYS = ({"H": 4, "K": 96, "V": 192}, 12), ({"H": 4, "K": 128, "V": 256}, 24)
RWKV = ({"H": 12, "K": 64, "V": 64}, 12), ({"H": 16, "K": 64, "V": 64}, 24)
SMALL, MEDIUM = "120M", "350M"
# model, its sizes, width inside the channel mixing by network, printed counts, whether the sizes are stated
ROWS: dict[str, tuple[str, Any, tuple[int, int] | None, tuple[str, str], bool]] = {
    "Longhorn": ("longhorn", MAMBA, None, ("128.6", "369.8"), True),
    "Mamba": ("mamba", MAMBA, None, ("129.2", "371.5"), True),
    "GLA": ("gla", NARROW_KEYS, (2048, 2816), ("123.8", "361.1"), False),
    "RetNet": ("retnet", ATTENTION, (3072, 4096), ("129.1", "373.2"), False),
    "RWKV": ("rwkv5", RWKV, None, ("124.4", "354.8"), False),
}
NOTES = {
    "Longhorn, 350M": "its block is Mamba's without A: 48 · 2048 · 16 parameters fewer than the printed "
    "371.5 M of Mamba are 370.0 M, and no sizes that both networks share give 128.6 and 369.8",
    "RWKV, 120M": "counted as RWKV-5; the paper does not say which version it trained",
    "RWKV, 350M": "counted as RWKV-5; the paper does not say which version it trained",
}


@claim(
    "longhorn:parameters",
    paper=papers.LONGHORN,
    place="Tables 2 and 3",
    statement="The networks that are compared have these numbers of parameters.",
    printed="120M class: Longhorn 128.6 M, Mamba 129.2, GLA 123.8, RetNet 129.1, RWKV 124.4; "
    "350M class: 369.8, 371.5, 361.1, 373.2, 354.8",
    runs="parameters of whole networks (blocks, tied embeddings of 50,304 tokens), counted without "
    "allocating",
    scaled="nothing. Sizes that the paper does not state are those of the layer's own paper",
    rule="agrees: our count rounds to the printed one; disagrees: it does not; cannot tell: it does not, "
    "and the paper does not state the sizes",
    budget_s=30,
)
class Parameters:
    """One count per network."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (COUNTS,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        found = {}
        for row, (model, networks, widths, _, _) in ROWS.items():
            for place, size in enumerate((SMALL, MEDIUM)):
                sizes, layers = networks[place]
                options = {} if widths is None else {"block_options": {"hidden": widths[place]}}
                found[f"{row}, {size}"] = count(
                    model, sizes, layers=layers, vocabulary=VOCABULARY, tied=True, **options
                )
        return found

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        counts = found.get(COUNTS, {})
        for place, size in enumerate((SMALL, MEDIUM)):
            for row, (_, _, _, printed, stated) in ROWS.items():
                name = f"{row}, {size}"
                yield of_count(
                    name, printed[place], counts.get(name), stated=stated, note=NOTES.get(name, "")
                )
