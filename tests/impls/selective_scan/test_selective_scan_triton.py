"""The triton selective scan against the definition in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.kernels.kernel_check import kernel_check, outcome
from torch import Tensor

from ssmperf import Shape, Unsupported, UsageError
from ssmperf.engine.tune import tables as configurations
from ssmperf.suitekit import registry

ENTRY = registry.backend("selective_scan", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton.plan import Slot, forget  # noqa: E402
from ssmperf.impls.selective_scan._triton import schedule  # noqa: E402
from ssmperf.impls.selective_scan._triton.groups import Fused  # noqa: E402
from ssmperf.impls.selective_scan._triton.schedule import Call, Schedule  # noqa: E402
from ssmperf.impls.selective_scan._triton.tiles import Tiles  # noqa: E402

RECURRENCE = registry.recurrence("selective_scan")
STEPS, CHECKPOINT = 2, 4
STREAMED = ("forward", "forward_spans", "forward_summary", "backward_summary")
KINDS = ("exp", "implicit")

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device"),
]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Set short step blocks and close checkpoints; whether time is cut, and whether operands come by way of
    shared memory."""

    def set_tiles(*, segments: bool = False, streams: bool = False) -> None:
        def tiles(pass_: str, N: int, work: str, *, wide: bool) -> Tiles:
            return Tiles(steps=STEPS, channels=1, states=4, groups=4 if N > 8 else 2)

        def streamed_tiles(pass_: str, N: int, gate: str, *, wide: bool) -> Tiles | None:
            cut = replace(tiles(pass_, N, gate, wide=wide), channels=2, stages=2)
            return cut if streams and pass_ in STREAMED else None

        monkeypatch.setattr(schedule, "tiles", tiles)
        monkeypatch.setattr(schedule, "streamed_tiles", streamed_tiles)
        monkeypatch.setattr(schedule, "CHECKPOINT", CHECKPOINT)
        monkeypatch.setattr(schedule, "FEWEST_CHECKPOINTS", 1)
        monkeypatch.setattr(schedule, "processors", lambda device: 10_000 if segments else 0)
        forget()

    yield set_tiles


def operands(
    B: int, T: int, D: int, N: int, *, kind: str = "exp", regime: str | None = None, seed: int = 0,
    state: bool = True, dtype: torch.dtype = torch.float32, gate_dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    regime = regime or {"exp": "mamba", "implicit": "longhorn"}[kind]
    drawn = RECURRENCE.sample(Shape(B=B, T=T, D=D, N=N), regime=regime, generator=generator, gate_kind=kind)
    for name in ("x", "k", "q"):
        drawn[name] = drawn[name].to(dtype)
    for name in set(drawn) & set(RECURRENCE.gates):
        drawn[name] = drawn[name].to(gate_dtype)
    if state:
        drawn["initial_state"] = torch.randn(B, D, N, generator=generator)
    return {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in drawn.items()}


def schedule_of(
    pass_: str,
    given: dict[str, Any],
    *,
    call: Call | None = None,
    fused: Fused | None = None,
    N: int | None = None,
) -> Schedule:
    """The schedule of a pass of such a call, with an absent call that of its gate alone."""
    data = [Slot.of(given[name]) for name in ("x", "delta", "k", "q")]
    x, _, k, q = data
    states = given["k"].shape[2] if N is None else N
    return Schedule.of(pass_, call or Call(given["gate"]), x, k, q, states, fused or Fused(), data)


def check(given: dict[str, Any], tolerance: float = 0.0) -> None:
    kernel_check("selective_scan", ENTRY.function, given, tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("T", "state"), [(1, True), (CHECKPOINT, False), (2 * CHECKPOINT + 1, True)])
def test_agrees_with_the_definition(cut: Callable[..., None], kind: str, T: int, state: bool) -> None:
    cut()
    check(operands(2, T, 5, 16, kind=kind, state=state))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [4 * CHECKPOINT, 3 * CHECKPOINT + 3])
def test_segments_of_time(cut: Callable[..., None], kind: str, T: int) -> None:
    given = operands(1, T, 5, 8, kind=kind, regime="reset" if T == 4 * CHECKPOINT else None)
    cut(segments=True)
    for pass_ in ("forward", "backward"):
        assert schedule_of(pass_, given).segments == 4
    check(given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regime", ["reset", "sigmoid", "ones"])
def test_regimes(cut: Callable[..., None], kind: str, regime: str) -> None:
    cut()
    check(operands(1, CHECKPOINT + 1, 5, 8, kind=kind, regime=regime))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "gate_dtype"), [(torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)]
)
def test_half_precision(
    cut: Callable[..., None], kind: str, dtype: torch.dtype, gate_dtype: torch.dtype
) -> None:
    cut()
    check(operands(1, CHECKPOINT + 1, 5, 8, kind=kind, dtype=dtype, gate_dtype=gate_dtype))


