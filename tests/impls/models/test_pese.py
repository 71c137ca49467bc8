"""HGRN's state expansions: their einsums and parameter counts, and the bounds of layers (§3.5)."""

from __future__ import annotations

import pytest
import torch
from ssmperf.impls.models.hgrn import forget_gate, layer_bounds
from torch import Tensor

from ssmperf import UsageError
from ssmperf.authoring import Model
from ssmperf.suitekit import registry

B, T, d, n = 2, 7, 20, 4  # e = d/n = 5, r = d/(n + 1) = 4
SIZES = {"n": n, "d": d, "e": d // n, "r": d // (n + 1), "m": n, "c": d}

# The printed form: x and the weights -> what x becomes; and how many parameters that takes.
PRINTED = {
    "pese_naive": ("d,dnD->nD", n * d**2),
    "pese_lr": ("d,dr,rnD->nD", d * SIZES["r"] * (n + 1)),
    "pese_glt": ("ne,neD->nD", d**2),
    "pese_glti": ("ne,neD,nm->mD", d**2 + n**2),
    "pese_krp": ("d,nd->nd", n * d),
    "pese_kp": ("c,cd,n->nd", d**2 + n),
}
each = pytest.mark.parametrize("name", PRINTED)


def build(name: str, **options: float) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls({"C": n * d}, **options).double()


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@each
def test_an_expansion_is_the_printed_einsum(name: str) -> None:
    model, x = build(name), normal(B, T, d)
    einsum, _ = PRINTED[name]
    first, *rest = einsum.partition("->")[0].split(",")
    out = einsum.partition("->")[2]
    source = x.unflatten(-1, (n, d // n)) if first == "ne" else x
    for gate in ("forget", "input", "output"):
        weights = list(getattr(model, gate))
        assert [len(w.shape) for w in weights] == [len(letters) for letters in rest]
        for weight, letters in zip(weights, rest, strict=True):
            assert weight.shape == tuple(SIZES[letter.lower()] for letter in letters)
        want = torch.einsum(f"bt{first},{','.join(rest)}->bt{out}", source, *weights)
        torch.testing.assert_close(model.expand(x, getattr(model, gate)), want, rtol=1e-12, atol=1e-12)


@each
def test_an_expansion_has_the_printed_number_of_parameters(name: str) -> None:
    model = build(name)
    _, expected = PRINTED[name]
    for gate in ("forget", "input", "output"):
        assert sum(weight.numel() for weight in getattr(model, gate)) == expected
    assert sum(parameter.numel() for parameter in model.parameters()) == 3 * expected


def test_the_low_rank_expansion_has_about_as_many_parameters_as_a_square_map() -> None:
    for width in (64, 384, 1000):
        model = registry.model("pese_lr").cls({"C": n * width})
        assert sum(weight.numel() for weight in model.forget) == pytest.approx(width**2, rel=0.05)


@each
def test_it_scans_n_states_per_channel_and_sums_them(name: str) -> None:
    model, x = build(name), normal(B, T, d)
    operands = model.operands(x)
    assert operands["log_a"].shape == operands["b"].shape == (B, T, n * d)
    y, state = model(x)
    assert y.shape == (B, T, d) and state is not None and state.shape == (B, n * d)
    h, _ = registry.recurrence("scan").definition(**operands)
    o = torch.sigmoid(model.expand(x, model.output))
    torch.testing.assert_close(y, (o * h.view(B, T, n, d)).sum(2), rtol=1e-12, atol=1e-12)


def test_a_naive_expansion_of_one_is_hgrn_without_biases() -> None:
    elementwise = registry.model("hgrn").cls({"C": d}).double()
    expanded = registry.model("pese_naive").cls({"C": d}, n=1, lower_bound=0.5).double()
    elementwise.lower_bound = 0.5
    for gate in ("forget", "input", "output"):
        layer = getattr(elementwise, gate)
        torch.nn.init.zeros_(layer.bias)
        with torch.no_grad():
            layer.weight.copy_(getattr(expanded, gate)[0].squeeze(1).mT)
    x = normal(B, T, d)
    torch.testing.assert_close(expanded.definition(x), elementwise.definition(x), rtol=1e-12, atol=1e-12)


@each
@pytest.mark.parametrize("lower_bound", [0.5, 5 / 6])
def test_a_raised_lower_bound_computes_its_definition(name: str, lower_bound: float) -> None:
    model, x = build(name, lower_bound=lower_bound), normal(B, T, d)
    torch.testing.assert_close(model(x)[0], model.definition(x), rtol=1e-10, atol=1e-12)
    assert (torch.exp(model.operands(x)["log_a"]) >= lower_bound).all()


@each
def test_channels_that_do_not_divide_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="divide"):
        registry.model(name).cls({"C": 4 * d + 2})
    if "gl" in name:
        with pytest.raises(UsageError, match="n² divide"):
            registry.model(name).cls({"C": 4 * 6})


@pytest.mark.parametrize("layers", [1, 2, 6, 24])
def test_layer_bounds_start_at_zero_and_end_below_one(layers: int) -> None:
    bounds = layer_bounds(torch.ones(layers, d, dtype=torch.float64))
    want = torch.arange(layers, dtype=torch.float64) / layers
    torch.testing.assert_close(bounds, want.view(-1, 1).expand(-1, d))
    if layers == 6:
        assert bounds[-1, 0].item() == pytest.approx(5 / 6)


def test_layer_bounds_are_the_running_sum_of_a_softmax_less_its_first_row() -> None:
    gamma = 3 * normal(6, d)
    share = torch.softmax(gamma, dim=0)
    bounds = layer_bounds(gamma)
    torch.testing.assert_close(bounds, share.cumsum(0) - share[:1])
    torch.testing.assert_close(bounds[-1], 1 - share[0])
    assert (bounds[0] == 0).all() and (bounds.diff(dim=0) > 0).all() and (bounds < 1).all()


@pytest.mark.parametrize(("name", "sizes"), [("hgrn", {"C": 12}), ("hgrn_complex", {"C": 12}),
                                             ("hgrn2", {"H": 3, "K": 4, "V": 4})])  # fmt: skip
def test_a_stack_learns_the_bounds_of_its_layers(name: str, sizes: dict[str, int]) -> None:
    gamma = normal(3, 12).requires_grad_()
    bounds, x = layer_bounds(gamma), normal(B, T, 12, seed=1)
    torch.manual_seed(0)
    layers = [registry.model(name).cls(sizes, lower_bound=bound).double() for bound in bounds]
    got = sum(layer(x)[0].square().sum() for layer in layers)
    want = sum(layer.definition(x).square().sum() for layer in layers)
    torch.testing.assert_close(got, want)
    (gradient,) = torch.autograd.grad(got, gamma, retain_graph=True)
    (expected,) = torch.autograd.grad(want, gamma)
    assert gradient.isfinite().all() and gradient.any()
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    for layer, bound in zip(layers, bounds, strict=True):
        floor = torch.log(bound).view(-1)
        log_f = layer.operands(x)["log_a"].reshape(B, T, 12)
        assert (log_f >= floor - 1e-12).all()


def test_a_tensor_of_bounds_is_the_number_in_every_channel() -> None:
    z = normal(5, d)
    for bound in (0.0, 0.3, 5 / 6):
        bounds = torch.full((d,), bound, dtype=torch.float64)
        for one, many in zip(forget_gate(z, bound), forget_gate(z, bounds), strict=True):
            torch.testing.assert_close(one, many, rtol=1e-14, atol=0)
        log_f, rest = forget_gate(z, bounds.requires_grad_())
        assert torch.autograd.grad((log_f + rest).sum(), bounds)[0].isfinite().all()
    with pytest.raises(UsageError, match="lower bound"):
        registry.model("hgrn").cls({"C": 2}, lower_bound=torch.tensor([0.5, 1.0]))
