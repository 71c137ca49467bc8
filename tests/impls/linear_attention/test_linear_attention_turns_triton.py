"""Complex gates in the Triton kernels of linear_attention: see `support.kernels.attention`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.kernels.attention import (
    DEVICE,
    C,
    assert_matches,
    attention,
    case,
    cut_into,
    gpu,
    made_complex,
    tiny,
)
from support.kernels.table import Operands, error
from torch import Tensor

from ssmperf.engine.tune import tables

H, K = 2, 16
SHAPES = {"none": None, "const": (H,), "const key": (H, K), "scalar": (1, C + 1, H), "key": (1, C + 1, H, K)}


def mixed(gate: str, phase: str, **options: Any) -> Operands:
    """A call whose gate's magnitude and phase have any two of the legal shapes."""
    operands = case(T=C + 1, kind="none", H=H, K=K, V=16, **options)
    generator = torch.Generator().manual_seed(11)

    def drawn(shape: tuple[int, ...] | None, scale: float) -> Tensor | None:
        if shape is None:
            return None
        return (scale * torch.rand(shape, generator=generator)).to(DEVICE).requires_grad_()

    operands["log_a"], operands["phase"] = drawn(SHAPES[gate], -0.2), drawn(SHAPES[phase], 3.0)
    state = operands["initial_state"].detach()
    operands["initial_state"] = torch.complex(state, state.flip(-1)).requires_grad_()
    return operands


@pytest.mark.slow(but=("key-const-16", "const key-key-16", "scalar-scalar-16"))
@tiny
@pytest.mark.parametrize("walk", [0, 16])
@pytest.mark.parametrize(
    ("gate", "phase"),
    [("none", "key"), ("const", "const key"), ("scalar", "scalar"), ("const key", "key"), ("key", "const")],
)
def test_a_gate_and_a_phase_of_any_two_shapes(
    gate: str, phase: str, walk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=walk)
    assert_matches(mixed(gate, phase))


@pytest.mark.slow(but=("1-*", "33-*", "67-options2-*", "67-options1-*"))
@tiny
@pytest.mark.parametrize(
    ("T", "options", "sizes"),
    [
        (1, {}, {}),
        (2 * C + 3, {"H": 2, "K": 20, "V": 40}, {"grad_key": 32}),  # the second tile is not full
        (2 * C + 3, {"K": 40, "V": 33, "dtype": "float16", "regime": "gla"}, {}),
        (C + 1, {"V": 129, "dtype": "float16", "regime": "retnet"}, {"walk": 64, "inner": 64}),
        (4 * C + 3, {"H": 2}, {"fill": 3}),  # in segments
        *((2 * C + 3, {"K": 20, "regime": regime}, {}) for regime in ("small", "reset")),
        (2 * C + 3, {"K": 20, "dtype": "float16", "regime": "small"}, {}),
    ],
)
def test_a_walk_matches_the_definition(
    T: int, options: dict[str, Any], sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, **{"walk": 16, **sizes})
    assert_matches(case(T=T, kind="key_complex", **options), options.get("dtype", "float32"))


@pytest.mark.slow(but=("q-sigmoid",))
@tiny
@pytest.mark.parametrize("regime", ["sigmoid", "small"])
@pytest.mark.parametrize("names", ["q", "k", "qkv"])
def test_a_walk_takes_complex_operands(names: str, regime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=16)
    operands = case(T=C + 5, kind="key_complex", regime=regime, K=10, V=4)
    made_complex(operands, names)
    assert_matches(operands)


