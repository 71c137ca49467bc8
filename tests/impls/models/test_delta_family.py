"""Models of the delta family by their authors' equations; fewer key heads, other widths, and β up to 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Shape
from ssmperf.authoring import Block, Model
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.build import build_operands, operand_specs
from ssmperf.engine.operands.subject import subject_of
from ssmperf.suitekit import registry

B, T, H, K, V = 2, 13, 4, 6, 5
KEY_HEADS = ("deltanet", "deltaproduct", "gated_deltanet", "kda", "mamba2")
BACKENDS = ("sequential", "chunkwise", "blelloch", "hillis_steele", "torch_scan")


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(module: Any) -> Any:
    """The module in float64, with parameters that differ from their start, where many are 0 or 1."""
    module = module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter += 0.3 * normal(*parameter.shape, seed=50 + number)
    return module


def build(name: str, **sizes: int) -> Model:
    torch.manual_seed(0)
    model: Model = moved(registry.model(name).cls(Shape(B=1, T=1, H=H, K=K, V=V).with_(**sizes)))
    return model


def block_of(name: str, **sizes: int) -> Block:
    torch.manual_seed(0)
    model = registry.model(name).cls(Shape(B=1, T=1, H=H, K=K, V=V).with_(**sizes))
    block: Block = moved(model.block(model))
    return block


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """SiLU of a causal depthwise convolution, as a sum over lags."""
    lags = weight.shape[-1]
    padded = functional.pad(x, (0, 0, lags - 1, 0))
    return functional.silu(
        sum(weight[:, 0, lag] * padded[:, lag : lag + x.shape[1]] for lag in range(lags))  # type: ignore[arg-type]
    )


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def kda_block(block: Any, x: Tensor) -> Tensor:
    """The published layer and its naive recurrence: three convolutions, the state decayed, then corrected."""
    mixer, u = block.mixer, rms(x, block.norm.weight)
    widths = [mixer.key_heads * K, mixer.key_heads * K, H * V]
    filters = block.convolution.weight.split(widths)
    q, k, v = (
        convolved(u @ linear.weight.mT, each)
        for linear, each in zip((mixer.query, mixer.key, mixer.value), filters, strict=True)
    )
    q, k = (z.unflatten(-1, (-1, K)).repeat_interleave(H // mixer.key_heads, dim=2) for z in (q, k))
    q, k = (z / torch.sqrt(z.square().sum(-1, keepdim=True) + 1e-6) for z in (q, k))
    g = (u @ mixer.step_down.weight.mT @ mixer.step_up.weight.mT).unflatten(-1, (H, K)) + mixer.step_bias
    A = mixer.A_log.view(H, 1).exp()
    g = -A * functional.softplus(g) if mixer.lower_bound is None else -5.0 * torch.sigmoid(A * g)
    beta, v = torch.sigmoid(u @ mixer.rate.weight.mT), v.unflatten(-1, (H, V))
    S, outputs = x.new_zeros(B, H, K, V), []
    for t in range(x.shape[1]):
        S = S * g[:, t, :, :, None].exp()
        error = v[:, t] - (k[:, t, :, :, None] * S).sum(-2)
        S = S + (beta[:, t, :, None] * k[:, t])[..., None] * error[..., None, :]
        outputs.append((q[:, t, :, :, None] * K**-0.5 * S).sum(-2))
    down, up = block.gate_projection
    gate = torch.sigmoid(u @ down.weight.mT @ up.weight.mT + up.bias)
    o = rms(torch.stack(outputs, dim=1), block.output_norm.norm.weight).flatten(-2)
    return x + (o * gate) @ block.output.weight.mT


def deltaproduct_block(block: Any, x: Tensor) -> Tensor:
    """The published layer and its recurrence: each token decays the state once and corrects it n times."""
    mixer, u = block.mixer, rms(x, block.norm.weight)
    n = mixer.steps_per_token
    filters = block.convolution.weight.split([H * K, n * H * K, n * H * V])
    q, k, v = (
        convolved(u @ linear.weight.mT, each)
        for linear, each in zip((mixer.query, mixer.key, mixer.value), filters, strict=True)
    )
    q, k, v = q.view(B, -1, H, K), k.view(B, -1, n, H, K), v.view(B, -1, n, H, V)
    q, k = (z / torch.sqrt(z.square().sum(-1, keepdim=True) + 1e-6) for z in (q, k))
    beta = 2 * torch.sigmoid(u @ mixer.rate.weight.mT).view(B, -1, n, H)
    g = -mixer.A_log.exp() * functional.softplus(u @ mixer.step.weight.mT + mixer.step_bias)
    S, outputs = x.new_zeros(B, H, K, V), []
    for t in range(x.shape[1]):
        S = S * g[:, t, :, None, None].exp()
        for j in range(n):
            error = v[:, t, j] - (k[:, t, j, :, :, None] * S).sum(-2)
            S = S + (beta[:, t, j, :, None] * k[:, t, j])[..., None] * error[..., None, :]
        outputs.append((q[:, t, :, :, None] * S).sum(-2))
    gate = functional.silu(u @ block.gate_projection.weight.mT)
    o = rms(torch.stack(outputs, dim=1), block.output_norm.norm.weight).flatten(-2)
    return x + (o * gate) @ block.output.weight.mT


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_block_of_deltaproduct_is_the_published_layer(n: int, backend: str) -> None:
    block = block_of(f"deltaproduct:n_h={n}")
    x = normal(B, T, block.width, seed=1)
    y = deltaproduct_block(block, x)
    want = y + block.channels(block.channel_norm(y))  # type: ignore[operator]
    torch.testing.assert_close(block(x, backend=backend)[0], want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("split", [1, 6, 12])
def test_deltaproduct_continues_after_any_token(split: int) -> None:
    model = build("deltaproduct:n_h=3")
    x = normal(B, T, model.width, seed=1)
    whole, final = model(x, backend="chunkwise")
    head, state = model(x[:, :split])
    tail, last = model(x[:, split:], state=state)
    torch.testing.assert_close(torch.cat([head, tail], dim=1), whole, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(last, final, rtol=1e-9, atol=1e-10)


def test_deltaproduct_of_one_step_without_negative_eigenvalues_is_gated_deltanet() -> None:
    product, gated = build("deltaproduct:n_h=1:allow_neg_eigval=false"), build("gated_deltanet")
    product.load_state_dict(gated.state_dict())
    x = normal(B, T, H * V, seed=1)
    assert torch.equal(product(x)[0], gated(x)[0])


@pytest.mark.parametrize("T", [1, 2, 13])
def test_the_length_of_a_case_counts_the_steps_of_the_recurrence(T: int) -> None:
    """An operation on T steps takes them from as many tokens as are needed; a layer has T tokens."""
    shape = Shape(B=1, T=T, H=H, K=K, V=V)
    case = Case(
        suite="correctness", model="deltaproduct", recurrence="delta_rule", backend="chunkwise", shape=shape,
        dtype="float32", gate_dtype="float32", pass_="forward", device="cpu",
    )  # fmt: skip
    operands = build_operands(case)
    assert {operands[name].shape[1] for name in ("q", "k", "v", "beta", "log_a")} == {T}
    assert (operands["log_a"][:, 1::2] == 0).all() and (operands["log_a"][:, ::2] < 0).all()
    assert operand_specs("deltaproduct", shape) == operand_specs("gated_deltanet", shape)
    block = subject_of(replace(case, level="block"), "cpu")
    inner = block.inner(block.values(0, with_state=False))
    assert inner is not None and inner.operands["k"].shape[1] == inner.grad_output.shape[1] == 2 * T


def rwkv7_block(block: Any, x: Tensor, first: Tensor | None) -> Tensor:
    """The published layer: S (V, K) is transposed, and v and the tokens before x come from elsewhere."""

    def mixed(z: Tensor, shift: Any) -> Tensor:
        before = functional.pad(z, (0, 0, 1, -1))
        return z + (before - z) * (1 - shift.share)

    def low_rank(z: Tensor, pair: Any, inside: Any = lambda y: y) -> Tensor:
        return inside(z @ pair.down.weight.mT) @ pair.up.weight.mT

    m = block.mixer
    z = functional.layer_norm(x, x.shape[-1:], block.norm.weight, block.norm.bias)
    xr, xw, xk, xv, xa, xg = (mixed(z, block.shifts[name]) for name in "rwkvag")
    r, k, v = xr @ m.receptance.weight.mT, xk @ m.key.weight.mT, xv @ m.value.weight.mT
    if first is not None:
        v = v + (first.flatten(-2) - v) * torch.sigmoid(m.share_bias + low_rank(xv, m.share))
    w = -functional.softplus(-(m.decay_bias + low_rank(xw, m.decay, torch.tanh))) - 0.5
    a = torch.sigmoid(m.rate_bias + low_rank(xa, m.rate))
    kk = functional.normalize((k * m.removed).view(B, -1, H, K), dim=-1)
    k = k * (1 + (a - 1) * m.replaced)
    r, w, k, a = (each.view(B, -1, H, K) for each in (r, torch.exp(-torch.exp(w)), k, a))
    v = v.view(B, -1, H, V)
    S, outputs = x.new_zeros(B, H, V, K), []
    for t in range(x.shape[1]):
        sa = S @ -kk[:, t, :, :, None]
        S = S * w[:, t, :, None] + sa @ (kk * a)[:, t, :, None] + v[:, t, :, :, None] @ k[:, t, :, None]
        outputs.append((S @ r[:, t, :, :, None]).squeeze(-1))
    norm = m.output_norm
    y = torch.stack(outputs, dim=1).view(-1, H * V)
    y = functional.group_norm(y, H, norm.weight, norm.bias, eps=1e-5 * V).view(B, -1, H * V)
    y = y + ((r * k * m.bonus).sum(-1, keepdim=True) * v).flatten(-2)
    x = x + (y * low_rank(xg, block.gate, torch.sigmoid)) @ block.output.weight.mT
    z = functional.layer_norm(x, x.shape[-1:], block.channel_norm.weight, block.channel_norm.bias)
    hidden = torch.relu(mixed(z, block.channels.shift) @ block.channels.key.weight.mT) ** 2
    return x + hidden @ block.channels.value.weight.mT


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layer", [0, 2])
def test_the_block_of_rwkv7_is_the_published_layer(layer: int, backend: str) -> None:
    block = block_of(f"rwkv7:layer={layer}:layers=3")
    x = normal(B, T, block.width, seed=1)
    first = normal(B, T, H, V, seed=2) if layer else None
    y, passed, _ = block.in_network(x, first, backend=backend, state=None)
    torch.testing.assert_close(y, rwkv7_block(block, x, first), rtol=1e-9, atol=1e-10)
    assert passed is first or layer == 0


def test_rwkv7_starts_as_published() -> None:
    """In the first layer of 12: decays and shifts of a head's first, middle and last channels."""
    model: Any = registry.model("rwkv7").cls(Shape(B=1, T=1, H=2, K=5, V=5), layers=12)
    C = 10
    w0 = [-6 + 6 * (n / (C - 1)) + 0.5 + 2.5 * (n % 5 - 2) / 2 * abs((n % 5 - 2) / 2) for n in range(C)]
    a0 = [-0.19 + 0.3 * (n % 5 - 2) / 2 * abs((n % 5 - 2) / 2) + 0.4 * (n / (C - 1) - 0.5) for n in range(C)]
    torch.testing.assert_close(model.decay_bias.detach(), torch.tensor(w0))
    torch.testing.assert_close(model.rate_bias.detach(), torch.tensor(a0))
    assert model.key.weight.abs().max() <= 0.05 / C**0.5 < model.value.weight.abs().max() <= 0.5 / C**0.5
    block = model.block(registry.model("rwkv7").cls(Shape(B=1, T=1, H=2, K=5, V=5), layer=3, layers=12))
    moved_from = 1 - (torch.arange(C) / C) ** (0.7 * (1 - 3 / 12))  # the published share of the token before
    torch.testing.assert_close(1 - block.shifts["v"].share, moved_from)
    low, high = (torch.linalg.svdvals(model.decay.up.weight.double())[index].item() for index in (-1, 0))
    assert low == pytest.approx(high) and high == pytest.approx(0.1 * (32 / C) ** 0.5)


