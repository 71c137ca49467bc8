"""The walk through the chunks of a head, in Triton's interpreter with tiny tiles, against the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.attention import C, assert_matches, attention, case, cut_into, tiny
from support.table import detached, evaluate
from torch import Tensor

from ssmperf import registry


@pytest.fixture
def small_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where heads are walked."""
    cut_into(monkeypatch, walk=16)


@tiny
@pytest.mark.parametrize(
    ("kind", "T", "options"),
    [
        *((kind, T, {}) for kind in ("none", "const", "scalar", "key") for T in (1, 2 * C + 3)),
        *((kind, C + 1, {"K": 20, "V": 40}) for kind in ("scalar", "key")),
        *((kind, 2 * C, {"regime": regime}) for kind in ("scalar", "key") for regime in ("reset", "small")),
        ("key", C + 1, {"dtype": "float16", "regime": "retnet"}),
    ],
)
@pytest.mark.usefixtures("small_walk")
def test_a_walk_matches_the_definition(kind: str, T: int, options: dict[str, Any]) -> None:
    assert_matches(case(T=T, kind=kind, **options), options.get("dtype", "float32"))


@tiny
@pytest.mark.parametrize("kind", ["const", "scalar", "key"])
def test_a_walk_in_segments_matches_the_definition(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16, fill=3)
    assert_matches(case(T=4 * C + 3, kind=kind))  # of two, two and one chunks


@tiny
@pytest.mark.usefixtures("small_walk")
@pytest.mark.parametrize("kind", ["scalar", "key"])
def test_a_walk_takes_chunks_of_any_decay(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head has chunks beyond the operands' range beside others, and a reset; the other head has neither."""
    from ssmperf.impls.linear_attention._triton import walking

    monkeypatch.setitem(walking.LIMITS, torch.float32, 10.0)
    operands = case(T=4 * C, kind=kind, H=2)
    gates = operands["log_a"].detach().clone()
    gates[:, :C] *= 0.3
    gates[:, 2 * C : 3 * C] *= 0.3
    gates[:, 3 * C, 0, ...] = -math.inf
    gates[:, :, 1] *= 0.1
    operands["log_a"] = gates.requires_grad_()
    halves = gates.detach().unflatten(1, (-1, C // 2)).sum(2)  # (B, halves, H) or (B, halves, H, K)
    far = (halves.abs() > 10).flatten(3).any(-1) if halves.dim() == 4 else halves.abs() > 10
    assert {bool(each) for each in far[0, :, 0]} == {True, False}
    assert not bool(far[0, :, 1].any())
    assert_matches(operands)
    gradient = evaluate(attention, operands).gradients["log_a"]
    assert bool((gradient[torch.isneginf(operands["log_a"])] == 0).all())


@tiny
@pytest.mark.parametrize("bytes_of_device", [49_152, 101_376, 166_912, 232_448])
@pytest.mark.parametrize("K", [16, 64, 128, 256, 512, 1024])
def test_a_walk_fits_the_shared_memory_of_any_device(
    K: int, bytes_of_device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x and w in each stage and y, the state and a scaled y; and where nothing fits, chunks."""
    from ssmperf.impls._triton.plan import Plan, Slot
    from ssmperf.impls.linear_attention._triton import walking

    monkeypatch.setattr(walking, "shared_memory", lambda device: bytes_of_device)
    q = Slot.of(torch.empty(1, 256, 2, K, dtype=torch.bfloat16))
    schedule = walking.Walk.of(Plan([q]), q, q, None, pairs=False)
    (width, stages), chunk = schedule.strip, schedule.tiles.chunk

    def needed(width: int, stages: int) -> int:
        return 2 * (chunk * (2 * K + width) * stages + (K + chunk) * width)

    if width:
        assert needed(width, stages) <= bytes_of_device
    else:
        assert needed(16, 1) + walking.SLACK > bytes_of_device
    assert schedule.fits == (width > 0)
    if bytes_of_device == 232_448 and K <= 256:
        assert (width, stages) == (schedule.width(K, schedule.tiles.walk), schedule.tiles.walk_stages)


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_walk")
def test_a_walk_keeps_the_range_of_float16(kind: str) -> None:
    """Values near the largest of the dtype, and gradients near its smallest normal ones."""
    operands = case(T=C + 5, kind=kind, dtype="float16", regime="gla")
    with torch.no_grad():
        operands["log_a"].fill_(-0.3)
        operands["v"][:, ::7] *= 6000
        operands["initial_state"].zero_()
        operands["k"] *= 0.01
    assert_matches(operands, "float16")
    operands = case(T=C + 5, kind=kind, dtype="float16", regime="gla")
    wide = {name: x.detach().double() if isinstance(x, Tensor) else x for name, x in operands.items()}
    with torch.no_grad():
        operands["log_a"].fill_(-0.3)
        wide["log_a"].fill_(-0.3)
    wide["v"].requires_grad_()
    output, expected = attention(**operands)[0], registry.recurrence("linear_attention").definition(**wide)[0]
    small = torch.full_like(output, 2e-4)
    gradient = torch.autograd.grad(output, operands["v"], small)[0]
    reference = torch.autograd.grad(expected, wide["v"], small.double())[0]
    assert (gradient.double() - reference).abs().max() <= 0.01 * reference.abs().max()


@tiny
@pytest.mark.usefixtures("small_walk")
def test_a_walk_repeats_to_the_bit_and_the_past_sees_only_rounding_of_the_future() -> None:
    operands = detached(case(T=C + 9, kind="key"))
    output = attention(**operands)[0]
    assert torch.equal(output, attention(**operands)[0])
    for name in ("q", "k", "v", "log_a"):
        operands[name][:, 21:] *= 3
    torch.testing.assert_close(output[:, :21], attention(**operands)[0][:, :21], rtol=1e-5, atol=1e-6)
