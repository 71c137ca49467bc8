"""The Triton kernels of linear_attention against the definition in float64: see `support.kernels.attention`.

On a CPU in Triton's interpreter (TRITON_INTERPRET=1 before Python starts) with tiny tiles; on a GPU as is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from ssmperf.impls.linear_attention._triton import function, value_gates
from support.kernels.attention import (
    DEVICE,
    KINDS,
    C,
    assert_matches,
    assert_plans_backward,
    attention,
    case,
    cut_into,
    gpu,
    made_complex,
    tiny,
)
from support.kernels.table import REGIMES, detached, error, evaluate
from torch import Tensor

from ssmperf import Unsupported
from ssmperf.engine.tune import tables
from ssmperf.suitekit import registry


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks per chunk and several tiles of K and V at widths that the interpreter can afford."""
    cut_into(monkeypatch)


@pytest.fixture(params=["curated", "chunks"])
def walked_or_not(request: pytest.FixtureRequest) -> Iterator[None]:
    """The curated block sizes, and those without a walk for half types."""
    changes = {"walk": 0} if request.param == "chunks" else {}
    with tables.using(tables.changed("linear_attention/triton", changes)):
        yield


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
@pytest.mark.parametrize("kind", ["none", "scalar", "key_complex", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.usefixtures("small_tiles")
def test_a_forward_pass_plans_its_backward_pass(kind: str, dtype: str) -> None:
    module = value_gates if kind == "both" else function
    assert_plans_backward(module.backward_pass, case(T=C + 1, kind=kind, dtype=dtype))


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
@pytest.mark.parametrize("kind", ["scalar", "key"])
@pytest.mark.usefixtures("small_tiles")
def test_open_gates_between_hard_ones_keep_their_digits(kind: str) -> None:
    """The sums of a chunk's gates are long where no gate is a reset, and differences of them are short."""
    operands = case(T=4 * C, kind=kind)
    hard = torch.arange(4 * C, device=DEVICE) % 2 == 0
    shape = operands["log_a"].shape
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    hard = hard.view(1, -1, *[1] * (len(shape) - 2))
    operands["log_a"] = torch.where(hard, -100 - 3 * numbers, -0.02 * numbers).requires_grad_()
    assert_matches(operands)


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


@pytest.mark.slow(but=("k-scalar", "v-key_complex"))
@tiny
@pytest.mark.parametrize("kind", ["scalar", "key_complex"])
@pytest.mark.parametrize("names", ["q", "k", "v", "qkv"])
@pytest.mark.usefixtures("small_tiles")
def test_complex_operands(names: str, kind: str) -> None:
    operands = case(T=C // 2 + 1, kind=kind, K=4, V=4)
    made_complex(operands, names)
    assert_matches(operands)


@tiny
def test_half_values_of_complex_keys_round_their_gradient_once() -> None:
    """Real and imaginary parts read v, each in a call of its own; gradients are added before rounding."""
    operands = case(T=5, kind="none", K=2, V=3)
    made_complex(operands, "qk")
    half = operands["v"].detach().half()
    found = []
    for v in (half.clone().requires_grad_(), half.float().requires_grad_()):
        o, _ = attention(**detached(operands) | {"v": v})
        o.abs().sum().backward()
        found.append(v.grad.half())
    assert torch.equal(*found)


@pytest.mark.slow
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
    operands["q"] = operands["q"].double()
    with pytest.raises(Unsupported, match="float64"):
        attention(**operands)


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
@pytest.mark.parametrize(
    ("K", "V"), [(16, 16), (64, 128), (128, 64), (100, 36), (256, 256), (128, 129), (64, 65), (256, 129)]
)
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


@tiny
@pytest.mark.parametrize(("kind", "T"), [("key", 1), ("key", C + 1), ("both", 1), ("key_complex", 1)])
def test_small_gates_of_a_short_chunk_keep_their_gradient(
    kind: str, T: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their decay is within a chunk's range, but sums of the size of k v do not hold their gradient."""
    from ssmperf.impls.linear_attention._triton import walking

    cut_into(monkeypatch, walk=16)
    monkeypatch.setitem(walking.LIMITS, torch.float32, 60.0)  # bfloat16's, which the interpreter lacks
    assert_matches(case(T=T, kind=kind, regime="small"))
