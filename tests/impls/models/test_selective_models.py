"""Properties of Mamba and Longhorn alone: their start, their two discretisations, their objective."""

from __future__ import annotations

import pytest
import torch
from support.kernels.table import error
from torch import Tensor, nn

from ssmperf import Shape
from ssmperf.authoring import Model
from ssmperf.suitekit import registry

NAMES = ("mamba", "mamba_zoh", "longhorn")


def build(name: str, **sizes: int) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls(Shape(B=2, T=9, **{"D": 7, "N": 3, **sizes}))


def sequence(D: int = 7) -> Tensor:
    return torch.randn(2, 9, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", ["mamba", "mamba_zoh"])
def test_mamba_starts_with_its_papers_rates_steps_and_skip(name: str) -> None:
    model = build(name, D=1000, N=16)
    A = model.operands(torch.zeros(1, 2, 1000))["A"]
    torch.testing.assert_close(A, -torch.arange(1.0, 17.0).expand(1000, 16))
    step = model.operands(torch.zeros(1, 2, 1000))["delta"]
    assert 1e-3 * (1 - 1e-4) <= step.min() < 1.1e-3 and 0.09 < step.max() <= 1e-1 * (1 + 1e-4)
    assert step.log10().mean().item() == pytest.approx(-2, abs=0.05)
    assert torch.equal(model.D, torch.ones(1000))


@pytest.mark.parametrize(("D", "rank"), [(1, 1), (32, 1), (34, 2), (1536, 48)])
@pytest.mark.parametrize("name", [*NAMES, "longhorn_exact"])
def test_step_sizes_have_a_low_rank_of_the_blocks_width(name: str, D: int, rank: int) -> None:
    """⌈d/16⌉ of d = D/2, unless asked otherwise."""
    sizes = Shape(B=1, T=1, H=D, K=2, V=1) if name == "longhorn_exact" else Shape(B=1, T=1, D=D, N=2)
    down = "beta_down" if name.startswith("longhorn") else "step_down"
    model = registry.model(name).cls
    assert model(sizes).get_submodule(down).weight.shape == (rank, D)
    assert model(sizes, rank=5).get_submodule(down).weight.shape == (5, D)


def test_the_two_discretisations_differ_and_meet_at_small_steps() -> None:
    x = sequence()
    euler, held = build("mamba").double(), build("mamba_zoh").double()
    assert all(torch.equal(a, b) for a, b in zip(euler.parameters(), held.parameters(), strict=True))
    for bias, differ in ((1.0, True), (-20.0, False)):
        for model in (euler, held):
            nn.init.constant_(model.step_bias, bias)
            nn.init.zeros_(model.D)
            nn.init.zeros_(model.step_up.weight)
        assert (error(held.definition(x), euler.definition(x)) > 1e-2) == differ
        assert (error(held(x)[0], euler(x)[0]) > 1e-2) == differ


def test_rates_that_all_states_of_a_channel_share_make_mamba_2() -> None:
    model = build("mamba", D=6).double()
    nn.init.zeros_(model.step_up.weight)
    with torch.no_grad():
        model.A_log[:] = torch.tensor([0.3, 1.1], dtype=torch.float64).repeat_interleave(3).unsqueeze(-1)
        model.step_bias[:] = torch.tensor([-1.0, 0.5], dtype=torch.float64).repeat_interleave(3)
    x = sequence(6)
    o = model.operands(x)
    heads = (2, 9, 2, 3)
    attended, _ = registry.recurrence("linear_attention").definition(
        q=o["q"].unsqueeze(2).expand(heads),
        k=o["k"].unsqueeze(2).expand(heads),
        v=(o["delta"] * x).unflatten(-1, (2, 3)),
        log_a=o["delta"][..., ::3] * o["A"][::3, 0],
    )
    assert error(model(x)[0], attended.flatten(2) + x) < 1e-12


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_longhorn_gate_needs_no_clipping(dtype: torch.dtype, scale: float) -> None:
    operands = build("longhorn", N=16).to(dtype).operands((scale * sequence()).to(dtype))
    wide = torch.promote_types(dtype, torch.float32)
    rounding = 4 * torch.finfo(wide).eps
    k, delta = operands["k"].to(wide), operands["delta"]
    assert delta.dtype == wide
    assert bool((delta * k.square().sum(-1, keepdim=True) <= 1 + rounding).all())
    gates = 1 - delta.unsqueeze(-1) * k.unsqueeze(-2).square()
    assert bool((gates >= -rounding).all()) and bool((gates <= 1).all())


def test_a_longhorn_step_minimises_its_objective_where_the_key_has_one_element() -> None:
    """argmin ‖s − s₀‖² + β (s k − x)² has s − s₀ + β k (s k − x) = 0; elsewhere the diagonal form differs."""
    model = build("longhorn", N=1).double()
    x, start = sequence(), torch.randn(2, 7, 1, dtype=torch.float64)
    beta = torch.sigmoid(model.beta_up(model.beta_down(x)))[:, 0].unsqueeze(-1)
    k = model.key(x)[:, 0].unsqueeze(1)
    _, s = model(x[:, :1], state=start)
    assert (s - start + beta * k * (s * k - x[:, 0].unsqueeze(-1))).abs().max() < 1e-14
