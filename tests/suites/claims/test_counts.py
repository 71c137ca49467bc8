"""The networks of Longhorn's Table 3, counted by hand from the authors' training code."""

from __future__ import annotations

import pytest
from ssmperf.suites.claims.longhorn_parameters import NAMES, ROWS

NETWORKS = {"120M": (768, 12, 12), "350M": (1024, 24, 16)}  # width d, layers, heads h
TOKENS, POSITIONS = 50304, 1024
GLU = {768: 2048, 1024: 2816}  # 8/3 of the width, rounded up to a multiple of 256


def mamba(d: int, h: int, *, has_A: bool = True) -> int:
    """Count two blocks: projections in and out, convolution with bias, low rank, B, C, Δ, A, D and a norm."""
    inner, rank, N = 2 * d, d // 16, 16
    low = inner * (rank + 2 * N) + rank * inner + inner
    return 2 * (3 * d * inner + 5 * inner + low + has_A * inner * N + inner + d)


def longhorn(d: int, h: int) -> int:
    return mamba(d, h, has_A=False)


def gla(d: int, h: int) -> int:
    """Count q and k of d/2, v, gate with bias and output, a low-rank decay, a GLU and two norms."""
    return 4 * d * d + d + 16 * d + 17 * d // 2 + 3 * d * GLU[d] + 2 * d


def retnet(d: int, h: int) -> int:
    """Count q and k, then v, gate, output and the GLU's three maps of int(1.8 d)//h·h, and two norms."""
    return 2 * d * d + 6 * d * (int(1.8 * d) // h * h) + 2 * d


def rwkv(d: int, h: int) -> int:
    """Count r, k, v, gate, output, two maps of 3 d and a receptance; token shifts, norms, decays, bonuses."""
    return (5 + 2 * 3 + 1) * d * d + (4 + 2) * d + (2 + 2) * d + 2 * h


def llama(d: int, h: int) -> int:
    return 4 * d * d + 3 * d * GLU[d] + 2 * d


BY_HAND = {"Longhorn": longhorn, "Mamba": mamba, "GLA": gla, "RetNet": retnet, "RWKV": rwkv, "LLaMA": llama}


@pytest.mark.parametrize("size", NAMES)
@pytest.mark.parametrize("name", ROWS)
def test_the_ten_rows_of_table_3_and_llamas_are_counted(name: str, size: str) -> None:
    d, layers, h = NETWORKS[size]
    positions = POSITIONS if name == "RWKV" else 0
    want = (TOKENS + positions) * d + layers * BY_HAND[name](d, h) + d  # one more norm
    assert ROWS[name].count(NAMES.index(size)) == want


@pytest.mark.parametrize(
    ("name", "size", "millions"),
    [
        ("Longhorn", "350M", 369.97), ("GLA", "350M", 360.47),
        ("RetNet", "120M", 129.12), ("RetNet", "350M", 373.21),
        ("RWKV", "120M", 124.45), ("RWKV", "350M", 354.80),
    ],
)  # fmt: skip
def test_counts_in_millions(name: str, size: str, millions: float) -> None:
    assert round(ROWS[name].count(NAMES.index(size)) / 1e6, 2) == millions
