"""mLSTM with gates of any size: against the memory that the paper writes without a running maximum."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ssmperf.impls.models.mlstm import running_maximum
from torch import Tensor

from ssmperf.authoring import Model
from ssmperf.suitekit import registry

B, T, H, K, V = 2, 19, 3, 4, 5
GATES = (-80.0, 0.0, 80.0)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str = "mlstm", dtype: torch.dtype = torch.float64, **options: Any) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls({"H": H, "K": K, "V": V}, **options).to(dtype)


def with_gates(model: Model, i: Tensor, f: Tensor) -> Model:
    """Let a model's gates before their activations be i and f (B, T, H), whatever its input."""
    model.gates = lambda x: (i, torch.nn.functional.logsigmoid(f))
    return model


def memory(model: Model, x: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """Compute y by the equations without a maximum: exp(i) overflows float64 above 709."""
    q, k, v = (getattr(model, name)(x).unflatten(-1, (H, -1)) for name in ("query", "key", "value"))
    k = k / math.sqrt(K)
    C, n, y = x.new_zeros(B, H, V, K), x.new_zeros(B, H, K), []  # C as the paper has it, values before keys
    for t in range(x.shape[1]):
        forget, write = torch.sigmoid(f[:, t]), torch.exp(i[:, t])
        C = forget[..., None, None] * C + write[..., None, None] * v[:, t].unsqueeze(-1) * k[:, t].unsqueeze(
            -2
        )
        n = forget[..., None] * n + write[..., None] * k[:, t]
        total = (n * q[:, t]).sum(-1, keepdim=True).abs()
        y.append((C @ q[:, t].unsqueeze(-1)).squeeze(-1) / torch.where(total > 1, total, 1))
    return torch.stack(y, dim=1).flatten(-2)


def extreme(seed: int) -> Tensor:
    """Draw gates of −80, 0 and 80, a little apart from each other."""
    choice = torch.randint(len(GATES), (B, T, H), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(GATES, dtype=torch.float64)[choice] + normal(B, T, H, seed=seed)


def gradients(y: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((normal(*y.shape, seed=9) * y).sum(), leaves)


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Compare each token and head by itself: outputs of different tokens differ by many orders."""
    got, want = (each.detach().double().unflatten(-1, (H, -1)) for each in (got, want))
    assert got.isfinite().all()
    size = want.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    assert ((got - want) / size).abs().max() < tolerance


@pytest.mark.parametrize("backend", ["sequential", "chunkwise", "blelloch"])
@pytest.mark.parametrize("gates", ["mild", "extreme", "open", "closed"])
def test_it_is_the_memory_without_a_maximum(gates: str, backend: str) -> None:
    i, f = {
        "mild": (normal(B, T, H, seed=3), 3 + normal(B, T, H, seed=4)),
        "extreme": (extreme(3), extreme(4)),
        "open": (80 + normal(B, T, H, seed=3), 80 + normal(B, T, H, seed=4)),
        "closed": (-80 + normal(B, T, H, seed=3), -80 + normal(B, T, H, seed=4)),
    }[gates]
    leaves = [each.requires_grad_() for each in (normal(B, T, H * V, seed=1), i, f)]
    model = build()
    y, _ = with_gates(model, i, f)(leaves[0], backend=backend)
    want = memory(model, *leaves)
    assert_close(y, want, 1e-9)
    for got, expected in zip(gradients(y, *leaves), gradients(want, *leaves), strict=True):
        # the slope of a sigmoid near 1, which the paper's form rounds to 0, is below 1e-20
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()) + 1e-20)


def test_gradients_are_those_of_finite_differences() -> None:
    x, i, f = normal(B, 5, H * V, seed=1), 3 * normal(B, 5, H, seed=3), 3 * normal(B, 5, H, seed=4)
    model = build()
    leaves = [each.requires_grad_() for each in (x, i, f)]
    assert torch.autograd.gradcheck(lambda x, i, f: with_gates(model, i, f)(x)[0], leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_follows_gates_of_any_size(dtype: torch.dtype) -> None:
    i, f, x = extreme(3).float(), extreme(4).float(), normal(B, T, H * V, seed=1).to(dtype)
    y, _ = with_gates(build(dtype=dtype), i, f)(x, backend="chunkwise")
    want = memory(build(dtype=dtype).double(), x.double(), i.double(), f.double())
    error = (y.double() - want).detach().unflatten(-1, (H, -1)).norm(dim=-1)
    size = want.detach().unflatten(-1, (H, -1)).norm(dim=-1)
    # a small n·q magnifies what rounding its terms loses, so that some tokens are far off in bfloat16
    assert (error / size.clamp(min=1e-30)).median() < (1e-5 if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("size", [3000.0, 1e6])
def test_no_input_gate_overflows(size: float) -> None:
    """Where |n·q| is above 1, only differences of input gates count."""
    x, f = normal(B, T, H * V, seed=1), normal(B, T, H, seed=4)
    i = torch.round(16 * normal(B, T, H, seed=3)) / 16  # i + size is exact, in float32, too
    want, _ = with_gates(build(), i + 60, f)(x)
    for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-2)):  # a small n·q magnifies rounding
        model = build(dtype=dtype)
        y, _ = with_gates(model, (i + size).to(dtype), f.to(dtype))(x.to(dtype))
        assert_close(y, want, tolerance)
        closed = x.to(dtype).requires_grad_()
        y, _ = with_gates(model, (i - size).to(dtype), (f - size).to(dtype))(closed)
        assert not y.any() and not gradients(y.double(), closed)[0].any()


def test_the_operands_are_bounded_whatever_the_gates() -> None:
    x, model = normal(B, T, H * V, seed=1), build()
    operands = with_gates(model, 40 * extreme(3), 40 * extreme(4)).operands(x)
    assert (operands["log_a"] <= 0).all() and all(value.isfinite().all() for value in operands.values())
    k = model.key(x).unflatten(-1, (H, -1)) / math.sqrt(K)
    assert (operands["k"].abs() <= k.abs() * (1 + 1e-12)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gates", ["extreme", "large"])
def test_tokens_one_by_one_continue_the_sequence(gates: str, dtype: torch.dtype) -> None:
    """The maximum is handed on, too. It is rounded: float32 numbers near 30,000 are 0.002 apart."""
    i, f = extreme(3), extreme(4)
    if gates == "large":
        i, f = 3e4 + normal(B, T, H, seed=3), normal(B, T, H, seed=4)
    x, i, f = (each.to(dtype) for each in (normal(B, T, H * V, seed=1), i, f))
    model = build(dtype=dtype)
    whole, final = with_gates(model, i, f)(x)
    state, outputs = None, []
    for t in range(T):
        y, state = with_gates(model, i[:, t : t + 1], f[:, t : t + 1])(x[:, t : t + 1], state=state)
        outputs.append(y)
    assert state is not None and final is not None and final.shape == (B, H, K, V + 2)
    error = (torch.cat(outputs, dim=1) - whole).abs() / whole.abs().clamp(min=1e-30)
    assert error.median() < (1e-6 if dtype == torch.float32 else 1e-10)
    shift = torch.exp((state - final)[..., -1:])  # states are relative to maxima that are rounded in turn
    torch.testing.assert_close(shift * state[..., :-1], final[..., :-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 17, 64, 65])
def test_the_running_maximum_in_doubling_steps_is_that_of_a_loop(length: int) -> None:
    log_f, i = -100 * normal(B, length, H, seed=5).square(), 50 * normal(B, length, H, seed=6)
    log_f[:, length // 2] = -math.inf  # a reset
    start = normal(B, H, seed=7)
    m, want = start, []
    for t in range(length):
        m = torch.maximum(log_f[:, t] + m, i[:, t])
        want.append(m)
    torch.testing.assert_close(running_maximum(log_f, i, start), torch.stack(want, dim=1))


@pytest.mark.parametrize("backend", ["sequential", "chunkwise"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_sigmoid_input_gate_is_an_exponential_one_of_its_logarithm(normalised: bool, backend: str) -> None:
    x, i, f = normal(B, T, H * V, seed=1), 5 * normal(B, T, H, seed=3), 5 * normal(B, T, H, seed=4)
    model = build("mlstm_sigmoid", normalised=normalised)
    y, state = with_gates(model, i, f)(x, backend=backend)
    assert state is not None and state.shape == (B, H, K, V + normalised)
    if normalised:
        assert_close(y, memory(model, x, torch.nn.functional.logsigmoid(i), f), 1e-9)
    else:
        q, k, v = (getattr(model, name)(x).unflatten(-1, (H, -1)) for name in ("query", "key", "value"))
        log_f = torch.nn.functional.logsigmoid(f).cumsum(1)
        decay = torch.exp(log_f.unsqueeze(2) - log_f.unsqueeze(1)) * torch.sigmoid(i).unsqueeze(1)  # t, s
        decay = torch.where(torch.ones(T, T).tril().bool().view(1, T, T, 1), decay, 0)
        scores = torch.einsum("bthk,bshk->btsh", q, k) * decay / math.sqrt(K)
        assert_close(y, torch.einsum("btsh,bshv->bthv", scores, v).flatten(-2), 1e-8)


@pytest.mark.parametrize("name", ["mlstm", "mlstm_sigmoid"])
def test_gates_start_as_published(name: str) -> None:
    torch.manual_seed(0)
    model = registry.model(name).cls({"H": 64, "K": 1, "V": 1})
    forget, inputs = model.forget_gate.bias, model.input_gate.bias
    assert forget[0] == 3 and forget[-1] == 6 and (forget.diff() > 0).all()
    assert 0.07 < inputs.std() < 0.13 and inputs.mean().abs() < 0.05
    assert not model.forget_gate.weight.any() and not model.input_gate.weight.any()
