"""The triton delta rule against the definition in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ssmperf.impls.delta_rule._triton import function
from ssmperf.impls.delta_rule._triton.carry import segments_of
from ssmperf.impls.delta_rule._triton.tiles import Tiles
from support.kernels.kernel_check import kernel_check
from torch import Tensor
from torch.nn import functional

from ssmperf import Shape, Unsupported
from ssmperf.suitekit import registry

ENTRY = registry.backend("delta_rule", "triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if reason := ENTRY.missing(DEVICE):
    pytest.skip(reason, allow_module_level=True)

RECURRENCE = registry.recurrence("delta_rule")
CHUNK = 64
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter has no products in bfloat16
TOLERANCE = 5e-5  # of float32 results, in the 2-norm
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")]

Operands = dict[str, Any]


def operands(
    T: int, gates: str = "scalar", *, B: int = 1, H: int = 2, G: int = 2, K: int = 16, V: int = 16,
    regime: str = "sigmoid", dtype: torch.dtype = torch.float32, state: bool = True, seed: int = 0,
    keys: Callable[[Tensor], Tensor] = lambda k: k,
) -> Operands:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    shape = Shape(B=B, T=T, H=H, K=K, V=V)
    drawn = RECURRENCE.sample(shape, regime=regime, generator=generator, gate_kind=gates)
    if state:
        drawn["initial_state"] = torch.randn(B, H, K, V, generator=generator)
    drawn["k"] = keys(drawn["k"])
    drawn |= {name: drawn[name][:, :, :G] for name in ("q", "k")}
    drawn |= {name: drawn[name].to(dtype).contiguous() for name in ("q", "k", "v")}
    return {name: x.to(DEVICE) for name, x in drawn.items() if x is not None}


def check(given: Operands, tolerance: float = TOLERANCE) -> dict[str, Tensor]:
    half = given["q"].dtype != torch.float32
    return kernel_check("delta_rule", ENTRY.function, given, 2e-2 if half else tolerance)


@pytest.mark.slow(but=("1-none", "67-scalar", "130-const"))
@pytest.mark.parametrize("gates", ["none", "const", "scalar"])
@pytest.mark.parametrize("T", [1, 2, 63, 64, 67, 130])
def test_agrees_with_the_definition(T: int, gates: str) -> None:
    check(operands(T, gates))


@pytest.mark.slow(but=("reset",))
@pytest.mark.parametrize("regime", ["reset", "ones", "small", "retnet", "s4d"])
def test_every_regime_of_gates_is_exact(regime: str) -> None:
    check(operands(CHUNK + 5, regime=regime))


def test_steep_gates_cost_those_after_them_nothing() -> None:
    """Their sum is some −5,000, of which float32 has three digits after the point (found by fuzz)."""
    given = operands(CHUNK + 5)
    given["log_a"][:, :50] -= 100.3
    check(given, 5e-6)


@pytest.mark.slow(but=("28-24", "16-100"))
@pytest.mark.parametrize(("K", "V"), [(1, 1), (28, 24), (8, 64), (16, 100), (130, 16), (256, 40)])
def test_any_width(K: int, V: int) -> None:
    check(operands(CHUNK + 3, K=K, V=V))


def test_heads_share_keys() -> None:
    check(operands(CHUNK + 9, B=2, H=4, G=2))


def test_half_precision() -> None:
    check(operands(2 * CHUNK + 1, K=32, V=32, dtype=HALF))


@pytest.mark.parametrize("K", [1, 15])
def test_narrow_heads_of_half_types_are_computed_in_float32(K: int) -> None:
    """So few keys are nearly equal that roundings inside of a chunk add up (found by fuzz)."""
    given = operands(67, "none", K=K, V=5, dtype=HALF)
    wide = {name: x.float() for name, x in given.items()}
    results, expected = ENTRY.function(**given), ENTRY.function(**wide)
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result, exact.to(result.dtype))


def test_without_a_state_and_with_a_gradient_through_one_result_alone() -> None:
    given = operands(CHUNK + 3, state=False)
    check(given)
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, final = ENTRY.function(**leaves)
    for result in (o, final):
        found = torch.autograd.grad(result.sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
        assert all(each is None or bool(each.isfinite().all()) for each in found)


@pytest.mark.parametrize("lengths", [[60, 67, 0, 1], [0, 128], [64, 64], [1, 1, 1]], ids=str)
def test_packed_sequences(lengths: list[int]) -> None:
    given = operands(sum(lengths), state=False)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(DEVICE)
    state = torch.randn(len(lengths), 2, 16, 16, generator=torch.Generator().manual_seed(1))
    check({**given, "initial_state": state.to(DEVICE), "cu_seqlens": bounds})


SEGMENTS: dict[str, tuple[int, Operands]] = {
    "no gate": (5, operands(4 * CHUNK + 1, "none", H=1, G=1)),
    "no state": (5, operands(5 * CHUNK, "none", B=2, H=1, G=1, state=False)),
    "two parts of the keys are carried on": (5, operands(8 * CHUNK + 3, H=2, G=1, K=72, V=40)),
    "resets in half precision": (7, operands(7 * CHUNK, regime="reset", dtype=HALF)),
}


@pytest.mark.slow(but=("no gate",))
@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_of_time_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, given = SEGMENTS[name]
    carry, cuts = function.Schedule.carry, set()

    def noted(self: function.Schedule, *slots: Any, **more: Any) -> None:
        cuts.add(self.segments)
        carry(self, *slots, **more)

    monkeypatch.setattr(function.Schedule, "carry", noted)
    monkeypatch.setattr(function, "segments_of", lambda *ignored: count)
    monkeypatch.setattr(function, "tiles", lambda *ignored, **kind: Tiles(walk=32))
    check(given)
    assert cuts == {count}


@pytest.mark.parametrize(
    ("chunks", "programs", "segments"),
    [(512, 4, 27), (512, 16, 8), (512, 32, 4), (512, 64, 1), (128, 32, 4), (32, 32, 1), (3, 2, 1), (1, 1, 1)],
)
def test_heads_are_cut_where_that_pays(chunks: int, programs: int, segments: int) -> None:
    found = segments_of(chunks, programs, 132)
    assert found == segments
    per = -(-chunks // found)
    assert (found - 1) * per < chunks <= found * per


@pytest.mark.slow(but=("1.9",))
@pytest.mark.parametrize("rate", [1.9, 2.0])
def test_near_identical_keys_and_rates_near_two(rate: float) -> None:
    """The inverse has entries up to 2 with alternating signs, which doubling inside of a block loses."""

    def alike(k: Tensor) -> Tensor:
        return functional.normalize(k[:, :1] + 0.02 * k, dim=-1)

    given = operands(2 * CHUNK, "none", keys=alike)
    check({**given, "beta": torch.full_like(given["beta"], rate)}, 2 * TOLERANCE)  # nothing of it fades


@pytest.mark.parametrize("gates", ["none", "const", "scalar"])
def test_one_step_without_gradients(gates: str) -> None:
    given = operands(1, gates, B=3, H=4, G=2, K=20, V=40)
    with torch.no_grad():
        o, final = ENTRY.function(**given)
    wide = {name: x.double() for name, x in given.items()}
    want, last = RECURRENCE.definition(**wide)
    torch.testing.assert_close(o.double(), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(final.double(), last, rtol=0, atol=1e-5)


def test_what_it_does_not_compute_is_refused() -> None:
    with pytest.raises(Unsupported, match="gates per key channel"):
        ENTRY.function(**operands(3, "key"))
    given = operands(3)
    with pytest.raises(Unsupported, match="keys p and r"):
        ENTRY.function(**given, p=given["k"], r=given["k"])
    with pytest.raises(Unsupported, match="float64"):
        ENTRY.function(**{**given, "v": given["v"].double()})
    with pytest.raises(Unsupported, match="K = 257"):
        ENTRY.function(**operands(3, K=257))