def test_keys_and_queries_of_different_widths(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, CHECKPOINT + 1, 5, 8)
    check(given | {"q": given["q"].half(), "x": given["x"].bfloat16()})


@pytest.mark.parametrize(
    ("kind", "N", "dtype"),
    [
        ("exp", 1, torch.float32),
        ("implicit", 3, torch.bfloat16),
        ("exp", 6, torch.bfloat16),
        ("exp", 13, torch.float16),
    ],
)
def test_numbers_of_states_that_fill_no_word(
    cut: Callable[..., None], kind: str, N: int, dtype: torch.dtype
) -> None:
    cut()
    check(operands(1, CHECKPOINT, 5, N, kind=kind, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize(("N", "dtype"), [(8, torch.float32), (16, torch.bfloat16)])
def test_operands_by_way_of_shared_memory(
    cut: Callable[..., None], kind: str, segments: bool, N: int, dtype: torch.dtype
) -> None:
    cut(segments=segments, streams=True)
    T, D = 4 * CHECKPOINT if segments else 2 * CHECKPOINT, 32 if N == 8 else 16
    given = operands(1, T, D, N, kind=kind, dtype=dtype, state=segments, regime="reset" if N == 8 else None)
    planned = schedule_of("forward", given)
    assert planned.streams and planned.cut.stages and planned.segments == (4 if segments else 1)
    check(given)


def test_what_does_not_come_by_way_of_shared_memory(cut: Callable[..., None]) -> None:
    cut(streams=True)
    given = operands(1, 2 * CHECKPOINT, 64, 8, dtype=torch.bfloat16)
    assert schedule_of("forward", given).cut.stages
    shifted = torch.empty(given["x"].numel() + 1, dtype=torch.bfloat16, device=DEVICE)[1:].view(
        given["x"].shape
    )
    skip = Slot.of(given["x"][0, 0])
    for what, stages in {
        "memory that is not aligned": schedule_of("forward", given | {"x": shifted}),
        "softplus": schedule_of("forward", given, call=Call("exp", softplus=True)),
        "a skip": schedule_of("forward", given, fused=Fused(skip=skip)),
        "states that fill no group": schedule_of("forward", given, N=6),
        "a stretch that is not whole": schedule_of(
            "forward", given | {name: given[name][:, 1:] for name in ("x", "delta", "k", "q")}
        ),
        "channels that fill no block": schedule_of("forward", given | {"x": given["x"][..., :40]}),
    }.items():
        assert stages.cut.stages == 0, what


def test_only_its_own_table_sends_operands_through_shared_memory() -> None:
    label = "selective_scan/triton:forward/16/narrow/fused"
    row = {"steps": 8, "channels": 2, "states": 4, "groups": 4}
    assert configurations.from_json({label: row})
    with pytest.raises(UsageError, match="cannot run there"):
        configurations.from_json({label: row | {"stages": 3}})
    assert configurations.from_json(
        {"selective_scan/triton/streamed:forward/16/narrow/exp": row | {"stages": 3}}
    )


@pytest.mark.parametrize("N", [8, 16, 64, 128, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_tiles(monkeypatch: pytest.MonkeyPatch, kind: str, N: int) -> None:
    monkeypatch.setattr(schedule, "CHECKPOINT", 8)  # with 64 steps, the interpreter would take minutes
    forget()
    check(operands(1, 7, 3, N, kind=kind))


def test_channels_beyond_a_block_and_strided_operands(cut: Callable[..., None]) -> None:
    cut()
    given = operands(2, CHECKPOINT + 1, 37, 8)
    strided = {
        name: x.transpose(0, -1).contiguous().transpose(0, -1) if isinstance(x, Tensor) else x
        for name, x in given.items()
    }
    check(strided)


def test_keys_that_begin_within_a_word(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, CHECKPOINT, 5, 8, dtype=torch.bfloat16)
    whole = torch.zeros(1 + given["k"].numel(), dtype=torch.bfloat16, device=DEVICE)
    whole[1:] = given["k"].flatten()
    shifted = whole[1:].view(given["k"].shape)
    got, _ = ENTRY.function(**(given | {"k": shifted}))
    assert torch.equal(got, ENTRY.function(**given)[0])


def test_infinite_decay_rates_are_resets(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, CHECKPOINT + 1, 5, 8)
    given["A"][1:3, 2] = -torch.inf
    given["delta"][:, 2] = 0
    check(given)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_joined_by_the_state_equal_the_whole(cut: Callable[..., None], kind: str) -> None:
    cut()
    given = operands(1, 2 * CHECKPOINT + 3, 5, 8, kind=kind)
    whole, final = ENTRY.function(**given)
    parts, state = [], given["initial_state"]
    for span in (slice(0, CHECKPOINT - 1), slice(CHECKPOINT - 1, None)):
        pieces = {name: given[name][:, span] for name in ("x", "delta", "k", "q")}
        part, state = ENTRY.function(**(given | pieces | {"initial_state": state}))
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, final)


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_twice_and_bitwise_causal(cut: Callable[..., None], kind: str) -> None:
    cut(segments=True)
    given = operands(1, 4 * CHECKPOINT, 5, 8, kind=kind)
    first = outcome(ENTRY.function, given)
    second = outcome(ENTRY.function, given)
    assert all(torch.equal(first[name], second[name]) for name in first)
    later = given["x"].clone()
    later[:, CHECKPOINT + 1 :] = torch.nan
    changed, _ = ENTRY.function(**(given | {"x": later}))
    assert torch.equal(first["output"][:, : CHECKPOINT + 1], changed[:, : CHECKPOINT + 1].double())


def test_only_wanted_gradients(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, CHECKPOINT, 5, 8, state=False)
    o, _ = ENTRY.function(**(given | {"x": given["x"].requires_grad_()}))
    (gradient,) = torch.autograd.grad(o.sum(), [given["x"]])
    want, _ = RECURRENCE.definition(**given)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), [given["x"]])[0])