def test_the_decay_of_rwkv7_is_bounded() -> None:
    log_a = build("rwkv7").operands(30 * normal(B, T, H * V))["log_a"]
    assert -0.60654 < log_a.min() < -0.6 and log_a.max() < 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("kda", {}), ("kda:lower_bound=-5.0", {}), ("kda:width=7", {"G": 2})],
    ids=["softplus", "bounded", "shared-keys"],
)
def test_the_block_of_kda_is_the_published_layer(name: str, sizes: dict[str, int], backend: str) -> None:
    block = block_of(name, **sizes)
    x = normal(B, T, block.width, seed=1)
    y = kda_block(block, x)
    want = y + block.channels(block.channel_norm(y))  # type: ignore[operator]
    torch.testing.assert_close(block(x, backend=backend)[0], want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("gated_deltanet", 0, 16), ("deltaproduct", 0, 16), ("kda", 1, 16), ("kda:lower_bound=-5.0", 1, 1)],
)
def test_the_rate_of_a_gate_starts_as_published(name: str, least: float, most: float) -> None:
    torch.manual_seed(0)
    rates = registry.model(name).cls(Shape(B=1, T=1, H=256, K=1, V=1)).A_log.exp()
    assert rates.min() > least - 1e-6 and rates.max() < most + 1e-6
    assert (
        rates.min() < least + (most - least) / 20 + 1e-6 and rates.max() > most - (most - least) / 20 - 1e-6
    )


