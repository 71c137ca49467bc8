"""The triton scan with time innermost in memory, against the definition in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.kernels.kernel_check import kernel_check, outcome
from torch import Tensor

from ssmperf import REGIMES
from ssmperf.authoring import log_gates
from ssmperf.suitekit import registry

ENTRY = registry.backend("scan", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

from ssmperf.impls._triton.plan import Plan, Slot  # noqa: E402
from ssmperf.impls._triton.slots import ALIGNMENT  # noqa: E402
from ssmperf.impls.scan._triton import function, tiles, time_last  # noqa: E402

DEFINITION = registry.recurrence("scan").definition
STEPS, RUNS = 2, 8
TILE = STEPS * RUNS
REAL, COMPLEX_GATE, COMPLEX = "real", "real-b-complex-gate", "complex"
KINDS = (REAL, COMPLEX_GATE, COMPLEX)
Given = dict[str, Tensor | None]

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device"),
]


# Vectors reach over an end of a row, and what lies there is dropped after it was picked from a run: NumPy
# warns where those bits are a signalling NaN.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in reduce:RuntimeWarning")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tiles.RowTiles(steps=STEPS, runs=RUNS, warps=1, stages=1)
    monkeypatch.setattr(time_last, "row_tiles", lambda pass_, widths, *, few: cut)


def operands(
    B: int, T: int, C: int, *, kind: str = REAL, regime: str = "sigmoid", state: bool = True,
    log_a: tuple[int, ...] | None = None, phase: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32, gate_dtype: torch.dtype = torch.float32,
) -> Given:  # fmt: skip
    """Every operand with a time axis has it innermost in memory."""
    generator = torch.Generator().manual_seed(0)
    phase = phase or (B, T, C)
    wide = torch.float32 if kind == REAL else torch.complex64
    given: Given = {
        "log_a": log_gates(regime, log_a or (B, T, C), generator).to(gate_dtype),
        "b": torch.randn(B, T, C, generator=generator, dtype=wide if kind == COMPLEX else None),
        "initial_state": torch.randn(B, C, generator=generator, dtype=wide) if state else None,
        "phase": None if kind == REAL else torch.randn(phase, generator=generator).to(gate_dtype),
    }
    if kind != COMPLEX:
        given["b"] = given["b"].to(dtype)
    return {name: x if x is None else innermost(x.to(DEVICE)) for name, x in given.items()}


def innermost(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 3 else x


def check(given: Given, tolerance: float = 0.0) -> None:
    got = kernel_check("scan", ENTRY.function, given, tolerance, lay_out=innermost)
    for name in ("output", "d b", "d log_a", "d phase"):
        x = got.get(name)
        assert x is None or x.dim() < 3 or x.shape[1] == 1 or x.stride(1) == 1, f"{name} {x.stride()}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [2, TILE, TILE + 3])
def test_agrees_with_the_definition(small: None, kind: str, T: int) -> None:
    check(operands(1, T, 2, kind=kind, regime="reset"))


def test_without_a_state(small: None) -> None:
    check(operands(2, TILE + 1, 1, state=False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16])
def test_half_precision(small: None, dtype: torch.dtype, gate_dtype: torch.dtype) -> None:
    check(operands(1, TILE + 1, 2, dtype=dtype, gate_dtype=gate_dtype))


@pytest.mark.parametrize(
    ("log_a", "phase"),
    [
        ((2,), None),
        ((2, 1, 1), None),
        ((1, 11, 2), None),
        ((2, 11, 1), None),
        ((1, 11, 1), None),
        ((2,), (2,)),
        ((1,), (2, 11, 2)),
        ((11, 1), (2, 1, 1)),
    ],
    ids=str,
)
def test_gates_that_broadcast(small: None, log_a: tuple[int, ...], phase: tuple[int, ...] | None) -> None:
    kind = REAL if phase is None else COMPLEX_GATE
    check(operands(2, 11, 2, kind=kind, log_a=log_a, phase=phase), tolerance=5e-5)


def test_a_constant_gate_is_never_as_large_as_h() -> None:
    given = operands(2, TILE, 3, log_a=(1, 1, 3))
    gate, like = Slot.of(given["log_a"]), Slot.of(given["b"])
    _, partial = time_last.gate_gradient(Plan([gate]), gate, True, like)
    assert partial is not None
    assert partial.numel() == 2 * 3


def test_operands_are_read_where_they_are() -> None:
    given = operands(2, TILE, 3, kind=COMPLEX)
    for name in ("b", "log_a"):
        assert time_last.rows(given[name]).data_ptr() == given[name].data_ptr()
        assert time_last.time_last(given[name]) is given[name]


@pytest.mark.parametrize("which", ["log_a", "b"])
def test_the_output_lies_as_b_whatever_the_gates_do(small: None, which: str) -> None:
    given = operands(2, TILE + 1, 3)
    given[which] = given[which].contiguous()
    h, final = ENTRY.function(given["log_a"], given["b"], given["initial_state"])
    assert h.stride() == given["b"].stride()
    double = {name: x.double() for name, x in given.items() if x is not None}
    for got, want in zip((h, final), DEFINITION(**double), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_follow_one_another(small: None) -> None:
    given = operands(2, TILE + 4, 2, kind=COMPLEX)
    given |= {name: given[name][:, 3:] for name in ("b", "log_a", "phase")}
    assert given["b"].stride(1) == 1
    check(given)


def test_operands_that_begin_anywhere(small: None) -> None:
    """Not where vectors of 16 bytes do."""
    given = operands(1, TILE - 3, 2)
    for name in ("b", "log_a"):
        room = torch.zeros(1 + given[name].numel(), device=DEVICE)
        moved = room[1:].view(1, 2, TILE - 3).transpose(1, 2)
        given[name] = moved.copy_(given[name])
        assert moved.data_ptr() % ALIGNMENT
    check(given)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_no_vector_reaches_beyond_memory(small: None, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """B·T·C is odd: the last vector of every operand is cut short. Its memory is not."""
    watched = []

    class Watching:
        def __init__(self, kernel: Any, reads: int) -> None:
            self.kernel, self.reads = kernel, reads

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(log_a: Tensor, phase: Tensor | None, *rest: Any, **flags: Any) -> None:
                steps = flags["R"]
                gates = [gate for gate in (log_a, phase) if gate is not None and flags["ALONG"]]
                for x in (*rest[: self.reads], *gates):
                    reached = x.storage_offset() + math.ceil(5 * 13 / steps) * steps
                    assert reached * x.element_size() <= x.untyped_storage().nbytes()
                    watched.append(5 * 13 % steps)
                self.kernel[grid](log_a, phase, *rest, **flags)

            return run

    for name, reads in (("scan_forward_time_last", 1), ("scan_backward_time_last", 2)):
        monkeypatch.setattr(time_last, name, Watching(getattr(time_last, name), reads))
    check(operands(1, 13, 5, kind=kind))
    assert len(watched) >= 3 and all(watched)


@pytest.mark.parametrize("kind", [REAL, COMPLEX])
def test_segments_joined_by_the_state_equal_the_whole(small: None, kind: str) -> None:
    given = operands(1, TILE + 5, 2, kind=kind)
    whole, final = ENTRY.function(**given)
    parts, state = [], given["initial_state"]
    for span in (slice(0, TILE - 3), slice(TILE - 3, None)):
        cut = {name: x if x is None else x[:, span] for name, x in given.items() if name != "initial_state"}
        part, state = ENTRY.function(**cut, initial_state=state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    torch.testing.assert_close(state, final)


def test_same_bits_twice_and_bitwise_causal(small: None) -> None:
    given = operands(1, TILE + 6, 1)
    first = outcome(ENTRY.function, given, lay_out=innermost)
    second = outcome(ENTRY.function, given, lay_out=innermost)
    assert all(torch.equal(first[name], second[name]) for name in first)
    later = given["b"].clone()
    later[:, TILE + 3 :] += 1
    changed, _ = ENTRY.function(**given | {"b": later})
    assert torch.equal(first["output"][:, : TILE + 3], changed[:, : TILE + 3])
    assert not torch.equal(first["output"], changed)


def test_only_wanted_gradients(small: None) -> None:
    given = operands(1, TILE, 2, state=False)
    h, _ = ENTRY.function(given["log_a"], given["b"].requires_grad_())
    (gradient,) = torch.autograd.grad(h.sum(), [given["b"]])
    want, _ = DEFINITION(given["log_a"], given["b"])
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), [given["b"]])[0])


@pytest.mark.parametrize("few", [False, True])
def test_the_shipped_tiles(monkeypatch: pytest.MonkeyPatch, few: bool) -> None:
    monkeypatch.setattr(time_last, "processors", lambda device: 10_000 if few else 0)
    asked = []
    row_tiles = time_last.row_tiles
    monkeypatch.setattr(
        time_last, "row_tiles", lambda *key, few: asked.append(few) or row_tiles(*key, few=few)
    )
    check(operands(1, 9, 1))
    assert asked == [few, few]


@pytest.mark.parametrize("table", [tiles.ROWS, tiles.FEW_ROWS])
def test_a_tile_gives_every_thread_a_run(table: Any) -> None:
    for key in table:
        for cut in (table[key], *table.others(key)):
            assert cut.runs >= 32 * cut.warps, (key, cut)
            assert math.log2(cut.steps * cut.runs) <= 13


class TestOnDevice:
    """The shipped tiles at sizes that only a GPU can afford."""

    pytestmark = needs_gpu

    @pytest.fixture(autouse=True, params=["one warp per row", "several warps per row"])
    def schedule(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time_last, "ENOUGH_ROWS", 0 if request.param == "one warp per row" else 10_000)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("kind", KINDS)
    def test_regimes(self, regime: str, kind: str) -> None:
        check(operands(2, 1040, 33, kind=kind, regime=regime), tolerance=5e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("gate_dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("T", [512, 1037])
    def test_dtypes(self, dtype: torch.dtype, gate_dtype: torch.dtype, T: int) -> None:
        check(operands(2, T, 64, regime="reset", dtype=dtype, gate_dtype=gate_dtype))

    @pytest.mark.parametrize("shape", [(1, 2, 1), (3, 129, 1), (2, 128, 33), (5, 1023, 130), (8, 640, 1536)])
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


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
def test_offsets_beyond_32_bits() -> None:
    """Two rows more than 2³¹ elements apart."""
    T = 2**30 + 16
    log_a = torch.full((1, 1, 3), -1.0, device=DEVICE)
    b = torch.zeros(1, 3, T, dtype=torch.bfloat16, device=DEVICE).transpose(1, 2)
    b[0, -2, 2] = 1
    h, final = ENTRY.function(log_a, b)
    assert final[0].tolist() == pytest.approx([0, 0, math.exp(-1)], rel=1e-6)
    assert h[0, -1].float().tolist() == pytest.approx([0, 0, math.exp(-1)], rel=2**-8)
    assert not h[0, :-2].any()


def test_the_layout_is_read_off_b() -> None:
    x = torch.zeros(2, 4, 3)
    assert not time_last.is_time_last(x)
    assert time_last.is_time_last(innermost(x))
    assert time_last.is_time_last(x[:, :, :1].contiguous())
    assert not time_last.is_time_last(x[:, :1])
    assert function.widths(innermost(x)) == "float32"