def test_refuses_what_it_does_not_declare() -> None:
    given = operands(1, 3, 5, 8)
    for kind in ("const", "sigmoid"):
        other = RECURRENCE.sample(
            Shape(B=1, T=3, D=5, N=8), regime="sigmoid", generator=torch.Generator(), gate_kind=kind
        )
        with pytest.raises(Unsupported, match=kind):
            ENTRY.function(**other)
    with pytest.raises(Unsupported, match="x of dtype"):
        ENTRY.function(**(given | {"x": given["x"].double()}))
    with pytest.raises(Unsupported, match="A of dtype"):
        ENTRY.function(**(given | {"A": given["A"].to(torch.complex64)}))
    with pytest.raises(Unsupported, match="N = 300"):
        ENTRY.function(**operands(1, 3, 5, 300))
    with pytest.raises(UsageError, match="q must be"):
        ENTRY.function(**(given | {"q": given["q"][..., :4]}))


class TestOnDevice:
    """The shipped tiles at sizes that only a GPU can afford."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=["whole", "segments"])
    def cutting(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        for wanted in ("WANTED", "WANTED_STREAMED"):
            monkeypatch.setattr(schedule, wanted, 0 if request.param == "whole" else 10_000)
        forget()

    @pytest.mark.parametrize("shape", [(2, 1037, 96, 16), (1, 1024, 64, 16), (3, 515, 33, 64)], ids=str)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_shapes(self, shape: tuple[int, int, int, int], kind: str, dtype: torch.dtype) -> None:
        check(operands(*shape, kind=kind, dtype=dtype), tolerance=2e-5)

    @pytest.mark.parametrize(
        "shape", [(2, 1024, 256, 16), (1, 832, 512, 8), (1, 832, 256, 64), (1, 832, 128, 256)], ids=str
    )
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_operands_by_way_of_shared_memory(
        self, shape: tuple[int, int, int, int], kind: str, dtype: torch.dtype
    ) -> None:
        """832 steps are 13 stretches between checkpoints: segments of 5, 5 and 3."""
        check(operands(*shape, kind=kind, dtype=dtype), tolerance=2e-5)

    @pytest.mark.parametrize("regime", ["sigmoid", "reset", "ones"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_regimes(self, regime: str, kind: str) -> None:
        check(operands(2, 1037, 96, 16, kind=kind, regime=regime), tolerance=5e-5)

    @pytest.mark.parametrize("N", [1, 8, 128, 256])
    @pytest.mark.parametrize("kind", KINDS)
    def test_numbers_of_states(self, N: int, kind: str) -> None:
        check(operands(1, 300, 33, N, kind=kind), tolerance=2e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_long(self, kind: str) -> None:
        check(operands(1, 8_777, 64, 16, kind=kind), tolerance=5e-5)
