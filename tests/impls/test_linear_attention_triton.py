"""The Triton kernels of linear_attention against the definition in float64.

On a CPU in Triton's interpreter (TRITON_INTERPRET=1 before Python starts) with tiny tiles; on a GPU as is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.table import REGIMES, TOLERANCE, Operands, detached, error, evaluate, oracle, sample
from torch import Tensor

from ssmperf import Shape, Unsupported, registry
from ssmperf.tune import tables

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
KINDS = ("none", "const", "scalar", "key", "const_complex", "scalar_complex", "key_complex")
C = 32
CANCELLATION = 3  # the gradient of a constant gate sums terms of both signs over all steps
HALF_TOLERANCE = {**TOLERANCE, "bfloat16": (1e-2, 1e-2)}

tiny = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(),
    reason="needs TRITON_INTERPRET=1 set before Python starts, or a CUDA device",
)
gpu = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device and no TRITON_INTERPRET"
)


def attention(**operands: Tensor | str | None) -> tuple[Tensor, Tensor]:
    return registry.backend("linear_attention", "triton").function(**operands)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a chunk and several tiles of K and V at widths that the interpreter can afford."""
    cut_into(monkeypatch)


@pytest.fixture
def small_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where heads are walked."""
    cut_into(monkeypatch, walk=16)


def cut_into(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    from ssmperf.impls._triton import plan
    from ssmperf.impls.linear_attention._triton import schedule
    from ssmperf.impls.linear_attention._triton.tiles import Tiles

    small = {"chunk": C, "key": 16, "value": 16, "inner": 16, "pair_key": 16, "carry": 128, "stages": 1}
    cut = Tiles(**{**small, **sizes})
    monkeypatch.setattr(schedule, "tiles", lambda K, V, wide: cut)
    plan.forget()


@pytest.fixture(params=["curated", "chunks"])
def walked_or_not(request: pytest.FixtureRequest) -> Iterator[None]:
    """The curated block sizes, and those without a walk for half types."""
    table = tables.table("linear_attention/triton")
    rows = {(table.name, key): replace(table.row(key), walk=0) for key in table}
    with tables.using(rows if request.param == "chunks" else {}):
        yield


def case(
    *,
    T: int,
    kind: str,
    regime: str = "sigmoid",
    dtype: str = "float32",
    H: int = 1,
    K: int = 16,
    V: int = 16,
) -> Operands:
    shape = Shape(B=1, T=T, H=H, K=K, V=V)
    operands = sample("linear_attention", shape, regime=regime, kind=kind, dtype=dtype)
    return moved(operands)


def moved(operands: Operands) -> Operands:
    return {
        name: value.detach().to(DEVICE).requires_grad_() if isinstance(value, Tensor) else value
        for name, value in operands.items()
    }


def assert_matches(operands: Operands, dtype: str = "float32") -> None:
    got, reference = evaluate(attention, operands), oracle("linear_attention", operands)
    forward, gradient = HALF_TOLERANCE[dtype]
    summed = {
        name for name in ("log_a", "phase") if operands.get(name) is not None and operands[name].dim() <= 2
    }
    wrong = {}
    for (name, value, is_gradient), (_, expected, _) in zip(got.items(), reference.items(), strict=True):
        found = error(value, expected)
        limit = gradient if is_gradient else forward
        if any(name.endswith(constant) for constant in summed):
            limit *= CANCELLATION
        if found > limit:
            wrong[name] = found
    assert not wrong


@tiny
@pytest.mark.parametrize(
    ("kind", "T"),
    [
        *((kind, T) for kind in KINDS[:-1] for T in (1, C - 1, C + 1, 2 * C + 3)),
        *((KINDS[-1], T) for T in (1, C + 1)),  # of all kinds the one that takes the longest
    ],
)
@pytest.mark.usefixtures("small_tiles")
def test_outputs_and_all_gradients_match_the_definition(kind: str, T: int) -> None:
    assert_matches(case(T=T, kind=kind))


@tiny
@pytest.mark.parametrize("regime", ["reset", "ones", "gla", "mamba", "small"])
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_tiles")
def test_gate_regimes(kind: str, regime: str) -> None:
    assert_matches(case(T=2 * C, kind=kind, regime=regime))


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_tiles")
def test_many_resets_beside_hard_and_open_gates(kind: str) -> None:
    operands = case(T=C + 16, kind=kind)
    generator = torch.Generator().manual_seed(3)
    choice = torch.randint(0, 4, operands["log_a"].shape, generator=generator)
    values = torch.tensor([-math.inf, -200.0, -12.0, -1e-3])[choice]
    operands["log_a"] = values.to(DEVICE).requires_grad_()
    assert_matches(operands)
    gradient = evaluate(attention, operands).gradients["log_a"]
    assert bool((gradient[torch.isneginf(operands["log_a"])] == 0).all())


@tiny
@pytest.mark.parametrize(
    ("kind", "K", "V"), [("scalar", 20, 40), ("scalar", 33, 16), ("key", 3, 5), ("key", 20, 40)]
)
@pytest.mark.usefixtures("small_tiles")
def test_widths_that_fill_no_tile(kind: str, K: int, V: int) -> None:
    assert_matches(case(T=C + 1, kind=kind, K=K, V=V))


@tiny
@pytest.mark.parametrize("kind", ["none", "scalar", "key", "key_complex"])
@pytest.mark.usefixtures("small_tiles")
def test_half_operands(kind: str) -> None:
    assert_matches(case(T=C + 1, kind=kind, dtype="float16", regime="retnet"), "float16")


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key_complex"])
@pytest.mark.parametrize("names", ["q", "k", "v", "qkv"])
@pytest.mark.usefixtures("small_tiles")
def test_complex_operands(names: str, kind: str) -> None:
    operands = case(T=C // 2 + 1, kind=kind, K=4, V=4)
    generator = torch.Generator().manual_seed(4)
    for name in names:
        imaginary = torch.randn(operands[name].shape, generator=generator).to(DEVICE)
        operands[name] = torch.complex(operands[name].detach(), imaginary).requires_grad_()
    state = operands["initial_state"].detach()
    operands["initial_state"] = state.to(torch.complex64).requires_grad_()
    assert_matches(operands)


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key_complex"])
@pytest.mark.usefixtures("small_tiles")
def test_two_segments_are_one_run_in_values_and_gradients(kind: str) -> None:
    T, cut = C + 5, 13
    operands = case(T=T, kind=kind)
    whole = evaluate(attention, operands)

    def segmented(initial_state: Tensor, **rest: Tensor | None) -> tuple[Tensor, Tensor]:
        def part(steps: slice) -> dict[str, Tensor | None]:
            return {name: x if x is None else x[:, steps] for name, x in rest.items()}

        first, state = attention(**part(slice(0, cut)), initial_state=initial_state)
        second, state = attention(**part(slice(cut, T)), initial_state=state)
        return torch.cat([first, second], 1), state

    split = evaluate(segmented, operands)
    for (name, value, _), (_, expected, _) in zip(split.items(), whole.items(), strict=True):
        assert error(value, expected) < 1e-5, name


@tiny
@pytest.mark.parametrize("with_bonus", [False, True])
@pytest.mark.usefixtures("small_tiles")
def test_read_before_write(with_bonus: bool) -> None:
    operands = case(T=C + 1, kind="key", K=4, V=4)
    operands["read"] = "pre"
    if with_bonus:
        bonus = torch.randn(1, 4, generator=torch.Generator().manual_seed(5))
        operands["bonus"] = bonus.to(DEVICE).requires_grad_()
    assert_matches(operands)


@tiny
@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.usefixtures("small_tiles")
def test_a_gradient_on_one_result_alone_and_no_initial_state(result: int) -> None:
    operands = case(T=C + 1, kind="key")
    operands = {name: operands[name] for name in ("q", "k", "v", "log_a")}
    wide = {name: x.detach().double().requires_grad_() for name, x in operands.items()}
    definition = registry.recurrence("linear_attention").definition
    loss, expected = (f[result].square().sum() for f in (attention(**operands), definition(**wide)))
    gradients = torch.autograd.grad(loss, list(operands.values()))
    references = torch.autograd.grad(expected, list(wide.values()), materialize_grads=True)
    for value, reference in zip(gradients, references, strict=True):
        assert (value - reference).abs().max() <= 1e-4 * reference.abs().max()


@tiny
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_tiles")
def test_the_past_does_not_see_the_future_and_a_call_repeats_to_the_bit(kind: str) -> None:
    operands = detached(case(T=C + 9, kind=kind))
    output = attention(**operands)[0]
    assert torch.equal(output, attention(**operands)[0])
    for name in ("q", "k", "v", "log_a"):
        operands[name][:, 21:] *= 3
    assert torch.equal(output[:, :21], attention(**operands)[0][:, :21])


@tiny
def test_what_it_cannot_do_it_refuses() -> None:
    operands = detached(case(T=3, kind="key"))
    with pytest.raises(Unsupported, match="value gates"):
        attention(**{**operands, "log_b": torch.zeros(1, 3, 1, 16, device=DEVICE)})
    operands["q"] = operands["q"].double()
    with pytest.raises(Unsupported, match="float64"):
        attention(**operands)


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
    schedule = walking.Walk.of(Plan([q]), q, q, None)
    (width, stages), chunk = schedule.strip, schedule.tiles.chunk

    def needed(width: int, stages: int) -> int:
        return 2 * (chunk * (2 * K + width) * stages + (K + chunk) * width)

    if width:
        assert needed(width, stages) <= bytes_of_device
    else:
        assert needed(16, 1) + walking.SLACK > bytes_of_device
    assert walking.walkable(Plan([q]), q, q, None) == (width > 0)
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


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("walked_or_not")
def test_gate_kinds_on_a_gpu(kind: str, dtype: str) -> None:
    regime = "gla" if dtype == "float16" else "sigmoid"
    assert_matches(case(T=1000, H=2, K=64, V=64, kind=kind, regime=regime, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("walked_or_not")
def test_regimes_on_a_gpu(kind: str, regime: str, dtype: str) -> None:
    assert_matches(case(T=500, H=2, K=128, V=128, kind=kind, regime=regime, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("K", "V"), [(16, 16), (64, 128), (128, 64), (100, 36), (256, 256)])
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("walked_or_not")
def test_widths_on_a_gpu(kind: str, K: int, V: int, dtype: str) -> None:
    assert_matches(case(T=193, H=3, K=K, V=V, kind=kind, regime="gla", dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("kind", ["none", "const", "scalar", "key", "key_complex"])
def test_a_long_sequence_on_a_gpu(kind: str) -> None:
    assert_matches(case(T=4096, K=64, V=64, kind=kind, regime="gla"))


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("walked_or_not")
def test_gradients_repeat_to_the_bit_on_a_gpu(kind: str, dtype: str) -> None:
    operands = case(T=700, H=4, K=128, V=128, kind=kind, dtype=dtype)
    first, second = evaluate(attention, operands), evaluate(attention, operands)
    for (name, a, _), (_, b, _) in zip(first.items(), second.items(), strict=True):
        assert torch.equal(a, b), name
