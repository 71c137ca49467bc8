"""Convolutions: every backend against the definition, and what a convolution is for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kernels.table import TOLERANCE, error, random_like
from torch import Tensor

from ssmperf import Backend, Shape
from ssmperf.engine.operands import samplers as regimes
from ssmperf.suitekit import registry

BACKENDS = registry.backends("long_conv")
LENGTHS = (1, 2, 3, 16, 17, 63, 64, 65, 130)
DTYPES = {name: getattr(torch, name) for name in TOLERANCE}

each_backend = pytest.mark.parametrize("backend", [pytest.param(b, id=b.name) for b in BACKENDS])


def draw(T: int, L: int, *, B: int = 2, C: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """u (B, T, C) and a kernel (C, L), standard normal float64."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(B, T, C, generator=generator, dtype=torch.float64)
    return u, torch.randn(C, L, generator=generator, dtype=torch.float64)


def evaluate(function: Callable[..., Any], u: Tensor, kernel: Tensor) -> dict[str, Tensor]:
    """Output and gradients of one call; the state is None."""
    leaves = [value.detach().clone().requires_grad_() for value in (u, kernel)]
    output, state = function(*leaves)
    assert state is None
    gradients = torch.autograd.grad(output, leaves, random_like(output, 1))
    assert all(leaf._version == 0 for leaf in leaves), "an operand was changed"
    return {"output": output.detach(), "gradient of u": gradients[0], "gradient of kernel": gradients[1]}


def assert_right(backend: Backend, u: Tensor, kernel: Tensor, dtype: str) -> None:
    """Output and gradients agree with the float64 definition of the very same numbers."""
    got = evaluate(backend.function, u, kernel)
    reference = evaluate(registry.recurrence("long_conv").definition, u.double(), kernel.double())
    assert got["output"].dtype == u.dtype
    for name, value in got.items():
        limit = TOLERANCE[dtype][name != "output"]
        assert error(value, reference[name]) <= limit, f"{name} T={u.shape[1]} L={kernel.shape[1]} {dtype}"


