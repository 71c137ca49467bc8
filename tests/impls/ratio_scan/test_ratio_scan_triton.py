"""The triton ratio scan against the definition in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.kernels.kernel_check import kernel_check, outcome
from torch import Tensor

from ssmperf import REGIMES, Shape, Unsupported, UsageError
from ssmperf.suitekit import registry

ENTRY = registry.backend("ratio_scan", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton.plan import Slot, forget  # noqa: E402
from ssmperf.impls.ratio_scan._triton import function  # noqa: E402

RECURRENCE = registry.recurrence("ratio_scan")
DEFINITION = RECURRENCE.definition
ROUNDING = 2e-5  # of float32 results, in the 2-norm; the larger keys, the coarser their exponents
STEPS, CHANNELS = 4, 4
SMALL = {
    "forward": function.Tiles(2 * STEPS, CHANNELS, 1),
    "backward": function.Tiles(STEPS, CHANNELS, 1),
}
TILE = 2 * STEPS

Operands = dict[str, Tensor]
with_and_without_bonus = pytest.mark.parametrize("bonus", [True, False], ids=["bonus", "no_bonus"])
in_one_span_or_many = pytest.mark.parametrize("spans", [False, True], ids=["one_span", "spans"])
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device"),
]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets small tiles, and whether time is cut into spans of one or two of them."""

    def set_tiles(*, spans: bool = False) -> None:
        monkeypatch.setattr(function, "tiles", lambda pass_, itemsize: SMALL[pass_])
        monkeypatch.setattr(function, "processors", lambda device: 10_000 if spans else 0)
        monkeypatch.setattr(function, "FEWEST_TILES", 1)
        forget()

    yield set_tiles


def operands(
    B: int, T: int, C: int, *, bonus: bool = True, state: bool = True, regime: str = "rglru", seed: int = 0,
    dtype: torch.dtype = torch.float32, keys: Callable[[Tensor], Tensor] = lambda k: k,
) -> Operands:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    drawn = RECURRENCE.sample(Shape(B=B, T=T, C=C), regime=regime, generator=generator, gate_kind="const")
    drawn["k"] = keys(drawn["k"])
    if state:
        drawn["initial_state"] = RECURRENCE.sample_state(drawn, generator)
    if not bonus:
        del drawn["bonus"]
    drawn |= {name: drawn[name].to(dtype) for name in ("k", "v")}
    return {name: x.to(DEVICE) for name, x in drawn.items()}


def check(given: Operands, tolerance: float = 0.0) -> None:
    kernel_check("ratio_scan", ENTRY.function, given, max(tolerance, ROUNDING))


@pytest.mark.slow(but=("1-True-False", "19-False-True", "5-True-True"))
@pytest.mark.parametrize(
    ("T", "spans", "bonus"),
    [
        (1, False, True),
        (1, True, False),
        (STEPS + 1, False, False),
        (STEPS + 1, True, True),
        (2 * TILE, True, False),
        (2 * TILE + 3, False, True),
        (2 * TILE + 3, True, True),
    ],
)
def test_agrees_with_the_definition(cut: Callable[..., None], T: int, spans: bool, bonus: bool) -> None:
    cut(spans=spans)
    check(operands(2, T, CHANNELS + 1, bonus=bonus))


@pytest.mark.parametrize("regime", REGIMES)
def test_regimes(cut: Callable[..., None], regime: str) -> None:
    cut(spans=True)
    check(operands(1, 2 * TILE + 1, CHANNELS, regime=regime))


def test_a_reset_in_every_channel(cut: Callable[..., None]) -> None:
    cut(spans=True)
    given = operands(1, 2 * TILE + 1, CHANNELS)
    given["log_w"] = torch.full_like(given["log_w"], -torch.inf)
    check(given)
    assert not outcome(ENTRY.function, given)["d log_w"].any()


KEYS = {
    "ninety": lambda k: 90 * k.sign(),
    "wide": lambda k: 30 * k,
    "far_up": lambda k: k + 80,
    "far_down": lambda k: k - 80,
    "one_giant": lambda k: torch.cat([k[:, :5], k[:, 5:6] + 90, k[:, 6:]], dim=1),
    "falling": lambda k: k - 9 * torch.arange(k.shape[1])[:, None],
    "rising": lambda k: k + 9 * torch.arange(k.shape[1])[:, None],
    "one_channel": lambda k: torch.cat([90 * k[..., :1].sign(), k[..., 1:]], dim=2),
}


