"""A read before the write, and its bonus, in the Triton kernels: see `support.attention`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls._triton import plan
from ssmperf.impls.linear_attention._triton import bonus
from support.attention import (
    DEVICE,
    C,
    assert_matches,
    assert_plans_backward,
    attention,
    cut_into,
    gpu,
    moved,
    tiny,
)
from support.table import evaluate, sample

from ssmperf import Shape, registry


def before_the_write(
    T: int,
    *,
    kind: str = "key",
    dtype: str = "float32",
    state: bool = True,
    regime: str = "gla",
    **sizes: int,
) -> dict[str, Any]:
    """Draw operands of two sequences, with a bonus of either sign."""
    shape = Shape(**{"B": 2, "H": 3, "K": 16, "V": 16, **sizes}, T=T)
    operands = sample("linear_attention", shape, regime=regime, kind=kind, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    operands["bonus"] = torch.randn(shape["H"], shape["K"], generator=generator)
    if not state:
        del operands["initial_state"]
    return {**moved(operands), "read": "pre"}


@pytest.fixture(params=[4096, 64])
def steps_of_a_program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as usual, and so few that a sequence takes several programs."""
    cut_into(monkeypatch)
    monkeypatch.setattr(bonus, "ELEMENTS", request.param)
    plan.forget()


@tiny
@pytest.mark.parametrize("T", [1, 2, 5, C + 1])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.usefixtures("steps_of_a_program")
def test_outputs_and_all_gradients_match_the_definition(T: int, state: bool) -> None:
    assert_matches(before_the_write(T, state=state))


@tiny
@pytest.mark.parametrize(("K", "V"), [(3, 5), (20, 33), (33, 8)])
@pytest.mark.usefixtures("steps_of_a_program")
def test_widths_that_fill_no_tile(K: int, V: int) -> None:
    assert_matches(before_the_write(9, K=K, V=V))


@tiny
@pytest.mark.parametrize("kind", ["none", "const", "scalar", "both", "key_complex"])
@pytest.mark.usefixtures("steps_of_a_program")
def test_every_gate(kind: str) -> None:
    assert_matches(before_the_write(7, kind=kind))


@tiny
def test_half_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch)
    assert_matches(before_the_write(C + 1, dtype="float16", regime="retnet"), "float16")


@tiny
def test_operands_of_several_types_have_gradients_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch)
    operands = before_the_write(9)
    for name in ("v", "bonus"):
        operands[name] = operands[name].detach().half().requires_grad_()
    gradients = evaluate(attention, operands).gradients
    assert {name: gradients[name].dtype for name in ("q", "v", "bonus")} == {
        "q": torch.float32, "v": torch.float16, "bonus": torch.float16
    }  # fmt: skip
    assert_matches(operands, "float16")


@tiny
@pytest.mark.parametrize("name", ["q", "k", "v", "log_a", "bonus", "initial_state"])
def test_one_gradient_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch)
    operands = {key: x.detach() if torch.is_tensor(x) else x for key, x in before_the_write(5).items()}
    operands[name].requires_grad_()
    wide = {key: x.detach().double() if torch.is_tensor(x) else x for key, x in operands.items()}
    wide[name].requires_grad_()
    definition = registry.recurrence("linear_attention").definition
    (found,), (expected,) = (
        torch.autograd.grad(function(**given)[0].square().sum(), given[name])
        for function, given in ((attention, operands), (definition, wide))
    )
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@tiny
def test_a_forward_pass_plans_its_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch)
    assert_plans_backward(bonus.bonus_grads, before_the_write(5))


@tiny
@pytest.mark.skipif(DEVICE == "cuda", reason="a host's memory has no such neighbours")
def test_nothing_outside_of_the_operands_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row before the first step, and one behind the last, would be read as NaN and keep what they held."""
    cut_into(monkeypatch)
    B, T, H, K, V = 1, 5, 2, 4, 4

    def framed(value: float, *shape: int) -> torch.Tensor:
        """A tensor between rows of NaN, filled with a number."""
        whole = torch.full((shape[0] * shape[1] + 2, *shape[2:]), torch.nan)
        inner = whole[1:-1].view(shape)
        inner.fill_(value)
        return inner

    q, k, u = framed(1.0, B, T, H, K), framed(0.5, B, T, H, K), torch.ones(H, K)
    v, before, do = (framed(value, B, T, H, V) for value in (2.0, 3.0, 1.0))
    (out,) = bonus.bonus_pass(q, k, v, u, before, None, keep=False)
    assert out[:, 0].eq(4.0).all() and out[:, 1:].eq(7.0).all()  # w v = 1 · 0.5 · 4 channels · 2
    dq, dk, dv, du, dbefore = bonus.bonus_grads(q, k, v, u, do)
    assert dq.eq(4.0).all() and dk.eq(8.0).all() and dv.eq(2.0).all()
    assert du.sum((0, 2)).eq(8 * 0.5 * T).all()
    assert dbefore[:, :-1].eq(1.0).all() and dbefore[:, -1].eq(0.0).all()


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["none", "scalar", "key", "both"])
def test_gates_on_a_gpu(kind: str, dtype: str) -> None:
    assert_matches(before_the_write(1009, kind=kind, K=64, V=64, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("K", "V"), [(16, 16), (80, 112), (64, 128), (128, 129), (256, 256)])
@pytest.mark.parametrize("T", [1, 2, 193])
def test_widths_on_a_gpu(T: int, K: int, V: int, dtype: str) -> None:
    assert_matches(before_the_write(T, K=K, V=V, dtype=dtype), dtype)


@pytest.mark.gpu
@gpu
def test_gradients_repeat_to_the_bit_on_a_gpu() -> None:
    operands = before_the_write(700, K=128, V=128, dtype="bfloat16")
    first, second = evaluate(attention, operands), evaluate(attention, operands)
    for (name, a, _), (_, b, _) in zip(first.items(), second.items(), strict=True):
        assert torch.equal(a, b), name
