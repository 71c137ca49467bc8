"""Packed sequences and keys that heads share: what separate runs and repeated keys give, by each backend."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import BrokenContract, UsageError, compute, registry

H, K, V, BOUNDS = 4, 3, 2, (0, 5, 5, 6, 17)
BACKENDS = ("sequential", "blelloch", "hillis_steele", "chunkwise", "surrogate", "surrogate_softmax")
Operands = dict[str, Any]


def operands(*, heads: int = H, kind: str = "key", T: int = BOUNDS[-1], B: int = 1) -> Operands:
    generator = torch.Generator().manual_seed(3)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    gates = {"key": (B, T, H, K), "scalar": (B, T, H), "const": (H,), "none": None}[kind]
    return {
        "q": normal(B, T, heads, K),
        "k": normal(B, T, heads, K),
        "v": normal(B, T, H, V),
        "log_a": None if gates is None else -normal(*gates).abs(),
    }


def apart(function: Any, given: Operands, states: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Run each sequence on its own."""
    outputs, finals = [], []
    for number, (first, end) in enumerate(pairwise(BOUNDS)):
        state = None if states is None else states[number : number + 1]
        if first == end:
            finals.append(torch.zeros(1, H, K, V, dtype=torch.float64) if state is None else state)
            continue
        part = {name: x[:, first:end] if x is not None and x.dim() > 2 else x for name, x in given.items()}
        output, final = function(**part, initial_state=state)
        outputs.append(output)
        finals.append(final)
    return torch.cat(outputs, 1), None if finals[0] is None else torch.cat(finals)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("kind", ["key", "const"])
def test_packed_sequences_are_separate_runs(backend: str | None, kind: str) -> None:
    entry = registry.recurrence("linear_attention")
    function = entry.definition if backend is None else registry.backend("linear_attention", backend).function
    given = operands(kind=kind)
    stateful = backend != "surrogate_softmax"
    for states in (None, torch.randn(4, H, K, V, dtype=torch.float64)) if stateful else (None,):
        output, final = function(**given, initial_state=states, cu_seqlens=torch.tensor(BOUNDS))
        expected, last = apart(function, given, states)
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
        if last is not None:
            torch.testing.assert_close(final, last, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("heads", [1, 2])
def test_shared_keys_are_repeated_ones(backend: str | None, heads: int) -> None:
    entry = registry.recurrence("linear_attention")
    function = entry.definition if backend is None else registry.backend("linear_attention", backend).function
    given = operands(heads=heads)
    whole = {**given, **{name: given[name][:, :, [h * heads // H for h in range(H)]] for name in "qk"}}
    for got, want in zip(function(**given), function(**whole), strict=True):
        assert (got is None and want is None) or torch.equal(got, want)


def test_gradients_add_up_over_the_heads_that_share_a_key() -> None:
    given = operands(heads=2, kind="scalar")
    shared, repeated = (given["k"].clone().requires_grad_() for _ in range(2))
    function = registry.backend("linear_attention", "chunkwise").function
    function(**{**given, "k": shared})[0].square().sum().backward()
    whole = {**given, "q": given["q"].repeat_interleave(2, 2), "k": repeated.repeat_interleave(2, 2)}
    function(**whole)[0].square().sum().backward()
    torch.testing.assert_close(shared.grad, repeated.grad)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cu_seqlens": torch.tensor([0, 3])}, "must begin with 0 and end with T = 17"),
        ({"cu_seqlens": torch.tensor([0, 9, 4, 17])}, "must not decrease"),
        ({"cu_seqlens": torch.tensor([0.0, 17.0])}, "int32 or int64"),
        ({"cu_seqlens": torch.tensor([0, 17]), "initial_state": torch.zeros(2, H, K, V)}, "one of each"),
        ({"k": torch.zeros(1, 17, 3, K)}, "as many heads as v, or both a divisor"),
    ],
)
def test_what_does_not_fit_is_refused(changed: Operands, message: str) -> None:
    for function in (
        registry.recurrence("linear_attention").definition,
        registry.backend("linear_attention", "chunkwise").function,
    ):
        with pytest.raises(UsageError, match=message):
            function(**{**operands(), **changed})


def test_they_have_a_contract() -> None:
    given = {name: x.float() for name, x in operands(heads=2).items()}
    output, final = compute("linear_attention", "chunkwise", **given, cu_seqlens=torch.tensor(BOUNDS))
    assert (output.shape, final.shape) == ((1, BOUNDS[-1], H, V), (4, H, K, V))
    with pytest.raises((UsageError, BrokenContract)):
        compute("linear_attention", "chunkwise", **{**given, "k": given["k"][:, :5]})
