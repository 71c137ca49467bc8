"""The cuda delta rule against the definition in float64: on a Hopper, or on threads that stand in for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls._triton import plan
from ssmperf.impls.delta_rule._cuda import function
from support.kernels.kernel_check import kernel_check
from support.without_gpu.hopper_host import HopperHost

from ssmperf import Shape, Unsupported
from ssmperf.suitekit import registry

ENTRY = registry.backend("delta_rule", "cuda")
RECURRENCE = registry.recurrence("delta_rule")
HALF = torch.bfloat16
CHUNK = 64
TOLERANCE = 1e-2  # of results in bfloat16, in the 2-norm
GPU = torch.cuda.is_available() and ENTRY.missing("cuda") is None
DEVICE = "cuda" if GPU else "cpu"

Operands = dict[str, Any]


def operands(
    T: int, gates: str = "scalar", *, B: int = 1, H: int = 2, G: int = 2, K: int = 128, V: int = 128,
    regime: str = "sigmoid", state: bool = True, sequences: int | None = None, rate: float | None = None,
) -> Operands:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    drawn = RECURRENCE.sample(
        Shape(B=B, T=T, H=H, K=K, V=V), regime=regime, generator=generator, gate_kind=gates
    )
    if state:
        drawn["initial_state"] = torch.randn(sequences or B, H, K, V, generator=generator)
    if rate is not None:
        drawn["beta"] = torch.full_like(drawn["beta"], rate)
    drawn |= {name: drawn[name][:, :, :G] for name in ("q", "k")}
    drawn |= {name: drawn[name].to(HALF).contiguous() for name in ("q", "k", "v")}
    return {name: x.to(DEVICE) for name, x in drawn.items() if x is not None}


CASES: dict[str, Operands] = {
    "two chunks and a part": operands(2 * CHUNK + 3, G=1),
    "no state": operands(CHUNK + 1, B=2, H=1, G=1, K=64, V=40, state=False),
    "no gate, rates of 2": operands(CHUNK, "none", H=1, G=1, K=96, rate=2.0),
    "a constant gate": operands(70, "const", H=1, G=1, K=8, V=72),
    "resets": operands(3 * CHUNK, H=1, G=1, K=16, V=16, regime="reset"),
    "gates that forget nearly all": operands(CHUNK + 3, H=1, G=1, K=16, V=16)  # found by fuzz
    | {"log_a": torch.full((1, CHUNK + 3, 1), -18.0, device=DEVICE)},
    "one step": operands(1, H=1, G=1),
    "packed": operands(140, G=1, K=32, V=72, sequences=4),
    "values in two halves": operands(CHUNK + 5, G=1, K=24, V=144),
    "packed, values in two halves": operands(140, H=1, G=1, K=32, V=256, sequences=4),
}
BOUNDS = torch.tensor([0, 60, 127, 127, 140], dtype=torch.int32)  # as suites give them; kernels read int64


@pytest.mark.usefixtures("host")
@pytest.mark.slow(but=("no state", "values in two halves"))
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_definition(name: str) -> None:
    given = CASES[name] | ({"cu_seqlens": BOUNDS.to(DEVICE)} if name.startswith("packed") else {})
    kernel_check("delta_rule", ENTRY.function, given, TOLERANCE)


CUT: list[Operands] = [{}, {"K": 40, "V": 72, "state": False}]
WIDE_WALKS = {f"cuda_delta_walk_{name}" for name in ("wide", "wide_keep", "back_wide")}


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("changed", CUT, ids=str)
def test_segments_agree_with_the_definition(
    changed: Operands, wide: bool, host: HopperHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment's map has no symmetry, so M is not taken for Mᵀ."""
    monkeypatch.setattr(function, "segments_of", lambda *sizes: 3)
    monkeypatch.setattr(function, "waves", lambda *blocks: (1, wide))
    given = operands(6 * CHUNK + 3, G=1, **changed)
    kernel_check("delta_rule", ENTRY.function, given, TOLERANCE)
    walks = WIDE_WALKS | {"cuda_delta_walk_wide_ends", "cuda_delta_walk_back_wide_ends"}
    assert GPU or not wide or walks <= {*host.launched}


