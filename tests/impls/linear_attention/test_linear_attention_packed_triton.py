"""Packed sequences in the kernels of linear_attention: their bounds are read on the device alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.kernels.attention import (
    DEVICE,
    C,
    assert_matches,
    attention,
    bounds_of,
    case,
    cut_into,
    gpu,
    made_complex,
    packed_case,
    tiny,
)
from support.kernels.graphs import assert_follows_other_lengths, assert_reads_nothing_on_the_host, both_passes
from support.kernels.table import Operands, error, evaluate
from torch import Tensor

from ssmperf import UsageError
from ssmperf.engine.judge.loops.recording import no_waiting
from ssmperf.suitekit import registry

LENGTHS = (13, 0, 1, C, C + 1, 7, 0)
OTHERS = (0, C + 3, 0, 1, C - 1, 0, 19)  # of as many steps

CASES = [
    *((kind, walk, {}) for kind in ("none", "const", "scalar", "key") for walk in (0, 16)),
    *((kind, 16, {"regime": "reset"}) for kind in ("scalar", "key")),
    ("scalar", 16, {"state": False, "K": 20, "V": 33}),
    ("key", 0, {"K": 20, "V": 33, "dtype": "float16", "regime": "gla"}),
    *((kind, 16, {"dtype": "float16", "regime": "gla", "V": 33}) for kind in ("none", "const", "key")),
    *((kind, 16, {"dtype": "float16", "regime": "gla", "G": 1, "H": 4}) for kind in ("none", "scalar")),
    *((kind, 16, {}) for kind in ("const_complex", "scalar_complex", "key_complex", "both_complex")),
    *((kind, 0, {}) for kind in ("const_complex", "key_complex", "value")),
    *((kind, 16, {}) for kind in ("value", "both")),
]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what a plan allocates, since places of no chunk are never written."""
    empty = torch.empty_strided

    def poisoned(*arguments: Any, **options: Any) -> Tensor:
        found = empty(*arguments, **options)
        return found.fill_(math.nan if found.is_floating_point() or found.is_complex() else 7)

    monkeypatch.setattr(torch, "empty_strided", poisoned)


@tiny
def test_the_lengths_cut_sequences_everywhere() -> None:
    assert sum(LENGTHS) == sum(OTHERS) and len(LENGTHS) == len(OTHERS)


@pytest.mark.slow(
    but=(
        "none-16-options1",
        "scalar-16-options5",
        "const-16-options3",
        "key-0-options6",
        "scalar-16-options10",
        "none-16-options12",
        "value-0-options23",
    )
)
@tiny
@pytest.mark.parametrize(("kind", "walk", "options"), CASES)
def test_packed_sequences_match_the_definition(
    kind: str, walk: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=walk)
    operands, bounds = packed_case(LENGTHS, kind, **options)
    assert_matches(operands, options.get("dtype", "float32"), bounds)


@pytest.mark.slow(but=("none",))
@tiny
@pytest.mark.parametrize("kind", ["none", "scalar", "key"])
def test_packed_sequences_with_a_few_columns_behind_whole_strips(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=64, inner=64)
    operands, bounds = packed_case(LENGTHS, kind, V=129, dtype="float16", regime="gla")
    assert_matches(operands, "float16", bounds)