@pytest.mark.slow
@tiny
@pytest.mark.parametrize(("dtype", "kept"), [("float32", True), ("float16", False)])
def test_turned_operands_are_kept_for_backward_passes(
    dtype: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssmperf.impls.linear_attention._triton import function

    cut_into(monkeypatch, walk=16)
    operands = case(T=2 * C + 3, kind="key_complex", regime="small", dtype=dtype)
    o, last = attention(**operands)
    leaves = [x for x in operands.values() if isinstance(x, Tensor)]

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(o.float().sum() + last.abs().sum(), leaves, retain_graph=True)

    first = gradients()
    assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
    for plan in function.backward_pass.plans.values():
        launched = {launch.kernel.fn.__name__ for launch in plan.launches}
        assert "la_grads_turned" in launched
        assert ("la_anchor" not in launched) == kept


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("walk", [0, 16])
@pytest.mark.parametrize("kind", ["scalar_complex", "key_complex"])
def test_a_phase_whose_gradient_is_not_wanted(kind: str, walk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, walk=walk)
    operands = case(T=2 * C + 3, kind=kind, regime="reset", H=2)
    others = [operands[name] for name in ("q", "k", "v", "log_a", "initial_state")]

    def gradients() -> tuple[Tensor, ...]:
        o, last = attention(**operands)
        return torch.autograd.grad(o.sum() + last.abs().sum(), others)

    whole = gradients()
    operands["phase"] = operands["phase"].detach()
    for value, expected in zip(gradients(), whole, strict=True):
        assert error(value, expected) < 1e-6


@pytest.mark.slow
@tiny
@pytest.mark.parametrize(
    "options", [{}, {"K": 20, "V": 24}, {"dtype": "float16"}], ids=["even", "odd widths", "float16"]
)
def test_a_walk_takes_wide_chunks_of_complex_gates(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch, walk=16)
    operands = case(T=2 * C + 3, kind="key_complex", regime="small", H=2, **options)
    with torch.no_grad():
        operands["log_a"][:, : C + 1] *= 1e-3  # the first chunk is not wide, one head has a reset
        operands["log_a"][:, C + 5, 1] = -math.inf
    assert_matches(operands, options.get("dtype", "float32"))


@pytest.mark.slow(but=("shape0",))
@tiny
@pytest.mark.parametrize("shape", [(3, 1), (1, 64 * 40 + 7, 3, 1)])
def test_angles_keep_their_digits_over_many_frames(shape: tuple[int, ...]) -> None:
    """40 frames of 64 steps are more than one pass of the kernel that adds them up."""
    from ssmperf.impls._triton.plan import Plan, Slot, planned
    from ssmperf.impls.linear_attention._triton.turns import Frames

    T, H = 64 * 40 + 7, 3

    @planned
    def angles(plan: Plan, phase: Slot) -> tuple[Slot]:
        return (Frames(plan, 1, T, H, 1, phase, 64).angles(),)

    phase = (3 * torch.rand(shape, generator=torch.Generator().manual_seed(7))).to(DEVICE)
    (found,) = angles(phase)
    steps = phase.double().expand(T, H, 1) if len(shape) == 2 else phase[0].double()
    sums = torch.cat([torch.zeros_like(steps[:1]), steps.cumsum(0)])
    at = [*range(0, T, 64), T]
    assert found.shape == (H, len(at), 1)
    assert float(found.abs().max()) <= math.pi
    expected = sums[at].transpose(0, 1)
    turned = torch.polar(torch.ones_like(expected), expected - found.double())
    assert float((turned - 1).abs().max()) < 1e-6


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("walk", [0, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("K", "V", "T"), [(128, 128, 1000), (80, 36, 333), (64, 64, 64)])
@pytest.mark.parametrize("regime", ["gla", "sigmoid", "small"])
def test_complex_gates_on_a_gpu(regime: str, K: int, V: int, T: int, dtype: str, walk: int) -> None:
    table = tables.table("linear_attention/triton")
    rows = {(table.name, key): replace(table.row(key), walk=min(walk, table.row(key).walk)) for key in table}
    with tables.using(rows):
        assert_matches(case(T=T, H=3, K=K, V=V, kind="key_complex", regime=regime, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("gate", "phase"), [("none", "key"), ("const", "const key"), ("scalar", "key")])
def test_a_gate_and_a_phase_of_two_shapes_on_a_gpu(gate: str, phase: str) -> None:
    assert_matches(mixed(gate, phase, dtype="bfloat16"), "bfloat16")


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["key", "key_complex"])
def test_wide_chunks_between_others_on_a_gpu(kind: str, dtype: str) -> None:
    operands = case(T=64 * 20 + 5, H=4, K=128, V=128, kind=kind, regime="sigmoid", dtype=dtype)
    with torch.no_grad():
        operands["log_a"][:, 64 * 5 : 64 * 6] *= 3
        operands["log_a"][:, 64 * 14 : 64 * 14 + 32, ::2, 50] *= 3  # one channel is enough
    assert_matches(operands, dtype)
