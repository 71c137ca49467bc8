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
from ssmperf.engine.operands.build import build_operands
from ssmperf.engine.operands.subject import subject_of
from ssmperf.suitekit import registry

B, T, H, K, V = 2, 13, 4, 6, 5
KEY_HEADS = ("deltanet", "gated_deltanet", "kda", "mamba2")
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
    assert operands["q"].shape == operands["k"].shape == (B, T, G, K)
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
    assert subject.lower(subject.values(0, with_state=False).operands)["k"].shape == (1, T, 2, K)


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda"])
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