@pytest.mark.parametrize(
    ("keys", "spans", "bonus"),
    [(keys, spans, (i + spans) % 2 == 0) for i, keys in enumerate(KEYS) for spans in (False, True)],
)
def test_keys_that_need_their_own_scale(
    cut: Callable[..., None], keys: str, spans: bool, bonus: bool
) -> None:
    cut(spans=spans)
    regime = "mamba" if keys in ("ninety", "falling") else "retnet"
    check(operands(1, 2 * TILE + 1, CHANNELS, bonus=bonus, keys=KEYS[keys], regime=regime), 5e-5)


@pytest.mark.parametrize("bonus", [60.0, -60.0])
def test_a_bonus_that_needs_its_own_scale(cut: Callable[..., None], bonus: float) -> None:
    cut()
    given = operands(1, TILE + 1, CHANNELS)
    given["bonus"] = given["bonus"] + bonus
    check(given)


@pytest.mark.parametrize(("dtype", "spans"), [(torch.bfloat16, True), (torch.float16, False)])
def test_half_precision(cut: Callable[..., None], dtype: torch.dtype, spans: bool) -> None:
    cut(spans=spans)
    given = operands(1, 2 * TILE + 1, CHANNELS + 1, dtype=dtype)
    y, final = ENTRY.function(**given)
    assert y.dtype == dtype and final.dtype == torch.float32
    check(given)


@in_one_span_or_many
def test_no_state_is_the_empty_state(cut: Callable[..., None], spans: bool) -> None:
    cut(spans=spans)
    given = operands(1, 2 * TILE + 3, CHANNELS, state=False, keys=lambda k: k - 70)
    check(given)
    empty = torch.zeros(1, 3, CHANNELS, device=DEVICE)
    empty[:, 2] = -1e38
    for got, want in zip(ENTRY.function(**given), ENTRY.function(**given, initial_state=empty), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("size", "spans"),
    [
        ((1, 1, 5), False),
        ((2, 1, 5), False),
        ((2, 1, 5), True),
        ((2, 1, 1), True),
        ((1,), True),
        ((), False),
    ],
    ids=str,
)
def test_decays_that_broadcast(cut: Callable[..., None], size: tuple[int, ...], spans: bool) -> None:
    cut(spans=spans)
    given = operands(2, TILE + 1, 5)
    given["log_w"] = -torch.rand(size, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    check(given)


@with_and_without_bonus
def test_segments_joined_by_the_state_equal_the_whole(cut: Callable[..., None], bonus: bool) -> None:
    cut()
    given = operands(1, 2 * TILE + 3, CHANNELS, bonus=bonus)
    whole, final = ENTRY.function(**given)
    parts, state = [], given.pop("initial_state")
    for steps in (slice(0, TILE - 3), slice(TILE - 3, None)):
        piece = given | {name: given[name][:, steps] for name in ("k", "v")}
        part, state = ENTRY.function(**piece, initial_state=state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize(
    ("keys", "dtype", "bonus"),
    [
        (1.0, torch.float32, True),
        (1.0, torch.bfloat16, False),
        (40.0, torch.float32, False),
        (40.0, torch.bfloat16, True),
    ],
)
def test_tiles_through_shared_memory(
    monkeypatch: pytest.MonkeyPatch, cut: Callable[..., None], keys: float, dtype: torch.dtype, bonus: bool
) -> None:
    cut()
    streamed = {"forward": function.Tiles(8, 8, 1, stages=2), "backward": function.Tiles(4, 8, 1, stages=2)}
    monkeypatch.setattr(function, "tiles", lambda pass_, itemsize: streamed[pass_])
    given = operands(2, 16, 16, bonus=bonus, dtype=dtype, keys=lambda k: keys * k)
    schedule = function.Schedule.of("forward", Slot.of(given["k"]))
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a device that brings tiles to shared memory")
    assert schedule.streams(Slot.of(given["k"]), Slot.of(given["v"]))
    check(given, tolerance=2e-2 if keys > 1 and dtype == torch.bfloat16 else 0.0)
    assert not schedule.streams(Slot.of(given["k"].new_empty(3, 16, 16)[:, :, 1:]))


@pytest.mark.slow
def test_a_long_memory_keeps_its_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """This decay rounded to float32 is off by 2.9e-8: after 512 steps by 1.5e-5, unless made good."""
    monkeypatch.setattr(function, "ENOUGH", 0)
    given = operands(1, 512, 2, state=False, keys=lambda k: k - 60 * (torch.arange(512) > 3)[:, None])
    given["log_w"] = torch.full((2,), -1.05e-4, device=DEVICE)
    _, final = ENTRY.function(**given)
    _, want = DEFINITION(**{name: x.double() for name, x in given.items()})
    sums = [state[:, 1].double() * torch.exp(state[:, 2].double()) for state in (final, want)]
    torch.testing.assert_close(*sums, rtol=5e-6, atol=0)


def test_same_bits_twice_and_bitwise_causal(cut: Callable[..., None]) -> None:
    cut(spans=True)
    given = operands(1, 3 * TILE, CHANNELS + 1)
    first = outcome(ENTRY.function, given)
    second = outcome(ENTRY.function, given)
    assert all(torch.equal(first[name], second[name]) for name in first)
    cut()
    before, _ = ENTRY.function(**given)
    later = given["v"].clone()
    later[:, TILE + 3 :] += 1
    changed, _ = ENTRY.function(**given | {"v": later})
    assert torch.equal(before[:, : TILE + 3], changed[:, : TILE + 3])
    assert not torch.equal(before, changed)


def test_the_scale_takes_and_gives_no_gradient(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, TILE + 1, CHANNELS)
    assert not outcome(ENTRY.function, given)["d initial_state"][:, 2].any()
    leaves = [x.requires_grad_() for x in given.values()]
    _, final = ENTRY.function(**given)
    at_scale = torch.zeros_like(final)
    at_scale[:, 2] = 1
    assert not any(g.any() for g in torch.autograd.grad(final, leaves, at_scale))


def test_strided_operands_and_only_wanted_gradients(cut: Callable[..., None]) -> None:
    cut()
    given = operands(2, TILE + 1, CHANNELS)
    given["k"] = given["k"].transpose(1, 2).contiguous().transpose(1, 2)
    want, _ = DEFINITION(**given)
    value = given["v"].requires_grad_()
    y, _ = ENTRY.function(**given)
    torch.testing.assert_close(y, want)
    (gradient,) = torch.autograd.grad(y.sum(), [value])
    want, _ = DEFINITION(**given)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), [value])[0])


