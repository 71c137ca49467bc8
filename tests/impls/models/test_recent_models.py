"""Mamba-3, gated slot attention and Based by other formulas: weights of all pairs of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ssmperf.impls.models.based import taylor
from torch import Tensor
from torch.nn import functional

from ssmperf import Shape, UsageError
from ssmperf.authoring import Model
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.subject import subject_of
from ssmperf.suitekit import registry

B, T, H, K, V = 2, 19, 3, 6, 4
SIZES = {"H": H, "K": K, "V": V}


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str, sizes: dict[str, int] = SIZES, **options: Any) -> Model:
    """A model in float64 whose parameters differ from their start, where many are 1."""
    torch.manual_seed(0)
    model: Model = registry.model(name).cls(sizes, **options).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.3 * normal(*parameter.shape, seed=50 + number)
    return model


def since(log_gate: Tensor) -> Tensor:
    """Sum (B, T, ...) over the steps after s up to t, as (B, t, s, ...); −∞ for s > t."""
    sums = log_gate.cumsum(1)
    between = sums.unsqueeze(2) - sums.unsqueeze(1)
    causal = torch.ones(T, T).tril().bool().view(1, T, T, *[1] * (log_gate.dim() - 2))
    return torch.where(causal, between, -math.inf)


def mamba3(model: Model, u: Tensor) -> Tensor:
    """Each token is seen by its rotation and its decay since, with both of its weights."""
    delta = functional.softplus(model.step(u) + model.step_bias)
    log_a = -delta * functional.softplus(model.rate(u)).clamp(min=1e-4)
    lam = torch.sigmoid(model.balance(u))
    x = model.input(u).unflatten(-1, (H, V))
    q, k = (
        functional.rms_norm(linear(u), (K,), norm.weight, eps=1e-5).unsqueeze(2) + bias
        for linear, norm, bias in (
            (model.C, model.C_norm, model.C_bias),
            (model.B, model.B_norm, model.B_bias),
        )
    )
    turns = (delta.unsqueeze(-1) * math.pi * torch.tanh(model.angle(u)).unsqueeze(2)).cumsum(1)
    J = turns.shape[-1]
    apart = turns.unsqueeze(2) - turns.unsqueeze(1)  # (B, t, s, H, J)
    qc, kc = (
        torch.complex(z[..., 0 : 2 * J : 2], z[..., 1 : 2 * J : 2]).unsqueeze(axis)
        for z, axis in ((q, 2), (k, 1))
    )
    turned = (qc * kc.conj() * torch.polar(torch.ones_like(apart), apart)).real.sum(-1)
    scores = turned + torch.einsum("bthk,bshk->btsh", q[..., 2 * J :], k[..., 2 * J :])
    decay = torch.exp(since(log_a))
    first = decay * (lam * delta).unsqueeze(1)
    # the token after s writes s again, and decays that write at once: as if s had been written fully then
    again = functional.pad(((1 - lam) * delta)[:, 1:], (0, 0, 0, 1))
    second = decay * again.unsqueeze(1) * (1 - torch.eye(T).view(1, T, T, 1))
    y = torch.einsum("btsh,bshv->bthv", scores * (first + second), x) + model.D.unsqueeze(-1) * x
    return y.flatten(-2)


def gsa(model: Model, x: Tensor) -> Tensor:
    """Softmax attention to slots, each an average of tokens with weights of its own."""
    q, k, v = (functional.silu(getattr(model, name)(x)).unflatten(-1, (H, V)) for name in KQV)
    log_alpha = functional.logsigmoid(model.forget(x)).unflatten(-1, (H, K)) / 8
    weights = torch.exp(since(log_alpha)) * (1 - torch.exp(log_alpha)).unsqueeze(1)  # (B, t, s, H, slot)
    keys, values = (torch.einsum("btshm,bshd->bthmd", weights, each) for each in (k, v))
    slots = torch.softmax(torch.einsum("bthmd,bthd->bthm", keys, q), dim=-1)
    return torch.einsum("bthm,bthmd->bthd", slots, values).flatten(-2)


def based(model: Model, x: Tensor) -> Tensor:
    """Attention with the published map of 1 + n + n² features."""
    q, k, v = (getattr(model, name)(x).unflatten(-1, (H, -1)) for name in KQV)
    n = q.shape[-1]

    def features(z: Tensor) -> Tensor:
        products = (z.unsqueeze(-1) * z.unsqueeze(-2)).flatten(-2) / math.sqrt(2 * n)
        return torch.cat([torch.ones_like(z[..., :1]), z / n**0.25, products], dim=-1)

    weights = torch.einsum("bthf,bshf->bhts", features(q), features(k)).tril()
    assert features(q).shape[-1] == 1 + n + n**2
    return torch.einsum("bhts,bshv->bthv", weights / weights.sum(-1, keepdim=True), v).flatten(-2)


KQV = ("query", "key", "value")
FORMULAS: dict[str, Callable[[Model, Tensor], Tensor]] = {"mamba3": mamba3, "gsa": gsa, "based": based}
each_model = pytest.mark.parametrize("name", FORMULAS)


@each_model
@pytest.mark.parametrize("backend", ["sequential", "chunkwise", "blelloch", "surrogate"])
def test_a_backend_computes_the_formula_and_its_gradients(name: str, backend: str) -> None:
    model = build(name)
    x = normal(B, T, model.width, seed=1).requires_grad_()
    got, want = model(x, backend=backend)[0], FORMULAS[name](model, x)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.definition(x), want, rtol=1e-10, atol=1e-10)
    leaves, direction = (x, *model.parameters()), normal(*want.shape, seed=2)
    for one, other in zip(
        *(torch.autograd.grad((direction * y).sum(), leaves) for y in (got, want)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@each_model
def test_tokens_one_by_one_continue_the_sequence(name: str) -> None:
    model = build(name)
    x = normal(B, T, model.width, seed=1)
    whole, final = model(x, backend="chunkwise")
    state, outputs = None, []
    for x_t in x.split(1, dim=1):
        y, state = model(x_t, state=state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(state, final, rtol=1e-10, atol=1e-11)


def test_mamba3_starts_as_published() -> None:
    torch.manual_seed(0)
    model = registry.model("mamba3").cls({"H": 512, "K": 4, "V": 1})
    step = functional.softplus(model.step_bias)
    assert 1e-3 * (1 - 1e-4) <= step.min() < 2e-3 and 5e-2 < step.max() <= 1e-1 * (1 + 1e-4)
    assert all((each == 1).all() for each in (model.B_bias, model.C_bias, model.D))
    assert (model.width, model.angle.out_features) == (256, 1)


@pytest.mark.parametrize(("fraction", "pairs"), [(0.5, 2), (1.0, 4)])
def test_mamba3_turns_a_share_of_its_channels(fraction: float, pairs: int) -> None:
    model = build("mamba3", {"H": 2, "K": 8, "V": 3}, rope_fraction=fraction)
    assert model.angle.out_features == pairs
    x = normal(B, T, model.width, seed=1)
    still = build("mamba3", {"H": 2, "K": 8, "V": 3}, rope_fraction=fraction)
    torch.nn.init.zeros_(still.angle.weight)
    q, k = model.operands(x)["q"], still.operands(x)["q"]
    assert ((q != k).any(dim=2).any(dim=1).any(dim=0) == (torch.arange(8) < 2 * pairs)).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [({"expand": 5}, "divide"), ({"rope_fraction": 0.1}, "pair"), ({"rope_fraction": 2.0}, "pair")],
)
def test_mamba3_refuses_sizes_that_do_not_fit(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        build("mamba3", **options)


def test_mamba3_without_turns_and_second_writes_is_an_euler_step() -> None:
    """With λ = 1 and no angle, S_t = exp(ΔA) S_{t−1} + Δ k xᵀ, the form of Mamba-2."""
    model, u = build("mamba3"), normal(B, T, H * V // 2, seed=1)
    with torch.no_grad():
        model.angle.weight.zero_()
        model.balance.weight.zero_()
    always = torch.nn.Linear(model.width, H).double()
    torch.nn.init.zeros_(always.weight)
    torch.nn.init.constant_(always.bias, 800.0)
    model.balance = always
    operands = model.operands(u)
    parts = model.parts(u)
    delta = functional.softplus(model.step(u) + model.step_bias)
    euler, _ = registry.recurrence("linear_attention").definition(
        q=parts.q, k=parts.k, v=delta.unsqueeze(-1) * parts.v, log_a=operands["log_a"]
    )
    want = euler + model.D.unsqueeze(-1) * parts.v
    torch.testing.assert_close(model(u)[0], want.flatten(-2), rtol=1e-11, atol=1e-11)


def test_a_slot_forgets_what_it_takes_up() -> None:
    """A constant input fills every slot with one key and one value, whatever the gates."""
    model = build("gsa")
    x = normal(1, 1, H * V, seed=1).expand(1, 4000, -1)
    y, state = model(x, backend="chunkwise")
    v = functional.silu(model.value(x[:, -1]))
    torch.testing.assert_close(y[:, -1], v, rtol=1e-6, atol=1e-6)
    keys, values = state.chunk(2, dim=-1)
    torch.testing.assert_close(values, v.view(1, H, 1, V).expand_as(values), rtol=1e-6, atol=1e-6)
    k = functional.silu(model.key(x[:, -1]))
    torch.testing.assert_close(keys, k.view(1, H, 1, V).expand_as(keys), rtol=1e-6, atol=1e-6)


def test_a_layer_that_calls_its_recurrence_twice_is_judged_inside_on_the_last_call() -> None:
    shape = Shape(B=1, T=8, H=H, K=K, V=V)
    case = Case(
        suite="correctness", model="gsa", recurrence="linear_attention", backend="sequential", shape=shape,
        dtype="float32", gate_dtype="float32", pass_="forward", device="cpu", level="block",
    )  # fmt: skip
    subject = subject_of(case, "cpu")
    values = subject.values(0, with_state=False)
    lowered = subject.lower(values.operands)
    assert {name for name, value in lowered.items() if value is not None} == {"q", "k", "v", "log_a"}
    assert lowered["v"].shape[-1] == V
    inner = subject.inner(values)
    assert inner is not None and inner.grad_output.shape == (1, 8, H, V)


@pytest.mark.parametrize(("K", "n"), [(3, 1), (5, 1), (6, 2), (16, 4), (152, 15), (153, 16), (160, 16)])
def test_based_has_the_largest_map_that_fits(K: int, n: int) -> None:
    model = registry.model("based").cls({"H": 1, "K": K, "V": 2})
    assert model.query.out_features == n
    z, w = normal(7, n, seed=1), normal(7, n, seed=2)
    phi, psi = taylor(z, K), taylor(w, K)
    assert phi.shape == (7, K)
    product = (z * w).sum(-1)
    torch.testing.assert_close((phi * psi).sum(-1), 1 + product + product.square() / 2)
    assert not phi[:, (n + 1) * (n + 2) // 2 :].any()


def test_based_needs_three_features() -> None:
    with pytest.raises(UsageError, match="3"):
        registry.model("based").cls({"H": 1, "K": 2, "V": 2})
