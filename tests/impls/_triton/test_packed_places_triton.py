"""Places of the parts of packed sequences, which kernels find on the device: chunks and segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.kernels.attention import DEVICE, bounds_of, tiny
from torch import Tensor

lengths_of_sequences = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any)


def cut(lengths: Sequence[int], unit: int) -> list[tuple[int, int, int, int]]:
    """List first step, end, sequence and number of each part of so many steps."""
    return [
        (start, min(start + unit, end), number, part)
        for number, (first, end) in enumerate(pairwise(accumulate(lengths, initial=0)))
        for part, start in enumerate(range(first, end, unit))
    ]


def assert_apart(spans: Sequence[tuple[int, int]], most: int) -> None:
    """Spans of places follow one another, up to `most`."""
    ends = [0, *(end for _, end in spans)]
    assert all(end <= begin for end, (begin, _) in zip(ends, spans, strict=False))
    assert ends[-1] <= most


@pytest.mark.slow
@tiny
@settings(max_examples=30, deadline=None, derandomize=True)
@example(lengths=[0, 13, 0, 0, 16, 17, 1, 0])
@example(lengths=[1] * 300)  # more places than a program has
@given(lengths=lengths_of_sequences)
def test_each_chunk_has_a_place_and_the_others_are_empty(lengths: list[int]) -> None:
    from ssmperf.impls._triton.plan import Plan, Slot, planned
    from ssmperf.impls._triton.sequences import Packing

    T, C = sum(lengths), 16

    def find(plan: Plan, bounds: Slot) -> tuple[Slot]:
        packing = Packing.of(plan, bounds, T, C)
        assert packing is not None
        return (packing.places,)

    (places,) = planned(find)(bounds_of(lengths))
    starts, ends, numbers, firsts = places.tolist()
    bounds = [0, *accumulate(lengths)]
    expected = [
        (start, bounds[number + 1], number, bounds[number]) for start, _, number, _ in cut(lengths, C)
    ]
    assert len(starts) == T // C + len(lengths)
    assert [x for x in zip(starts, ends, numbers, firsts, strict=True) if x[0] < x[1]] == expected


@tiny
@settings(max_examples=30, deadline=None, derandomize=True)
@example(lengths=[0, 13, 0, 0, 16, 17, 1, 0], stretches=1)
@example(lengths=[1] * 300, stretches=2)
@given(lengths=lengths_of_sequences, stretches=st.integers(1, 4))
def test_each_segment_has_places_for_checkpoints_and_step_blocks(lengths: list[int], stretches: int) -> None:
    from ssmperf.impls._triton.plan import Plan, Slot, planned
    from ssmperf.impls.selective_scan._triton.packed import Packed

    checkpoint, steps = 8, 2
    length = stretches * checkpoint
    packed = Packed(sum(lengths), len(lengths), length, checkpoint, steps)

    def find(plan: Plan, bounds: Slot) -> tuple[Slot]:
        return (packed.table(plan, bounds),)

    (table,) = planned(find)(bounds_of(lengths))
    rows = [row for row in table.t().tolist() if row[0] < row[1]]
    counts = [-(-each // length) for each in lengths]
    expected = [(*part, counts[part[2]] - 1 - part[3]) for part in cut(lengths, length)]
    assert [tuple(row[:5]) for row in rows] == expected
    empty = [row for row in table.t().tolist() if row[0] >= row[1]]
    assert all(row[3:5] == [-1, -1] for row in empty) and len(rows) + len(empty) == packed.segments
    assert packed.several or max(counts) == 1

    sizes = [end - first for first, end, *_ in rows]
    held = [(row[5], row[5] - (-size // checkpoint)) for row, size in zip(rows, sizes, strict=True)]
    assert_apart(held, packed.checkpoints)
    most = checkpoint // steps
    noted = [(row[6], row[6] + min(most, -(-size // steps))) for row, size in zip(rows, sizes, strict=True)]
    assert_apart(noted, packed.blocks)


@tiny
def test_bounds_of_either_width_are_read() -> None:
    from ssmperf.impls._triton.plan import Plan, Slot, planned
    from ssmperf.impls._triton.sequences import Packing

    def find(plan: Plan, bounds: Slot) -> tuple[Slot]:
        packing = Packing.of(plan, bounds, 9, 4)
        assert packing is not None
        return (packing.places,)

    found: list[Tensor] = [
        planned(find)(torch.tensor([0, 5, 9], dtype=dtype, device=DEVICE))[0]
        for dtype in (torch.int32, torch.int64)
    ]
    assert torch.equal(*found)
