"""The triton scan against the definition in float64: on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.kernels.kernel_check import kernel_check, outcome
from torch import Tensor

from ssmperf import REGIMES, Unsupported, UsageError
from ssmperf.authoring import log_gates
from ssmperf.suitekit import registry

ENTRY = registry.backend("scan", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from ssmperf.impls._triton.plan import Plan, Slot, forget  # noqa: E402
from ssmperf.impls.scan._triton import chain, function  # noqa: E402

DEFINITION = registry.recurrence("scan").definition
STEPS, RUNS, CHANNELS = 2, 4, 8
TILE = STEPS * RUNS
SMALL = function.Tiles(steps=STEPS, runs=RUNS, channels=CHANNELS, vector=1, warps=1, stages=1)
REAL, COMPLEX_GATE, COMPLEX = "real", "real-b-complex-gate", "complex"
KINDS = (REAL, COMPLEX_GATE, COMPLEX)

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device"),
]


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets small tiles, and whether they form a chain."""

    def set_tiles(*, chained: bool = False) -> None:
        monkeypatch.setattr(function, "tiles", lambda pass_, widths, *, chained: SMALL)
        monkeypatch.setattr(function, "processors", lambda device: 10_000 if chained else 0)
        forget()

    yield set_tiles


def schedule_of(pass_: str, given: dict[str, Tensor | None]) -> function.Schedule:
    return function.Schedule.of(pass_, Slot.of(given["b"]), Slot.of(given["log_a"]))


def operands(
    B: int, T: int, C: int, *, kind: str = REAL, regime: str = "sigmoid", seed: int = 0,
    log_a: tuple[int, ...] | None = None, phase: tuple[int, ...] | None = None, state: bool = True,
    dtype: torch.dtype = torch.float32, gate_dtype: torch.dtype = torch.float32, turns: float = 1.0,
) -> dict[str, Tensor | None]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float32 if kind == REAL else torch.complex64
    b = torch.randn(B, T, C, generator=generator, dtype=torch.complex64 if kind == COMPLEX else torch.float32)
    drawn = {
        "log_a": log_gates(regime, log_a or (B, T, C), generator).to(gate_dtype),
        "b": b if kind == COMPLEX else b.to(dtype),
        "initial_state": torch.randn(B, C, generator=generator, dtype=wide) if state else None,
        "phase": None,
    }
    if kind != REAL:
        drawn["phase"] = (turns * torch.randn(phase or (B, T, C), generator=generator)).to(gate_dtype)
    return {name: x if x is None else x.to(DEVICE) for name, x in drawn.items()}


def check(given: dict[str, Tensor | None], tolerance: float = 0.0) -> None:
    kernel_check("scan", ENTRY.function, given, tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [1, TILE - 1, TILE + 1, 2 * TILE + 3])
@pytest.mark.parametrize("regime", ["sigmoid", "reset"])
def test_agrees_with_the_definition(cut: Callable[..., None], kind: str, T: int, regime: str) -> None:
    cut()
    check(operands(1, T, 5, kind=kind, regime=regime))


@pytest.mark.slow(but=("complex-False",))
@pytest.mark.parametrize(("kind", "state"), [*((kind, True) for kind in KINDS), (COMPLEX, False)])
def test_a_chain_of_tiles(cut: Callable[..., None], kind: str, state: bool) -> None:
    groups = 2
    B = 2 if kind == REAL else 1
    given = operands(B, (groups * RUNS + 1) * TILE + 3, 5, kind=kind, regime="reset", state=state)
    cut(chained=True)
    assert schedule_of("forward", given).links == groups * RUNS + 2
    check(given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16])
def test_half_precision(cut: Callable[..., None], dtype: torch.dtype, gate_dtype: torch.dtype) -> None:
    cut()
    check(operands(1, TILE + 1, 5, dtype=dtype, gate_dtype=gate_dtype))


