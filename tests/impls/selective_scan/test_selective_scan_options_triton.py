"""The triton selective scan's options against the definition in float64: on a GPU, or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.kernels.graphs import assert_follows_other_lengths, assert_reads_nothing_on_the_host
from support.kernels.kernel_check import kernel_check, outcome
from torch import Tensor

from ssmperf import Shape, Unsupported
from ssmperf.suitekit import registry

ENTRY = registry.backend("selective_scan", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton.plan import Slot, forget  # noqa: E402
from ssmperf.impls.scan import common  # noqa: E402
from ssmperf.impls.selective_scan._triton import passes, schedule  # noqa: E402
from ssmperf.impls.selective_scan._triton.schedule import Call, Schedule  # noqa: E402
from ssmperf.impls.selective_scan._triton.tiles import Tiles  # noqa: E402

RECURRENCE = registry.recurrence("selective_scan")
STEPS, CHECKPOINT = 2, 4
ALL = ("skip", "output_gate", "delta_bias", "delta_softplus")
LENGTHS = (6, 0, 1, 2)
OTHERS = (0, 1, 8, 0)  # of as many steps

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device"),
]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set short step blocks, checkpoints close to one another, and whether time is cut into segments."""

    def set_tiles(*, segments: bool = False, channels: int = 1, steps: int = STEPS) -> None:
        def tiles(pass_: str, N: int, work: str, *, wide: bool) -> Tiles:
            return Tiles(steps=steps, channels=channels, states=4, groups=4 if N > 8 else 2)

        monkeypatch.setattr(schedule, "tiles", tiles)
        monkeypatch.setattr(schedule, "CHECKPOINT", CHECKPOINT)
        monkeypatch.setattr(schedule, "FEWEST_CHECKPOINTS", 1)
        monkeypatch.setattr(schedule, "processors", lambda device: 10_000 if segments else 0)
        forget()

    yield set_tiles


