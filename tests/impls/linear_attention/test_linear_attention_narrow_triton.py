"""Heads with few keys: their gradients take the values in at least two passes."""

from __future__ import annotations

from itertools import product

import pytest
from support.kernels.attention import assert_matches, case, configured, gpu


def test_values_take_two_passes_beside_fewer_than_64_keys() -> None:
    from ssmperf.impls.linear_attention._triton.tiles import values_at_once

    for V, BK, most in product(range(1, 257), (16, 32, 64, 128), (16, 32, 64)):
        BV = values_at_once(V, BK, most)
        assert 16 <= BV <= most
        assert V > BV or BV == 16 or BK >= 64


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["none", "const", "scalar", "key", "key_complex"])
@pytest.mark.parametrize("V", [24, 48, 64])
@pytest.mark.parametrize("K", [8, 16, 28, 32])
def test_narrow_heads_match_the_definition(K: int, V: int, kind: str) -> None:
    """Those with V from 17 to 64 failed in half types: wrong gradients, or an illegal memory access."""
    dtype = "float16" if kind == "scalar" else "bfloat16"
    assert_matches(case(T=333, kind=kind, dtype=dtype, H=3, K=K, V=V), dtype)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["const", "scalar"])
@pytest.mark.parametrize("K", [16, 32])
def test_narrow_heads_match_the_definition_by_chunks(
    K: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks beside each other had the same fault, where V from 33 to 64 took one pass."""
    configured(monkeypatch, walk=0)
    assert_matches(case(T=333, kind=kind, dtype="bfloat16", H=3, K=K, V=64), "bfloat16")


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["const", "scalar"])
@pytest.mark.parametrize("V", [1, 16, 64])
@pytest.mark.parametrize("K", [65, 113])
def test_odd_numbers_of_keys_match_the_definition(K: int, V: int, kind: str) -> None:
    """Their loads cannot be pipelined; a walk with such loads read outside of memory (found by fuzz)."""
    assert_matches(case(T=133, kind=kind, dtype="float16", H=2, K=K, V=V), "float16")