@tiny
@pytest.mark.parametrize("kind", ["none", "scalar", "key"])
def test_each_packed_sequence_is_walked_in_segments(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have fewer chunks than segments."""
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import walking

    cut_into(monkeypatch, walk=16, fill=3 * 4)
    operands, bounds = packed_case((3 * C + 5, 0, C + 1, 1), kind, H=1)
    slots = [Slot.of(operands[name]) for name in "qv"]
    schedule = walking.Walk.of(Plan(slots), *slots, None, pairs=False, bounds=Slot.of(bounds))
    assert schedule.segments == (3, 2)
    assert_matches(operands, bounds=bounds)


@pytest.mark.slow(but=("none-*", "scalar-*"))
@tiny
@pytest.mark.parametrize(("kind", "bonus", "state"), [
    ("none", True, True), ("key", True, True), ("scalar", True, False), ("key", False, True),
    ("key_complex", False, True),
])  # fmt: skip
def test_a_read_before_the_write_stays_in_its_sequence(
    kind: str, bonus: bool, state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=16)
    operands, bounds = packed_case((70, 0, 1, 64, 65, 7, 0), kind, H=1, state=state)
    operands["read"] = "pre"
    if bonus:
        operands["bonus"] = torch.linspace(-1, 1, 16, device=DEVICE).view(1, 16).requires_grad_()
    assert_matches(operands, bounds=bounds)


@tiny
def test_packed_complex_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16)
    operands, bounds = packed_case((C + 1, 0, 3), "key_complex", H=1)
    made_complex(operands, "qkv")
    assert_matches(operands, bounds=bounds)


@tiny
@pytest.mark.parametrize("read", ["post", "pre"])
@pytest.mark.parametrize("kind", ["const", "scalar", "key", "key_complex", "both"])
def test_a_second_call_reads_nothing_on_the_host(
    kind: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=16)
    operands, bounds = packed_case((5, 0, 3), kind, H=1, V=8)
    if read == "pre":
        operands |= {"read": read, "bonus": torch.ones(1, 16, device=DEVICE, requires_grad=True)}
    call = partial(evaluate, operands=operands)
    assert_reads_nothing_on_the_host(monkeypatch, lambda: call(partial(attention, cu_seqlens=bounds)))


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("walk", [0, 16])
@pytest.mark.parametrize("kind", ["none", "key"])
def test_the_plan_of_a_call_follows_other_bounds(
    kind: str, walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssmperf.impls.linear_attention._triton import function

    cut_into(monkeypatch, walk=walk)
    operands, bounds = packed_case(LENGTHS, kind)
    evaluate(partial(attention, cu_seqlens=bounds), operands)
    plans = [dict(each.plans) for each in (function.forward_pass, function.backward_pass)]
    assert all(plans)
    assert_matches(operands, bounds=bounds_of(OTHERS))
    assert [each.plans for each in (function.forward_pass, function.backward_pass)] == plans


MALFORMED = [(0, 90, 40, 86), (-50, 3, 70, 10**6), (86, 0, 86, 0), (0, 0, 0, 0), (500, 400, 300, 200)]


@tiny
@pytest.mark.parametrize("bounds", MALFORMED)
def test_places_of_malformed_bounds_lie_inside(bounds: Sequence[int]) -> None:
    """Kernels read steps from `start` up to `end`, and write at places."""
    from ssmperf.impls._triton.plan import Plan, Slot, planned
    from ssmperf.impls._triton.sequences import Packing

    T = 86

    def find(plan: Plan, bounds: Slot) -> tuple[Slot]:
        packing = Packing.of(plan, bounds, T, C)
        assert packing is not None
        return (packing.places,)

    (places,) = planned(find)(torch.tensor(bounds, device=DEVICE))
    start, end, number, first = places.cpu()
    assert bool(((first >= 0) & (first <= start) & (start <= end) & (end <= T)).all())
    assert bool(((number >= 0) & (number < 3)).all())


@tiny
@pytest.mark.parametrize("bounds", MALFORMED)
def test_malformed_bounds_write_nothing_outside(
    bounds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the results are: the tokens of the operands and what lies around them stay as they were."""
    from ssmperf.impls.scan import common

    cut_into(monkeypatch, walk=16)
    monkeypatch.setattr(common, "_listed", lambda cu_seqlens, T: [])
    operands = case(T=86, kind="key", H=1)
    operands["initial_state"] = torch.ones(3, 1, 16, 16, device=DEVICE, requires_grad=True)
    before = {name: x.detach().clone() for name, x in operands.items() if isinstance(x, Tensor)}
    found = evaluate(partial(attention, cu_seqlens=torch.tensor(bounds, device=DEVICE)), operands)
    assert found.output.shape == operands["v"].shape
    for name, x in before.items():
        assert torch.equal(operands[name], x)


@tiny
def test_bounds_are_checked_where_that_is_free_and_once_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from ssmperf.impls.scan import common

    monkeypatch.setattr(common, "_checked", set())
    v = torch.zeros(1, 8, 1, 2)
    good, bad = torch.tensor([0, 3, 8]), torch.tensor([0, 9, 8])
    for _ in range(2):
        with pytest.raises(UsageError, match="must not decrease"):
            common.bounds_on_device(bad, v, (1, 2, 2), None)
    monkeypatch.setattr(common, "is_on_host", lambda x: False)
    common._checked.clear()
    with pytest.raises(UsageError, match="must not decrease"):
        common.bounds_on_device(bad, v, (1, 2, 2), None)
    assert common.bounds_on_device(good, v, (1, 2, 2), None) is good
    assert common.bounds_on_device(bad, v, (1, 2, 2), None) is bad
    with pytest.raises(UsageError, match="one of each sequence"):
        common.bounds_on_device(good, v, (1, 2, 2), torch.zeros(1, 1, 2, 2))


GRAPHS = [
    *((kind, dtype, {}) for kind in ("none", "const", "scalar", "key") for dtype in ("float32", "bfloat16")),
    ("key_complex", "bfloat16", {}),
    ("scalar", "bfloat16", {"V": 129}),
    ("none", "float16", {"G": 1, "H": 4}),
    ("both", "bfloat16", {}),
    ("key", "bfloat16", {"read": "pre"}),
]


def drawn(kind: str, dtype: str, lengths: Sequence[int], options: dict[str, Any]) -> Operands:
    read = options.pop("read", "post")
    operands, _ = packed_case(lengths, kind, dtype=dtype, **{"K": 64, "V": 64, "regime": "gla", **options})
    if read == "pre":
        operands |= {"read": read, "bonus": torch.ones(2, 64, device=DEVICE, requires_grad=True)}
    return operands


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("kind", "dtype", "options"), GRAPHS)
def test_a_graph_follows_other_lengths(kind: str, dtype: str, options: dict[str, Any]) -> None:
    lengths = [(300, 0, 1, 64, 130, 17), (0, 0, 511, 1, 0, 0), (64, 64, 64, 64, 128, 128)]
    limit = 1e-4 if dtype == "float32" else 4e-2
    assert_follows_other_lengths(
        attention,
        registry.recurrence("linear_attention").definition,
        drawn(kind, dtype, lengths[0], dict(options)),
        [bounds_of(each) for each in lengths],
        close=lambda got, want: error(got, want) < limit,
    )


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("kind", "dtype", "options"), GRAPHS)
def test_a_second_call_does_not_wait_for_the_device(kind: str, dtype: str, options: dict[str, Any]) -> None:
    lengths = (300, 0, 1, 64, 130, 17)
    operands = drawn(kind, dtype, lengths, dict(options))
    weights = [torch.ones_like(x) for x in attention(**operands, cu_seqlens=bounds_of(lengths))]
    bounds = [bounds_of(lengths), bounds_of(lengths[::-1])]
    both_passes(attention, operands, bounds[0], weights)
    with no_waiting():
        both_passes(attention, operands, bounds[1], weights)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kind", ["none", "scalar", "key"])