def test_half_input_of_a_complex_gate(cut: Callable[..., None]) -> None:
    cut()
    check(operands(1, TILE + 1, 5, kind=COMPLEX_GATE, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("log_a", "phase", "chained"),
    [
        ((5,), None, False),
        ((5,), None, True),
        ((1, 1, 5), None, True),
        ((2, 1, 1), None, False),
        ((1, 19, 5), None, True),
        ((2, 19, 1), None, False),
        ((2, 19, 1), None, True),
        ((1, 19, 1), None, False),
        ((5,), (5,), False),
        ((5,), (5,), True),
        ((1,), (2, 19, 5), True),
        ((2, 19, 1), (1, 1, 5), False),
        ((2, 1, 1), (19, 1), True),
    ],
    ids=str,
)
@pytest.mark.slow(but=("(2, 19, 1)*", "(1, 19, 5)*", "(1, 1, 5)*"))
def test_gates_that_broadcast(
    cut: Callable[..., None], log_a: tuple[int, ...], phase: tuple[int, ...] | None, chained: bool
) -> None:
    cut(chained=chained)
    kind = REAL if phase is None else COMPLEX_GATE
    check(operands(2, 19, 5, kind=kind, log_a=log_a, phase=phase), tolerance=5e-5)


@pytest.mark.parametrize("chained", [False, True])
def test_const_gate_gradient_needs_no_more_than_a_partial_sum_a_program(
    cut: Callable[..., None], chained: bool
) -> None:
    cut(chained=chained)
    given = operands(2, 3 * TILE, 5, log_a=(1, 1, 5))
    gate = Slot.of(given["log_a"])
    _, partial = function.gate_gradient(Plan([gate]), gate, True, schedule_of("backward", given))
    assert partial is not None
    assert partial.shape == (2, 3 if chained else 1, 5)


@triton.jit
def publish_bits(to, bits: tl.constexpr):
    x = tl.full([1], bits, tl.int32).to(tl.float32, bitcast=True)
    chain.publish(to + tl.arange(0, 1), x, x, tl.full([1], 1, tl.int1))


@pytest.mark.parametrize("bits", [0, -1])
def test_a_published_word_is_never_taken_for_none(bits: int) -> None:
    """Not even one that holds two NaNs of all ones, which stay NaNs."""
    word = torch.full((1,), chain.EMPTY.value, dtype=torch.int64, device=DEVICE)
    publish_bits[(1,)](word, bits)
    assert word.item() != chain.EMPTY.value
    assert word.view(torch.float32).isnan().all() == (bits == -1)


def test_widths() -> None:
    wide, half = torch.zeros(1, 3, 5), torch.zeros(1, 3, 5, dtype=torch.bfloat16)
    assert function.widths(wide, half) == "float32"
    assert function.widths(half, wide) == "mixed"
    assert function.widths(half, half) == function.widths(half, wide[:, :1]) == "half"
    assert function.widths(wide.to(torch.complex64), wide) == "complex"


def test_complex_input_with_a_real_gate(cut: Callable[..., None]) -> None:
    cut()
    check(operands(1, TILE + 1, 5, kind=COMPLEX) | {"phase": None})


def test_channels_beyond_a_block_and_strided_operands(cut: Callable[..., None]) -> None:
    cut()
    given = operands(2, TILE + 1, 2 * CHANNELS + 3)
    strided = {
        name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in given.items() if x is not None
    }
    check(given | strided)


@pytest.mark.parametrize("turns", [100.0, 10_000.0])
def test_large_phases(cut: Callable[..., None], turns: float) -> None:
    cut()
    check(operands(1, TILE + 1, 5, kind=COMPLEX, turns=turns))


@pytest.mark.parametrize("kind", KINDS)
def test_segments_joined_by_the_state_equal_the_whole(cut: Callable[..., None], kind: str) -> None:
    cut()
    given = operands(1, 2 * TILE + 3, 5, kind=kind)
    whole, final = ENTRY.function(*list(given.values())[:3], phase=given["phase"])
    parts, state = [], given["initial_state"]
    for span in (slice(0, TILE - 3), slice(TILE - 3, None)):
        phase = None if given["phase"] is None else given["phase"][:, span]
        part, state = ENTRY.function(given["log_a"][:, span], given["b"][:, span], state, phase=phase)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, final)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REAL, COMPLEX])
def test_same_bits_twice_and_bitwise_causal(cut: Callable[..., None], kind: str) -> None:
    cut(chained=True)
    given = operands(1, (RUNS + 2) * TILE, 5, kind=kind)
    first = outcome(ENTRY.function, given)
    second = outcome(ENTRY.function, given)
    assert all(torch.equal(first[name], second[name]) for name in first)
    later = given["b"].clone()
    later[:, TILE + 3 :] += 1
    changed = outcome(ENTRY.function, given | {"b": later})
    assert torch.equal(first["output"][:, : TILE + 3], changed["output"][:, : TILE + 3])


