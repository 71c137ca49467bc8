"""Attention models with fixed decays, phases, bonuses and gates on both sides, by other formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import UsageError
from ssmperf.authoring import Model
from ssmperf.suitekit import registry

B, T, C, H, K, V = 2, 19, 6, 3, 4, 5
MATRIX = {"H": H, "K": K, "V": V}
LOWERED = ("tnl", "cosformer", "lrpe", "rwkv5", "rwkv6", "dur", "gfw", "decaying_fast_weights")


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str, sizes: dict[str, int] = MATRIX, **options: Any) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls(sizes, **options).double()


def run(recurrence: str, **operands: Any) -> Tensor:
    output: Tensor = registry.recurrence(recurrence).definition(**operands)[0]
    return output


def heads(model: Model, x: Tensor, *names: str) -> list[Tensor]:
    """Linear maps of x by name, by head."""
    return [getattr(model, name)(x).unflatten(-1, (H, -1)) for name in names]


def assert_same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def assert_different(got: Tensor, want: Tensor, least: float = 0.05) -> None:
    assert (got - want).abs().max() > least * want.abs().max()


def ages() -> Tensor:
    """t − s as [t, s]."""
    return torch.arange(T).view(T, 1) - torch.arange(T)


@pytest.mark.parametrize("backend", ["chunkwise", "surrogate", "blelloch", "logspace"])
@pytest.mark.parametrize("name", LOWERED)
def test_a_parallel_backend_computes_the_papers_equation(name: str, backend: str) -> None:
    model, x = build(name), normal(B, T, H * V)
    y, _ = model(x, backend=backend)
    assert_same(y, model.definition(x))


def test_tnl_decays_by_alibi_slopes() -> None:
    log_a = build("tnl", {"H": 8, "K": 1, "V": 1}).operands(normal(1, 2, 8))["log_a"]
    assert_same(
        log_a, -torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]).double()
    )
    for depth in (0.25, 1.0):
        deeper = build("tnl", {"H": 8, "K": 1, "V": 1}, depth=depth).operands(normal(1, 2, 8))["log_a"]
        assert_same(deeper, (1 - depth) * log_a)


def test_tnl_is_attention_with_a_linear_bias_in_the_logarithm() -> None:
    model, x = build("tnl", depth=0.5), normal(B, T, H * V)
    q, k, v = heads(model, x, "query", "key", "value")
    slopes = 2 ** (-8 * torch.arange(1, H + 1, dtype=torch.float64) / H) / 2
    bias = torch.where(ages() >= 0, -slopes.view(H, 1, 1) * ages(), -math.inf)
    scores = torch.einsum("bthk,bshk->bhts", functional.silu(q), functional.silu(k)) * torch.exp(bias)
    assert_same(model.definition(x), torch.einsum("bhts,bshv->bthv", scores, v).flatten(-2))


@pytest.mark.parametrize("name", ["tnl", "rwkv5", "rwkv6"])
@pytest.mark.parametrize("depth", [-0.1, 1.5, math.nan])
def test_a_depth_outside_the_stack_is_refused(name: str, depth: float) -> None:
    with pytest.raises(UsageError, match="depth"):
        build(name, depth=depth)


@pytest.mark.parametrize("max_length", [None, T + 10])
def test_cosformer_is_attention_on_features_turned_by_position(max_length: int | None) -> None:
    """The published form: q and k are each [cos, sin](πn/2M) ⊙ ReLU, and the sum of weights divides."""
    model, x = build("cosformer", max_length=max_length), normal(B, T, H * V)
    q, k, v = heads(model, x, "query", "key", "value")
    angle = math.pi / 2 / (max_length or T) * torch.arange(1, T + 1, dtype=torch.float64).view(1, T, 1, 1)

    def features(z: Tensor) -> Tensor:
        z = functional.relu(z)
        return torch.cat([z * torch.sin(angle), z * torch.cos(angle)], dim=-1)

    weights = torch.einsum("bthk,bshk->bhts", features(q), features(k)).tril()
    assert (weights > -1e-12).all()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    assert_same(model.definition(x), torch.einsum("bhts,bshv->bthv", weights, v).flatten(-2))


def test_cosformer_depends_on_the_length_unless_that_is_fixed() -> None:
    x = normal(B, T, H * V)
    published, fixed = build("cosformer"), build("cosformer", max_length=T)
    assert type(published).depends_on_length and published.depends_on_length and not fixed.depends_on_length
    assert_same(fixed(x)[0], published(x)[0])
    assert_same(fixed(x[:, :9])[0], fixed(x)[0][:, :9])
    assert_different(published(x[:, :9])[0], published(x)[0][:, :9])
    head, state = fixed(x[:, :9])
    tail, _ = fixed(x[:, 9:], state=state)
    assert_same(torch.cat([head, tail], dim=1), fixed(x)[0])
    with pytest.raises(UsageError, match="max_length"):
        build("cosformer", max_length=0)


def test_cosformer_divides_by_no_less_than_the_published_clamp() -> None:
    model, x = build("cosformer"), normal(B, T, H * V)
    torch.nn.init.zeros_(model.query.weight)
    y, _ = model(x)
    assert not y.any()
    output = torch.tensor([[[[2e-7, 1e-7]]], [[[2.0, -1.0]]], [[[2.0, 4.0]]]])
    got = model.readout(output, torch.zeros(3, 1, 1))
    torch.testing.assert_close(got.flatten(), torch.tensor([0.2, 2e6, 0.5]))


def test_lrpe_is_ungated_attention_of_twice_the_width() -> None:
    for learnable in (False, True):
        model, x = build("lrpe", learnable=learnable), normal(B, T, H * V)
        theta = 10000.0 ** (-2 * torch.arange(K, dtype=torch.float64) / (H * V)).expand(H, K)
        if learnable:
            with torch.no_grad():
                model.theta.copy_(normal(H, K, seed=3))
            theta = model.theta
        q, k, v = heads(model, x, "query", "key", "value")
        angle = torch.arange(T).view(1, T, 1, 1) * theta

        def wide(z: Tensor, angle: Tensor = angle) -> Tensor:
            return torch.cat([z * torch.cos(angle), z * torch.sin(angle)], dim=-1)

        real = run("linear_attention", q=wide(q), k=wide(k), v=v).flatten(-2)
        assert_same(real, model.definition(x))
        assert_same(model(x)[0], real)


def test_lrpe_starts_its_learnable_phases_at_the_fixed_ones() -> None:
    x = normal(1, 2, H * V)
    fixed, learnable = build("lrpe"), build("lrpe", learnable=True)
    assert fixed.theta is None and learnable.theta.shape == (H, K)
    torch.testing.assert_close(fixed.operands(x)["phase"], learnable.operands(x)["phase"], rtol=1e-6, atol=0)
    y = learnable(normal(B, T, H * V))[0]
    assert torch.autograd.grad(y.square().sum(), learnable.theta)[0].all()


@pytest.mark.parametrize("name", ["rwkv5", "rwkv6"])
def test_rwkv_weighs_the_past_by_its_decays_and_the_present_by_its_bonus(name: str) -> None:
    model, x = build(name), normal(B, T, H * V)
    r, k, v = heads(model, x, "receptance", "key", "value")
    log_w = model.operands(x)["log_a"].expand(B, T, H, K)
    want = torch.einsum("bthk,hk,bthk->bth", r, model.bonus, k).unsqueeze(-1) * v
    for t in range(T):
        for s in range(t):
            w = torch.exp(log_w[:, s + 1 : t].sum(1))  # without the gate of step t
            want[:, t] = (
                want[:, t] + torch.einsum("bhk,bhk,bhk->bh", r[:, t], w, k[:, s]).unsqueeze(-1) * v[:, s]
            )
    assert_same(model.definition(x), want.flatten(-2))


def test_a_read_before_the_write_is_one_after_it_with_the_next_receptance() -> None:
    model, x = build("rwkv6"), normal(B, T, H * V)
    operands = model.operands(x)
    bonus, r = operands.pop("bonus"), operands["q"]
    assert operands.pop("read") == "pre"
    after = run("linear_attention", **{**operands, "q": torch.cat([r[:, 1:], r[:, :1]], dim=1)})
    present = (r * bonus * operands["k"]).sum(-1, keepdim=True) * operands["v"]
    before = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], dim=1)
    assert_same((before + present).flatten(-2), model.definition(x))
    assert_different(run("linear_attention", **operands).flatten(-2), model.definition(x))


def test_rwkv6_without_its_low_rank_part_is_rwkv5() -> None:
    eagle, finch = build("rwkv5"), build("rwkv6")
    torch.nn.init.zeros_(finch.decay_up.weight)
    eagle.load_state_dict(finch.state_dict(), strict=False)
    x = normal(B, T, H * V)
    assert_same(finch.definition(x), eagle.definition(x))
    assert_same(finch(x)[0], eagle(x)[0])


def test_rwkv6_decays_by_a_double_exponential_of_a_low_rank_map() -> None:
    model, x = build("rwkv6"), normal(B, T, H * V)
    step = model.decay_up(torch.tanh(model.decay_down(x))).unflatten(-1, (H, K))
    assert_same(torch.exp(model.operands(x)["log_a"]), torch.exp(-torch.exp(model.omega + step)))
    assert model.decay_down.weight.shape[0] == 64


def test_rwkv_starts_with_decays_from_slow_to_fast() -> None:
    w = torch.exp(build("rwkv5").log_decay(normal(1, 1, H * V))).flatten()
    assert w[0].item() == pytest.approx(math.exp(-math.exp(-6)))
    assert w[-1].item() == pytest.approx(math.exp(-math.exp(-1)))
    assert (w.diff() < 0).all()
    assert (build("rwkv5", depth=1.0).omega <= build("rwkv5").omega).all()
    assert build("rwkv5", {"H": 1, "K": 1, "V": 2}).omega.isfinite().all()


def test_gates_on_both_sides_are_a_scan_over_the_flattened_state() -> None:
    for name in ("dur", "decaying_fast_weights"):
        model, x = build(name), normal(B, T, H * V)
        q, k, v, f, g = heads(model, x, "query", "key", "value", "key_gate", "value_gate")
        gate = torch.sigmoid(f).unsqueeze(-1) * torch.sigmoid(g).unsqueeze(-2)  # (B, T, H, K, V)
        write = k.unsqueeze(-1) * v.unsqueeze(-2)
        states = run("scan", log_a=torch.log(gate).flatten(2), b=write.flatten(2)).view(B, T, H, K, V)
        assert_same(torch.einsum("bthkv,bthk->bthv", states, q).flatten(-2), model.definition(x))


def test_only_the_published_decaying_fast_weights_have_biases() -> None:
    plain, published = build("dur"), build("decaying_fast_weights")
    assert not any(name.endswith("bias") for name, _ in plain.named_parameters())
    assert sum(name.endswith("bias") for name, _ in published.named_parameters()) == 5
    for name, parameter in published.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    plain.load_state_dict(published.state_dict(), strict=False)
    x = normal(B, T, H * V)
    assert_same(published.definition(x), plain.definition(x))


def test_gated_fast_weights_write_what_they_forget_on_both_sides() -> None:
    """S ← (f gᵀ) ⊙ S + ((1 − f)(1 − g)ᵀ) ⊙ k vᵀ."""
    model, x = build("gfw"), normal(B, T, H * V)
    operands = model.operands(x)
    f, g = torch.exp(operands["log_a"]), torch.exp(operands["log_b"])
    k, v = heads(model, x, "key", "value")
    assert_same(operands["k"], (1 - f) * k)
    assert_same(operands["v"], (1 - g) * v)
    gate = (1 - f).unsqueeze(-1) * (1 - g).unsqueeze(-2)
    kept = f.unsqueeze(-1) * g.unsqueeze(-2)
    assert (gate + kept < 1).all()  # less than the paper's convex (1 − T) + T
    assert_different(model.definition(x), build("dur").definition(x))


def test_lrn_is_hgrn_without_a_lower_bound() -> None:
    lrn, hgrn, raised = (
        build("lrn", {"C": C}),
        build("hgrn", {"C": C}),
        build("hgrn", {"C": C}, lower_bound=0.5),
    )
    for other in (hgrn, raised):
        other.load_state_dict(lrn.state_dict())
    x = normal(B, T, C)
    assert_same(lrn(x)[0], hgrn(x)[0])
    assert_same(lrn.definition(x), hgrn.definition(x))
    assert_different(lrn(x)[0], raised(x)[0])
    assert_same(lrn.operands(x)["log_a"], hgrn.operands(x)["log_a"])