def test_long_packed_sequences_match_separate_calls(kind: str) -> None:
    lengths = (1300, 547, 2048, 963, 271, 3063)
    operands, bounds = packed_case(lengths, kind, dtype="bfloat16", regime="gla", K=128, V=128)
    got = evaluate(partial(attention, cu_seqlens=bounds), operands)
    from ssmperf.impls.scan.common import one_by_one

    def apart(initial_state: Tensor, **others: Any) -> Any:
        return one_by_one(attention, bounds, others, initial_state)

    for (name, value, _), (_, other, _) in zip(got.items(), evaluate(apart, operands).items(), strict=True):
        assert error(value, other) < 2e-2, name


@pytest.mark.gpu
@gpu
def test_bounds_on_the_cpu_are_moved_and_refused_during_capture() -> None:
    operands, bounds = packed_case((100, 28), "none", dtype="bfloat16")
    with torch.no_grad():
        want = attention(**operands, cu_seqlens=bounds)
        got = attention(**operands, cu_seqlens=bounds.cpu())
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y)
        graph, moved = torch.cuda.CUDAGraph(), bounds.cpu()
        with pytest.raises(UsageError, match="lies on the CPU"), torch.cuda.graph(graph):
            torch.neg(bounds)  # torch warns of an empty graph
            attention(**operands, cu_seqlens=moved)
