"""A read before the write, and its bonus, in the Triton kernels: see `support.kernels.attention`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssmperf.impls._triton import plan
from ssmperf.impls.linear_attention._triton import bonus, step
from support.kernels.attention import (
    DEVICE,
    C,
    assert_matches,
    attention,
    cut_into,
    gpu,
    made_complex,
    moved,
    tiny,
)
from support.kernels.table import evaluate, sample

from ssmperf import Shape
from ssmperf.suitekit import registry

Read = tuple[list[torch.Tensor], torch.Tensor]


def before_the_write(
    T: int,
    *,
    kind: str = "key",
    dtype: str = "float32",
    state: bool = True,
    weighted: bool = True,
    regime: str = "gla",
    **sizes: int,
) -> dict[str, Any]:
    """Draw operands of two sequences, with (weighted) a bonus of either sign."""
    shape = Shape(**{"B": 2, "H": 3, "K": 16, "V": 16, **sizes}, T=T)
    operands = sample("linear_attention", shape, regime=regime, kind=kind, dtype=dtype)
    if weighted:
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
    monkeypatch.setattr(step, "BLOCK", request.param)
    plan.forget()


@pytest.fixture(params=[True, False], ids=["bonus", "no bonus"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The tensors among the operands of a read, and its results."""
    cut_into(monkeypatch)
    operands = before_the_write(5, weighted=request.param)
    return [x for x in operands.values() if torch.is_tensor(x)], attention(**operands)[0]


@pytest.mark.slow(but=("4096-True-5", "64-False-2"))
@tiny
@pytest.mark.parametrize("T", [1, 2, 5, C + 1])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.usefixtures("steps_of_a_program")
def test_outputs_and_all_gradients_match_the_definition(T: int, state: bool) -> None:
    assert_matches(before_the_write(T, state=state))


@pytest.mark.slow(but=("64-False-2",))
@tiny
@pytest.mark.parametrize("T", [1, 2, C + 1])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.usefixtures("steps_of_a_program")
def test_a_read_without_a_bonus(T: int, state: bool) -> None:
    assert_matches(before_the_write(T, state=state, weighted=False))


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.usefixtures("steps_of_a_program")
def test_complex_operands(weighted: bool) -> None:
    operands = before_the_write(5, kind="key_complex", K=4, V=3, weighted=weighted)
    made_complex(operands, "qkv")
    assert_matches(operands)


@pytest.mark.slow(but=("64-3-5",))
@tiny
@pytest.mark.parametrize(("K", "V"), [(3, 5), (20, 33), (33, 8)])
@pytest.mark.usefixtures("steps_of_a_program")
def test_widths_that_fill_no_tile(K: int, V: int) -> None:
    assert_matches(before_the_write(9, K=K, V=V))