WIDE: dict[str, Operands] = {
    "five chunks": operands(4 * CHUNK + 3, B=2, G=1),
    "part of the second strip": operands(CHUNK + 1, H=1, G=1, K=40, V=72, state=False),
    "packed": CASES["packed"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_two_strips_in_a_block_agree_with_the_definition(
    name: str, host: HopperHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "waves", lambda *blocks: (1, True))
    given = WIDE[name] | ({"cu_seqlens": BOUNDS.to(DEVICE)} if name == "packed" else {})
    kernel_check("delta_rule", ENTRY.function, given, TOLERANCE)
    assert GPU or {*host.launched} >= WIDE_WALKS


def test_two_strips_go_into_a_block_where_that_takes_fewer_waves() -> None:
    assert function.waves(128, 64, 132, 1.48) == (1, False)
    assert function.waves(256, 128, 132, 1.48) == (1.48, True)
    assert function.waves(256, 256, 132, 1.48) == (2, False)  # values of one strip


@pytest.mark.parametrize("chunks", [1, 2, 31, 64, 513])
def test_heads_are_cut_where_they_are_few(chunks: int) -> None:
    for heads in (0, 1, 7, 16, 66, 200):
        segments = function.segments_of(chunks, heads, 2, 2, 132)
        assert (segments - 1) * -(-chunks // segments) < chunks  # the last has a chunk
        assert segments == 1 or heads < 66
    assert chunks < 512 or function.segments_of(chunks, 16, 2, 2, 132) > 1


@pytest.mark.usefixtures("host")
def test_takes_a_batch_without_elements() -> None:
    given = {name: x[:0].requires_grad_() for name, x in operands(70, H=1, G=1, K=16, V=16).items()}
    o, final = ENTRY.function(**given)
    assert (o.shape, final.shape) == ((0, 70, 1, 16), (0, 1, 16, 16))
    gradients = torch.autograd.grad(o.sum() + final.sum(), list(given.values()))
    assert [x.shape for x in gradients] == [x.shape for x in given.values()]


@pytest.mark.skipif(GPU, reason="kernels of a device do not say that they ran")
def test_kernels_of_both_passes(host: HopperHost) -> None:
    given = operands(3, H=1, G=1, K=16, V=16)
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    o, final = ENTRY.function(**leaves)
    assert host.launched == ["cuda_delta_chunks", "cuda_delta_walk"]
    torch.autograd.grad(o.sum() + final.sum(), list(leaves.values()))
    assert host.launched[2:] == ["cuda_delta_walk_keep", "cuda_delta_walk_back", "cuda_delta_gradients"]


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("segments", [1, 2])
def test_the_backward_pass_is_planned_with_the_forward_pass(
    segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "segments_of", lambda *sizes: segments)
    given = operands(CHUNK + 3, H=1, G=1, K=16, V=16)
    plan.forget()
    ENTRY.function(**given)
    assert not function.backward_pass.plans
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    o, _ = ENTRY.function(**leaves)
    (made,) = function.backward_pass.plans
    torch.autograd.grad(o.sum(), list(leaves.values()))
    assert list(function.backward_pass.plans) == [made]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": torch.zeros(1, 2, 1, 12, dtype=HALF), "k": torch.zeros(1, 2, 1, 12, dtype=HALF)}, "K = 12"),
        ({"v": torch.zeros(1, 2, 1, 136, dtype=HALF)}, "V = 136"),
        ({"v": torch.zeros(1, 2, 1, 272, dtype=HALF)}, "V = 272"),
        ({"v": torch.zeros(1, 2, 1, 16)}, "float32 operands"),
        ({"log_a": torch.zeros(1, 2, 1, 16)}, "per key channel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_what_it_has_no_kernels_for(change: Operands, reason: str) -> None:
    given = operands(2, H=1, G=1, K=16, V=16, state=False) | change
    with pytest.raises(Unsupported, match=reason):
        ENTRY.function(**given)