def operands(
    kind: str, size: tuple[int, int, int, int], wanted: tuple[str, ...] = ALL,
    lengths: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:  # fmt: skip
    """Draw operands, with options such that step sizes are the sampled ones; packed with lengths."""
    B, T, D, N = size
    generator = torch.Generator().manual_seed(0)
    regime = "longhorn" if kind == "implicit" else "mamba"
    drawn = RECURRENCE.sample(Shape(B=B, T=T, D=D, N=N), regime=regime, generator=generator, gate_kind=kind)
    if kind == "exp_zoh":
        drawn["A"] *= torch.logspace(-3, 1.5, D).unsqueeze(-1)  # all parts of a decay within a step
        drawn["A"][0, 0] = 0
    made = {
        "skip": torch.randn(D, generator=generator),
        "output_gate": torch.randn(B, T, D, generator=generator).to(dtype),
        "delta_bias": torch.randn(D, generator=generator),
    }
    if "delta_softplus" in wanted:
        drawn["delta"] = torch.log(torch.expm1(drawn["delta"].double())).float()
    if "delta_bias" in wanted:
        drawn["delta"] = drawn["delta"] - made["delta_bias"]
    for name in ("x", "k", "q"):
        drawn[name] = drawn[name].to(dtype)
    drawn |= {name: value for name, value in made.items() if name in wanted}
    drawn["delta_softplus"] = "delta_softplus" in wanted
    drawn["initial_state"] = torch.randn(B if lengths is None else len(lengths), D, N, generator=generator)
    if lengths is not None:
        drawn["cu_seqlens"] = bounds_of(lengths)
    return {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in drawn.items()}


def bounds_of(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor((0, *lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32).to(DEVICE)


def check(given: dict[str, Any], tolerance: float = 0.0) -> None:
    kernel_check("selective_scan", ENTRY.function, given, tolerance)


@pytest.mark.parametrize("option", ALL)
def test_each_option_alone(cut: Callable[..., None], option: str) -> None:
    cut()
    check(operands("exp", (1, 3, 5, 8), (option,)))


@pytest.mark.parametrize("kind", ["exp_zoh", "implicit"])
def test_all_options_together(cut: Callable[..., None], kind: str) -> None:
    cut(channels=2)
    check(operands(kind, (1, CHECKPOINT + 1, 5, 16)))


def test_zoh_in_segments_of_time(cut: Callable[..., None]) -> None:
    given = operands("exp_zoh", (1, 2 * CHECKPOINT + 1, 5, 8))
    cut(segments=True)
    for pass_ in ("forward", "backward"):
        slots = [Slot.of(given[name]) for name in ("x", "k", "q")]
        assert Schedule.of(pass_, Call("exp", zoh=True), *slots, 8).segments == 3
    check(given)


def test_half_precision_and_step_blocks_of_more_steps_than_groups(cut: Callable[..., None]) -> None:
    cut(steps=CHECKPOINT)
    check(operands("exp", (1, CHECKPOINT + 1, 5, 8), dtype=torch.bfloat16))


@pytest.mark.parametrize("kind", ["exp", "implicit"])
def test_packed_sequences_in_segments(cut: Callable[..., None], kind: str) -> None:
    given = operands(kind, (1, sum(LENGTHS), 5, 8), ALL if kind == "exp" else (), LENGTHS)
    cut(segments=True)
    slots = [Slot.of(given[name]) for name in ("x", "k", "q")]
    call = Call(given["gate"], packed=True)
    planned = Schedule.of("forward", call, *slots, 8, sequences=len(LENGTHS))
    assert planned.length == CHECKPOINT and planned.segments == 6  # places, of which two stay empty
    check(given)


def test_packed_sequences_have_the_bits_of_separate_calls(cut: Callable[..., None]) -> None:
    cut()
    given = operands("exp", (1, sum(LENGTHS), 5, 8), ("skip",), LENGTHS)
    bounds = given.pop("cu_seqlens")
    packed, states = ENTRY.function(**given, cu_seqlens=bounds)
    for i, (first, end) in enumerate(pairwise(bounds.tolist())):
        start = given["initial_state"][i : i + 1]
        if first == end:
            assert torch.equal(states[i : i + 1], start)
            continue
        part = {name: given[name][:, first:end] for name in ("x", "delta", "k", "q")}
        part["initial_state"] = start.clone().requires_grad_()  # a step without gradients is another kernel
        output, state = ENTRY.function(**(given | part))
        assert torch.equal(packed[:, first:end], output)
        assert torch.equal(states[i : i + 1], state)


def test_a_second_packed_call_reads_nothing_on_the_host(
    cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(segments=True)
    given = operands("exp", (1, sum(LENGTHS), 5, 8), ALL, LENGTHS)
    assert_reads_nothing_on_the_host(monkeypatch, lambda: outcome(ENTRY.function, given))


def test_the_plans_of_a_packed_call_follow_other_bounds(cut: Callable[..., None]) -> None:
    cut(segments=True)
    given = operands("exp", (1, sum(LENGTHS), 5, 8), ALL, LENGTHS)
    outcome(ENTRY.function, given)
    plans = [dict(each.plans) for each in (passes.forward_pass, passes.backward_pass)]
    assert all(plans)
    check(given | {"cu_seqlens": bounds_of(OTHERS)})
    assert [each.plans for each in (passes.forward_pass, passes.backward_pass)] == plans


# numpy warns about results that such bounds leave unwritten
@pytest.mark.slow(but=("bounds3", "bounds2"))
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("bounds", [(0, 8, 3, 9, 9), (-5, 2, 10**6, 1, 9), (9, 0, 9, 0, 9), (0, 0, 0, 0, 0)])
def test_malformed_bounds_write_nothing_outside(
    cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, ...]
) -> None:
    """Whatever the results are: the operands stay as they were."""
    monkeypatch.setattr(common, "_listed", lambda cu_seqlens, T: [])
    cut(segments=True)
    given = operands("exp", (1, sum(LENGTHS), 5, 8), (), LENGTHS)
    before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
    outcome(ENTRY.function, given | {"cu_seqlens": torch.tensor(bounds, device=DEVICE)})
    for name, x in before.items():
        assert torch.equal(given[name], x)


def test_packed_sequences_begin_with_nothing_if_no_states_are_given(cut: Callable[..., None]) -> None:
    cut()
    given = operands("exp", (1, sum(LENGTHS), 5, 8), (), LENGTHS)
    zeros = given | {"initial_state": torch.zeros_like(given["initial_state"])}
    for got, want in zip(
        ENTRY.function(**(given | {"initial_state": None})), ENTRY.function(**zeros), strict=True
    ):
        assert torch.equal(got, want)


def test_the_same_bits_twice_with_all_options(cut: Callable[..., None]) -> None:
    cut()
    given = operands("exp", (1, 3, 5, 8), ALL, (2, 1))
    first, second = (outcome(ENTRY.function, given) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("kind", "N"), [("exp", 16), ("exp_zoh", 64), ("implicit", 128)])
def test_the_shipped_tiles(monkeypatch: pytest.MonkeyPatch, kind: str, N: int) -> None:
    monkeypatch.setattr(schedule, "CHECKPOINT", 8)
    forget()
    check(operands(kind, (1, 3, 3, N)))


def test_softplus_keeps_the_digits_of_tiny_and_large_steps(cut: Callable[..., None]) -> None:
    cut()
    raw = torch.tensor([-80.0, -20.0, -8.0, -1e-4, 0.0, 1.0, 50.0], device=DEVICE).view(1, 1, 7)
    one, A = torch.ones(1, 1, 8, device=DEVICE), torch.zeros(7, 8, device=DEVICE)
    given = {"x": torch.ones_like(raw), "delta": raw.requires_grad_(), "k": one, "q": one, "A": A}
    _, final = ENTRY.function(**given, delta_softplus=True)
    (slope,) = torch.autograd.grad(final[..., 0].sum(), raw)
    exact = raw.detach().double().flatten()
    torch.testing.assert_close(
        final[0, :, 0].double(), torch.logaddexp(exact, torch.zeros_like(exact)), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(slope.flatten().double(), torch.sigmoid(exact), rtol=1e-5, atol=0)


def test_zoh_at_infinite_rates(cut: Callable[..., None]) -> None:
    cut()
    given = operands("exp_zoh", (1, 3, 5, 8), ("skip",))
    given["A"][1:3, 2] = -torch.inf
    given["delta"][:, 1] = 0
    check(given)


@pytest.mark.parametrize("segments", [False, True])
def test_zoh_steps_of_infinite_size(cut: Callable[..., None], segments: bool) -> None:
    """They end at −k x / A; states that only fill up a group, whose rate is 0, stay out of it."""
    cut(segments=segments)
    given = operands("exp_zoh", (1, 3 * CHECKPOINT, 5, 7), ())
    given["A"] = -1 - given["A"].abs()
    given["delta"][:, [1, CHECKPOINT, 2 * CHECKPOINT + 1]] = torch.inf
    check(given)


def test_refuses_options_in_double_precision() -> None:
    given = operands("exp", (1, 3, 5, 8), ("skip", "output_gate"))
    for name in ("skip", "output_gate"):
        with pytest.raises(Unsupported, match=f"{name} of dtype"):
            ENTRY.function(**(given | {name: given[name].double()}))


class TestOnDevice:
    """The shipped tiles at sizes that only a GPU can afford."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=["whole", "segments"])
    def cutting(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedule, "WANTED", 0 if request.param == "whole" else 10_000)
        forget()

    @pytest.mark.parametrize("size", [(2, 1037, 96, 16), (1, 515, 33, 64), (1, 300, 33, 128)], ids=str)
    @pytest.mark.parametrize("kind", ["exp", "exp_zoh", "implicit"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_shapes(self, size: tuple[int, int, int, int], kind: str, dtype: torch.dtype) -> None:
        check(operands(kind, size, dtype=dtype), tolerance=2e-5)

    @pytest.mark.parametrize("option", ALL)
    @pytest.mark.parametrize("kind", ["exp", "implicit"])
    def test_each_option_alone(self, kind: str, option: str) -> None:
        check(operands(kind, (2, 300, 96, 16), (option,)), tolerance=2e-5)

    @pytest.mark.parametrize("lengths", [(1000, 0, 1, 1963, 37), (1,) * 40, (3001,)], ids=str)
    @pytest.mark.parametrize("kind", ["exp", "exp_zoh", "implicit"])
    def test_packed_sequences(self, kind: str, lengths: tuple[int, ...]) -> None:
        check(operands(kind, (1, sum(lengths), 96, 16), ALL, lengths), tolerance=5e-5)

    @pytest.mark.parametrize("kind", ["exp", "implicit"])
    def test_a_graph_follows_other_lengths(self, kind: str) -> None:
        lengths = [(1000, 0, 1, 1963, 37), (0, 0, 3000, 0, 1), (600, 600, 600, 600, 601)]
        given = operands(kind, (1, 3001, 96, 16), ALL, lengths[0])
        del given["cu_seqlens"]
        leaves = {name: x.requires_grad_() if isinstance(x, Tensor) else x for name, x in given.items()}
        assert_follows_other_lengths(
            ENTRY.function,
            RECURRENCE.definition,
            leaves,
            [bounds_of(each) for each in lengths],
            close=lambda got, want: bool((got - want).norm() <= 5e-5 * want.norm().clamp_min(1e-30)),
        )