@pytest.mark.slow(but=("64-none", "4096-scalar", "4096-both"))
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
@pytest.mark.parametrize("weighted", [True, False])
def test_operands_in_other_orders_of_memory(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads before steps, every second channel, and one head that is expanded to all."""
    cut_into(monkeypatch)
    operands = before_the_write(5, weighted=weighted)
    given = {name: operands[name].detach() for name in ("q", "k", "v")}
    given["q"] = given["q"].transpose(1, 2).contiguous().transpose(1, 2)
    given["k"] = given["k"][:, :, :1].expand(given["k"].shape)
    given["v"] = given["v"].repeat_interleave(2, -1)[..., ::2]
    assert not any(x.is_contiguous() for x in given.values())
    assert_matches(operands | {name: x.requires_grad_() for name, x in given.items()})


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.usefixtures("steps_of_a_program")
def test_nothing_leaks_between_sequences_and_heads(axis: int, weighted: bool) -> None:
    """Sequences or heads around one of NaN have the results and gradients that they have around numbers."""
    operands = before_the_write(9, B=3, state=False, weighted=weighted)
    spoilt = dict(operands)
    for name in ("q", "k", "v"):
        spoilt[name] = operands[name].detach().clone()
        spoilt[name].select(axis, 1).fill_(torch.nan)
        spoilt[name].requires_grad_()
    sides, found = torch.tensor([0, 2], device=DEVICE), {}
    for label, each in (("clean", operands), ("spoilt", spoilt)):
        wanted = [each[name] for name in ("q", "k", "v", "log_a")]
        o, last = attention(**each)
        gradients = torch.autograd.grad([o.square().sum() + last.square().sum()], wanted)
        found[label] = [x.index_select(axis, sides) for x in (o, *gradients)]
        found[label].append(last.index_select(min(axis, 1), sides))
    for clean, beside in zip(found["clean"], found["spoilt"], strict=True):
        assert torch.equal(clean, beside)


@tiny
def test_a_second_backward_pass_gives_the_same_gradients(read: Read) -> None:
    """Gradients are added in place: in that of the other way, not in what was saved."""
    operands, o = read
    loss = o.square().sum()
    first = torch.autograd.grad(loss, operands, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, operands)))


@pytest.mark.slow(but=("no bonus",))
@tiny
def test_gradients_of_results_may_be_one_number_expanded(read: Read) -> None:
    operands, o = read
    expanded = torch.autograd.grad(o.sum(), operands, retain_graph=True)
    assert all(map(torch.equal, expanded, torch.autograd.grad(o, operands, torch.ones_like(o))))


@pytest.mark.slow
@tiny
@pytest.mark.parametrize("weighted", [True, False])
def test_a_gradient_of_the_last_state_alone(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a read after the write, which the queries and the bonus do not enter."""
    cut_into(monkeypatch)
    operands = before_the_write(5, weighted=weighted)
    names = ["q", "k", "v", "log_a", "initial_state"]
    after = {name: x for name, x in operands.items() if name not in ("bonus", "read")}
    found, expected = (
        torch.autograd.grad(attention(**each)[1].square().sum(), [operands[name] for name in names])
        for each in (operands, after)
    )
    assert found[0].eq(0.0).all()
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow(but=("k", "log_a"))
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


@pytest.mark.slow(but=("False-False",))
@tiny
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_forward_pass_plans_its_backward_pass(
    weighted: bool, state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_into(monkeypatch)
    operands = before_the_write(5, V=8, state=state, weighted=weighted)
    o, _ = attention(**operands)
    every = (step.earlier, step.later, bonus.bonus_grads)
    plans = [dict(each.plans) for each in every]
    o.backward(torch.ones_like(o))
    assert [each.plans for each in every] == plans
    assert bool(bonus.bonus_grads.plans) == weighted


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
    (out,) = bonus.bonus_pass(q, k, v, u, before, None, None, keep=False)
    assert out[:, 0].eq(4.0).all() and out[:, 1:].eq(7.0).all()  # w v = 1 · 0.5 · 4 channels · 2
    dearly, dk, dv = (framed(value, B, T, H, K) for value in (3.0, 5.0, 7.0))
    dq, _, _, du = bonus.bonus_grads(q, k, v, u, do, dearly, None, dk, dv, None)
    assert dq[:, 0].eq(4.0).all() and dq[:, 1:].eq(7.0).all()
    assert dk.eq(13.0).all() and dv.eq(9.0).all()
    assert all(x._base is not None and x._base[[0, -1]].isnan().all() for x in (dk, dv))
    assert du.sum((0, 1)).eq(8 * 0.5 * T).all()
    (early,), (late,) = step.earlier(q, None), step.later(q, None, None)
    assert early[:, :-1].eq(1.0).all() and early[:, -1].eq(0.0).all()
    assert late[:, 1:].eq(1.0).all() and late[:, 0].eq(0.0).all()


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
@pytest.mark.parametrize("kind", ["scalar", "key_complex"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("T", [1, 193])
def test_a_read_without_a_bonus_on_a_gpu(T: int, dtype: str, kind: str) -> None:
    assert_matches(before_the_write(T, kind=kind, K=64, V=48, dtype=dtype, weighted=False), dtype)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("weighted", [True, False])
def test_complex_operands_on_a_gpu(weighted: bool) -> None:
    operands = before_the_write(193, kind="key_complex", K=20, V=33, weighted=weighted)
    made_complex(operands, "qkv")
    assert_matches(operands)


@pytest.mark.gpu
@gpu
def test_gradients_repeat_to_the_bit_on_a_gpu() -> None:
    operands = before_the_write(700, K=128, V=128, dtype="bfloat16")
    first, second = evaluate(attention, operands), evaluate(attention, operands)
    for (name, a, _), (_, b, _) in zip(first.items(), second.items(), strict=True):
        assert torch.equal(a, b), name