def test_only_wanted_gradients(cut: Callable[..., None]) -> None:
    cut()
    given = operands(1, TILE, 5)
    h, _ = ENTRY.function(given["log_a"], given["b"].requires_grad_())
    (gradient,) = torch.autograd.grad(h.sum(), [given["b"]])
    want, _ = DEFINITION(given["log_a"], given["b"])
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), [given["b"]])[0])


@pytest.mark.parametrize("kind", [REAL, COMPLEX])
def test_the_shipped_tiles(kind: str) -> None:
    check(operands(1, 9, 3, kind=kind))


def test_refuses_double_precision() -> None:
    given = operands(1, 3, 5)
    with pytest.raises(Unsupported, match="float64"):
        ENTRY.function(given["log_a"], given["b"].double())
    with pytest.raises(Unsupported, match="log_a of dtype"):
        ENTRY.function(given["log_a"].double(), given["b"])


def test_refuses_a_gate_that_does_not_broadcast() -> None:
    given = operands(1, 3, 5)
    with pytest.raises(UsageError, match="does not broadcast"):
        ENTRY.function(given["log_a"][:, :2], given["b"])


class TestOnDevice:
    """The shipped tiles at sizes that only a GPU can afford."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=["strand", "chain"])
    def schedule(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(function, "ENOUGH", 0 if request.param == "strand" else 10_000)
        forget()

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("kind", KINDS)
    def test_regimes(self, regime: str, kind: str) -> None:
        check(operands(2, 1037, 96, kind=kind, regime=regime), tolerance=5e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("regime", ["sigmoid", "gla", "reset"])
    def test_dtypes(self, dtype: torch.dtype, gate_dtype: torch.dtype, regime: str) -> None:
        check(operands(2, 512, 64, regime=regime, dtype=dtype, gate_dtype=gate_dtype))

    @pytest.mark.parametrize("shape", [(1, 1, 1), (3, 129, 1), (2, 128, 33), (5, 1023, 130), (8, 640, 1536)])
    @pytest.mark.parametrize("kind", KINDS)
    def test_shapes(self, shape: tuple[int, int, int], kind: str) -> None:
        check(operands(*shape, kind=kind))

    @pytest.mark.parametrize("log_a", [(96,), (1, 1, 96), (1, 1037, 96), (2, 1037, 1), (2, 1, 1)], ids=str)
    @pytest.mark.parametrize("kind", [REAL, COMPLEX])
    def test_gates_that_broadcast(self, log_a: tuple[int, ...], kind: str) -> None:
        check(operands(2, 1037, 96, kind=kind, log_a=log_a, phase=log_a), tolerance=2e-4)

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [(2, 43_884, 33), (1, 131_072, 64)], ids=str)
    @pytest.mark.parametrize("kind", [REAL, COMPLEX])
    def test_long(self, shape: tuple[int, int, int], kind: str) -> None:
        check(operands(*shape, kind=kind, regime="hgrn_top"), tolerance=5e-5)


class TestChainOnDevice:
    """Programs that really run side by side."""

    pytestmark = needs_gpu

    @pytest.mark.parametrize("kind", [REAL, COMPLEX])
    def test_a_chain_equals_whole_strands(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        given = operands(1, 16_384, 256, regime="hgrn_top", kind=kind)
        assert schedule_of("forward", given).chained
        chained = outcome(ENTRY.function, given)
        monkeypatch.setattr(function, "ENOUGH", 0)
        forget()
        whole = outcome(ENTRY.function, given)
        for name in whole:
            torch.testing.assert_close(chained[name], whole[name], rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", [REAL, COMPLEX])
    def test_a_chain_gives_the_same_bits_whoever_arrives_first(self, kind: str) -> None:
        given = operands(1, 43_884, 1536, kind=kind, regime="hgrn_top")
        first = outcome(ENTRY.function, given)
        for _ in range(20):
            again = outcome(ENTRY.function, given)
            assert all(torch.equal(first[name], again[name]) for name in first)
