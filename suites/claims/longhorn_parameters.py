"""Longhorn, Table 3: the parameters of the networks that were compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._counting import COUNTS, count, of_count

VOCABULARY = 50304  # GPT-2's tokens, padded to a multiple of 64
POSITIONS = 1024
NAMES = "120M", "350M"
WIDTHS, LAYERS, HEADS = (768, 1024), (12, 24), (12, 16)


@dataclass(frozen=True)
class Row:
    """Two networks of the table, as the authors' training code builds them; pairs have one entry for each.

    sizes: of the model. hidden: widths inside the channel mixing. options: of the model.
    blocks: number of blocks for each layer of the paper.
    others: parameters of the code that our network does not have.
    """

    model: str
    printed: tuple[str, str]
    sizes: Sequence[Mapping[str, int]]
    hidden: tuple[int, int] | None = None
    options: Sequence[Mapping[str, Any]] = ({}, {})
    blocks: int = 1
    others: tuple[int, int] = (0, 0)

    def count(self, place: int) -> int:
        """Count the parameters of a network."""
        inside = {} if self.hidden is None else {"block_options": {"hidden": self.hidden[place]}}
        parameters = count(
            self.model,
            self.sizes[place],
            layers=self.blocks * LAYERS[place],
            vocabulary=VOCABULARY,
            tied=True,
            options=self.options[place],
            **inside,
        )
        return parameters + self.others[place]


def heads(K: int, *V: int) -> list[dict[str, int]]:
    """Give the sizes of both networks from the widths of a head."""
    return [{"H": H, "K": K, "V": value} for H, value in zip(HEADS, V, strict=True)]


INNER = [{"D": 2 * d, "N": 16} for d in WIDTHS]
VALUES = [int(1.8 * d) // H for d, H in zip(WIDTHS, HEADS, strict=True)]  # of a head of RetNet: 115 and 115
RETNET = [{"width": d, "glu": True} for d in WIDTHS]
# GLA's gate has a bias in the code, and its head norm has no weights
GLA_OTHERS = 12 * (768 - 64), 24 * (1024 - 64)
ROWS = {
    "Longhorn": Row("longhorn", ("128.6", "369.8"), INNER, blocks=2),
    "Mamba": Row("mamba", ("129.2", "371.5"), INNER, blocks=2),
    "GLA": Row("gla", ("123.8", "361.1"), heads(32, 64, 64), (2048, 2816), others=GLA_OTHERS),
    "RetNet": Row("retnet_xpos", ("129.1", "373.2"), heads(64, *VALUES), (1380, 1840), RETNET),
    "RWKV": Row(
        "rwkv5",
        ("124.4", "354.8"),
        heads(64, 64, 64),
        options=({"per_head": True},) * 2,
        others=(POSITIONS * 768, POSITIONS * 1024),
    ),
    "LLaMA": Row("attention", ("124.4", "357.7"), heads(64, 64, 64), (2048, 2816)),
}
AGAINST_CODE = "the paper differs from its authors' published code, which builds the network counted here"
NOTES = {
    "Longhorn, 350M": f"{AGAINST_CODE}: Mamba's block without A, 48 · 2048 · 16 parameters fewer than "
    "Mamba's 371.5 M",
    "GLA, 350M": AGAINST_CODE,
    "LLaMA, 120M": f"{AGAINST_CODE}; with 1,024 learned positions, which it lacks, it would have 124.37 M",
    "LLaMA, 350M": AGAINST_CODE,
    "RWKV, 120M": "RWKV-5 with one decay and one bonus per head, and with learned positions",
    "RWKV, 350M": "RWKV-5 with one decay and one bonus per head, and with learned positions",
}


@claim(
    "longhorn:parameters",
    paper=papers.LONGHORN,
    place="Tables 2 and 3",
    statement="The networks that are compared have these numbers of parameters.",
    printed="120M class: Longhorn 128.6 M, Mamba 129.2, GLA 123.8, RetNet 129.1, RWKV 124.4, LLaMA 124.4; "
    "350M class: 369.8, 371.5, 361.1, 373.2, 354.8, 357.7",
    runs="parameters of whole networks (blocks, tied embeddings of 50,304 tokens), counted without "
    "allocating",
    scaled="nothing. Sizes that the paper does not state are those of the authors' published training code",
    rule="agrees: our count rounds to the printed one; disagrees: it does not",
    doubts="The authors: a count is a count, but the code that they published may not be the one that made "
    "the table",
    budget_s=30,
    version=2,
)
class Parameters:
    """One count per network."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (COUNTS,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return {f"{name}, {size}": row.count(i) for name, row in ROWS.items() for i, size in enumerate(NAMES)}

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        counts = found.get(COUNTS, {})
        for place, size in enumerate(NAMES):
            for name, row in ROWS.items():
                what = f"{name}, {size}"
                yield of_count(what, row.printed[place], counts.get(what), note=NOTES.get(what, ""))
