"""Key heads that several heads of values share, in the Triton kernels of linear_attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls.linear_attention._triton import function
from support.kernels.attention import C, assert_matches, attention, case, cut_into, gpu, tiny
from support.kernels.table import Operands
from torch import Tensor

H = 4


def fewer(operands: Operands, heads: int) -> Operands:
    """Keep so many heads of q and k."""
    kept = {name: operands[name].detach()[:, :, :heads].clone().requires_grad_() for name in "qk"}
    return {**operands, **kept}


def heads_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the heads of q and of k with which kernels will be called."""
    heads: list[int] = []
    original = function.forward_pass

    def recorded(q: Tensor, k: Tensor, *rest: Any, **flags: Any) -> Any:
        heads.extend((q.shape[2], k.shape[2]))
        return original(q, k, *rest, **flags)

    monkeypatch.setattr(function, "forward_pass", recorded)
    return heads


@tiny
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", ["none", "const", "scalar", "key"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shared_keys_match_the_definition(
    kind: str, heads: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=16, fill=3)
    operands = case(T=4 * C + 3, kind=kind, H=H, dtype=dtype, regime="gla")
    assert_matches(fewer(operands, heads), dtype)


@tiny
@pytest.mark.parametrize("regime", ["reset", "small"])
def test_shared_keys_beside_strong_decay(regime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16)
    operands = case(T=2 * C, kind="scalar", H=H, dtype="float16", regime=regime)
    assert_matches(fewer(operands, 2), "float16")


@tiny
def test_shared_keys_by_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no walk fits, they are repeated."""
    cut_into(monkeypatch, walk=0)
    operands = case(T=C + 3, kind="scalar", H=H, K=20, dtype="float16", regime="gla")
    assert_matches(fewer(operands, 2), "float16")


@tiny
def test_an_expanded_head_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Mamba-2 has it: views of one head, of which no call makes copies."""
    cut_into(monkeypatch, walk=16)
    heads = heads_taken(monkeypatch)
    operands = case(T=C + 3, kind="scalar", H=H, dtype="float16", regime="gla")
    one = fewer(operands, 1)
    expanded = {**one, **{name: one[name].detach().expand(-1, -1, H, -1) for name in "qk"}}
    with torch.no_grad():
        found, expected = attention(**expanded), attention(**one)
    assert heads == [1, 1, 1, 1]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@tiny
@pytest.mark.parametrize("walk", [0, 16])
def test_an_expanded_head_is_taken_once_for_its_gradient_too(
    walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's own gradient is the sum of those of its views, and as of a call with one head."""
    cut_into(monkeypatch, walk=walk)
    heads = heads_taken(monkeypatch)
    operands = case(T=C + 3, kind="scalar", H=H, dtype="float16", regime="gla")
    grads = []
    for views in (False, True):
        one = fewer(operands, 1)
        shown = {name: one[name].expand(-1, -1, H, -1) for name in "qk"} if views else {}
        o, last = attention(**{**one, **shown})
        names = ("q", "k", "v", "log_a")
        grads.append(torch.autograd.grad((o.float() ** 2).sum() + last.sum(), [one[name] for name in names]))
    assert heads == [1, 1, 1, 1]
    for own, of_views in zip(*grads, strict=True):
        torch.testing.assert_close(own, of_views, rtol=2e-3, atol=2e-3 * float(own.abs().max()))


@tiny
def test_an_expanded_leaf_gets_a_gradient_for_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16)
    operands = case(T=C + 3, kind="scalar", H=H, dtype="float16", regime="gla")
    for name in "qk":
        one = operands[name].detach()[:, :, :1].clone()
        operands[name] = one.expand(-1, -1, H, -1).requires_grad_()
    assert_matches(operands, "float16")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("heads", "T"), [(1, 1000), (4, 67)])
@pytest.mark.parametrize("kind", ["none", "const", "scalar"])
@pytest.mark.parametrize("regime", ["gla", "reset"])
def test_shared_keys_on_a_gpu(kind: str, heads: int, T: int, regime: str) -> None:
    operands = case(T=T, kind=kind, H=8, K=128, V=64, dtype="bfloat16", regime=regime)
    assert_matches(fewer(operands, heads), "bfloat16")