def test_the_bounded_gate_of_kda_stays_above_its_bound() -> None:
    model = build("kda:lower_bound=-5.0")
    log_a = model.operands(30 * normal(B, T, model.width))["log_a"]
    assert log_a.min() >= -5 and log_a.max() <= 0 and log_a.min() < -4.9 and log_a.max() > -0.1


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda"])
def test_beta_reaches_2_with_negative_eigenvalues_allowed(name: str) -> None:
    model, plain = build(f"{name}:allow_neg_eigval=true"), build(name)
    x = normal(B, T, model.width, seed=1)
    torch.testing.assert_close(model.operands(x)["beta"], 2 * plain.operands(x)["beta"])
    torch.testing.assert_close(model(x, backend="chunkwise")[0], model.definition(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("name", KEY_HEADS)
def test_a_model_projects_to_its_key_heads(name: str, G: int) -> None:
    model = build(name, G=G)
    x = normal(B, T, model.width, seed=1)
    operands = model.operands(x)
    assert operands["q"].shape == operands["k"].shape == (B, T * model.steps_per_token, G, K)
    for backend in ("sequential", "chunkwise"):
        torch.testing.assert_close(model(x, backend=backend)[0], model.definition(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", KEY_HEADS)
def test_a_case_gets_all_key_heads_of_a_model_that_has_them(name: str) -> None:
    """A model of H key heads loses the others; a model of G keeps its own, at both levels."""
    entry = registry.model(name)
    shape = Shape(B=1, T=T, H=H, G=2, K=K, V=V)
    case = Case(
        suite="correctness", model=name, recurrence=entry.recurrence, backend="sequential", shape=shape,
        dtype="float64", gate_dtype="float64", pass_="forward", device="cpu",
    )  # fmt: skip
    k = build_operands(case)["k"]
    assert k.shape == (1, T, 2, K) and (k[:, :, 0] != k[:, :, 1]).any()
    subject = subject_of(replace(case, level="block"), "cpu")
    steps = T * build(name, G=2).steps_per_token
    assert subject.lower(subject.values(0, with_state=False).operands)["k"].shape == (1, steps, 2, K)


@pytest.mark.parametrize("name", ["deltanet", "deltaproduct", "gated_deltanet", "kda"])
def test_a_width_is_that_of_x_and_of_the_block(name: str) -> None:
    block = block_of(f"{name}:width=7")
    x = normal(B, T, 7, seed=1)
    assert block.mixer.width == block.width == 7 and block.output.in_features == H * V
    torch.testing.assert_close(block.mixer(x)[0], block.mixer.definition(x), rtol=1e-9, atol=1e-10)
    assert block(x)[0].shape == x.shape


def test_the_norm_of_mamba2_has_a_group_per_key_head() -> None:
    block = block_of("mamba2", G=2)
    x = normal(B, T, H * V, seed=1)
    got: Tensor = block.gated_norm(x)  # type: ignore[operator, assignment]
    groups = x.view(B, T, 2, -1)
    want = groups / torch.sqrt(groups.square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(got, want.flatten(-2) * block.gated_norm.weight)