@pytest.mark.slow
def test_the_shipped_tiles() -> None:
    check(operands(1, 67, 3))


def test_a_forward_tile_holds_whole_backward_tiles() -> None:
    for itemsize in (2, 4):
        assert function.tiles("forward", itemsize).steps % function.tiles("backward", itemsize).steps == 0


def test_refuses_what_it_cannot_do() -> None:
    given = operands(1, 3, 5)
    with pytest.raises(Unsupported, match="k of dtype"):
        ENTRY.function(**given | {"k": given["k"].double()})
    with pytest.raises(Unsupported, match="log_w of dtype"):
        ENTRY.function(**given | {"log_w": given["log_w"].double()})
    with pytest.raises(Unsupported, match="differ from step to step"):
        ENTRY.function(**given | {"log_w": given["log_w"].expand(1, 3, 5)})
    with pytest.raises(UsageError, match="does not broadcast"):
        ENTRY.function(**given | {"log_w": given["log_w"][:4]})
    assert ENTRY.refusal(device=DEVICE, gate_kind="data") is not None


class TestOnDevice:
    """The shipped tiles at sizes that only a GPU can afford."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=[0, 10_000], ids=["one_span", "spans"])
    def schedule(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(function, "ENOUGH", request.param)

    @with_and_without_bonus
    @pytest.mark.parametrize("regime", REGIMES)
    def test_regimes(self, regime: str, bonus: bool) -> None:
        check(operands(2, 1037, 96, regime=regime, bonus=bonus), tolerance=5e-5)

    @with_and_without_bonus
    @pytest.mark.parametrize("keys", KEYS)
    def test_keys(self, keys: str, bonus: bool) -> None:
        check(operands(2, 301, 70, keys=KEYS[keys], bonus=bonus), tolerance=2e-4)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 129, 1), (2, 128, 33), (5, 1023, 130), (8, 640, 1536)])
    def test_shapes(self, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        check(operands(*shape, dtype=dtype), tolerance=5e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [(2, 43_884, 33), (1, 65_536, 64)], ids=str)
    def test_long(self, shape: tuple[int, int, int]) -> None:
        check(operands(*shape, regime="retnet"), tolerance=1e-4)