@pytest.mark.parametrize("T", LENGTHS)
@each_backend
def test_outputs_and_gradients_match_the_definition(backend: Backend, T: int) -> None:
    for L in sorted({1, 2, max(1, T // 2), max(1, T - 1), T, T + 7, 3 * T}):
        u, kernel = draw(T, L)
        for dtype, data in DTYPES.items():
            if dtype in ("float64", "float32") or T == 65:
                wide = torch.promote_types(data, torch.float32)
                assert_right(backend, u.to(data), kernel.to(wide), dtype)


@pytest.mark.parametrize("regime", regimes.REGIMES)
@each_backend
def test_every_decay_of_the_kernel(backend: Backend, regime: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = Shape(B=2, T=100, C=5)
    operands = registry.recurrence("long_conv").sample(shape, regime=regime, generator=generator)
    assert operands["kernel"].isfinite().all()
    assert_right(backend, operands["u"], operands["kernel"], "float32")


def test_the_definition_is_the_double_sum() -> None:
    for T, L in ((5, 5), (5, 2), (3, 6)):
        u, kernel = draw(T, L)
        output, state = registry.recurrence("long_conv").definition(u, kernel)
        assert state is None
        for b, t, c in itertools.product(range(2), range(T), range(3)):
            want = sum(kernel[c, j] * u[b, t - j, c] for j in range(min(t + 1, L)))
            torch.testing.assert_close(output[b, t, c], torch.as_tensor(want))


@each_backend
def test_nothing_wraps_around(backend: Backend) -> None:
    """An input at the last step only, under a long kernel: short padding moves it to the first steps."""
    for T, L in ((60, 60), (64, 64), (64, 128), (100, 61)):
        u, kernel = torch.zeros(1, T, 1, dtype=torch.float64), torch.ones(1, L, dtype=torch.float64)
        u[0, -1] = 1
        output, _ = backend.function(u, kernel)
        assert output[0, :-1].abs().max() < 1e-14
        assert error(output[0, -1], torch.ones(1)) < 1e-14


@each_backend
def test_the_future_does_not_change_the_past(backend: Backend) -> None:
    for dtype, limit in ((torch.float64, 1e-14), (torch.float32, 5e-6)):
        u, kernel = (value.to(dtype) for value in draw(130, 130))
        output, _ = backend.function(u, kernel)
        for step in (1, 31, 64, 129):
            changed = torch.cat([u[:, :step], draw(130, 1, seed=7)[0].to(dtype)[:, step:]], dim=1)
            after, _ = backend.function(changed, kernel)
            if backend.causal == "bitwise":
                assert torch.equal(after[:, :step], output[:, :step]), step
            else:
                assert error(after[:, :step], output[:, :step]) < limit, step
            assert error(after[:, step:], output[:, step:]) > 0.1


@each_backend
def test_it_commutes_with_a_time_shift(backend: Backend) -> None:
    u, kernel = draw(50, 40)
    output, _ = backend.function(u, kernel)
    for shift in (1, 14, 64):
        late, _ = backend.function(torch.cat([u.new_zeros(2, shift, 3), u], dim=1), kernel)
        assert late[:, :shift].abs().max() < 1e-14
        assert error(late[:, shift:], output) < 1e-13


@each_backend
def test_a_shorter_run_is_a_prefix(backend: Backend) -> None:
    u, kernel = draw(100, 100)
    output, _ = backend.function(u, kernel)
    for T in (1, 16, 63):
        assert error(backend.function(u[:, :T], kernel)[0], output[:, :T]) < 1e-13


@each_backend
def test_linear_in_input_and_in_kernel(backend: Backend) -> None:
    (u, kernel), (v, other) = draw(70, 50), draw(70, 50, seed=1)
    mixed, _ = backend.function(2 * u - 3 * v, kernel)
    parts = backend.function(u, kernel)[0], backend.function(v, kernel)[0]
    assert error(mixed, 2 * parts[0] - 3 * parts[1]) < 1e-13
    mixed, _ = backend.function(u, 2 * kernel - 3 * other)
    assert error(mixed, 2 * parts[0] - 3 * backend.function(u, other)[0]) < 1e-13


@each_backend
def test_batch_items_and_channels_are_independent(backend: Backend) -> None:
    u, kernel = (value.float() for value in draw(70, 50))
    other, other_kernel = (value.float() for value in draw(70, 50, seed=1))
    output, _ = backend.function(u, kernel)
    changed, _ = backend.function(torch.cat([u[:1], other[1:]]), kernel)
    assert torch.equal(changed[0], output[0]) and not torch.equal(changed[1], output[1])
    mixed_u = torch.cat([u[..., :1], other[..., 1:]], dim=-1)
    changed, _ = backend.function(mixed_u, torch.cat([kernel[:1], other_kernel[1:]]))
    assert error(changed[..., 0], output[..., 0]) < 1e-6


@each_backend
def test_the_same_bits_twice(backend: Backend) -> None:
    u, kernel = (value.float() for value in draw(100, 100))
    first, second = (evaluate(backend.function, u, kernel) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@each_backend
def test_operands_need_not_be_contiguous(backend: Backend) -> None:
    u, kernel = draw(33, 20)
    strided = u.transpose(0, 2).contiguous().transpose(0, 2), kernel.mT.contiguous().mT
    got, want = evaluate(backend.function, *strided), evaluate(backend.function, u, kernel)
    for name, value in got.items():
        assert error(value, want[name]) < 1e-13, name


@each_backend
def test_gradcheck(backend: Backend) -> None:
    operands = [value.requires_grad_() for value in draw(7, 5, B=1, C=2)]
    assert torch.autograd.gradcheck(lambda u, kernel: backend.function(u, kernel)[0], operands)


@each_backend
def test_answers_in_closed_form(backend: Backend) -> None:
    cases = registry.analytics("long_conv")
    assert len(cases) >= 2
    for case in cases.values():
        operands, output, state = case.function()
        assert state is None
        assert error(backend.function(**operands)[0], output) < 1e-13, case.name


def test_transforms_are_off_by_the_norms_where_the_kernel_cancels_the_input() -> None:
    """Alternating inputs under a constant kernel, the worst for a transform: the absolute bound holds."""
    T = 1024
    u, kernel = torch.ones(1, T, 1), torch.ones(1, T)
    u[:, 1::2] = -1
    for name in ("fft", "overlap_add"):
        output, _ = registry.backend("long_conv", name).function(u, kernel)
        assert (output - u.cumsum(1)).abs().max() < 1e-6 * kernel.norm() * u.norm(), name


def test_a_convolution_with_decaying_powers_is_a_scan() -> None:
    u, _ = draw(40, 1)
    log_a = -torch.rand(3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kernel = torch.exp(torch.arange(40) * log_a.unsqueeze(-1))
    h, _ = registry.recurrence("scan").definition(log_a, u)
    for backend in BACKENDS:
        assert error(backend.function(u, kernel)[0], h) < 1e-13, backend.name
