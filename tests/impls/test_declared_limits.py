"""What backends that compute with logs or products of gates refuse, and what they keep below it."""

from __future__ import annotations

import pytest
import torch
from support.kernels.table import (
    PLAIN,
    SHAPES,
    assert_close,
    detached,
    evaluate,
    having,
    oracle,
    sample,
    scale_log_gates,
    span,
)
from torch import Tensor

from ssmperf import Unsupported
from ssmperf.suitekit import registry


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 88.7), ("float64", 709.7), ("float16", 11.1)])
@pytest.mark.parametrize("recurrence", having("surrogate_raw"))
def test_surrogate_raw_refuses_what_would_overflow(recurrence: str, dtype: str, limit: float) -> None:
    backend = registry.backend(recurrence, "surrogate_raw")
    operands = detached(sample(recurrence, SHAPES[recurrence], kind=PLAIN[recurrence], dtype=dtype))
    for name in ("b", "k", "v"):
        if name in operands:
            operands[name] = operands[name].clamp(-0.5, 0.5)
    operands["log_a"].fill_(-0.99 * limit / 33)
    output, _ = backend.function(**operands)
    assert bool(torch.isfinite(output).all())
    operands["log_a"].fill_(-1.01 * limit / 33)
    with pytest.raises(Unsupported, match="decay span"):
        backend.function(**operands)
    operands["log_a"].fill_(-0.99 * limit / 33)
    if dtype == "float32":
        operands["k" if "k" in operands else "b"].fill_(1e6)
        with pytest.raises(Unsupported, match="overflow"):
            backend.function(**operands)


@pytest.mark.parametrize("recurrence", having("surrogate_raw"))
def test_surrogate_raw_refuses_what_would_overflow_beside_gradients(recurrence: str) -> None:
    """Its backward pass multiplies the inverse products, close to the largest number, with gradients."""
    backend = registry.backend(recurrence, "surrogate_raw")
    operands = detached(sample(recurrence, SHAPES[recurrence], kind=PLAIN[recurrence], dtype="float32"))
    operands["log_a"].fill_(-0.99 * 88.7 / 33)
    for name in ("b", "k", "v"):
        if name in operands:
            operands[name] = operands[name].clamp(-0.5, 0.5)
    leaves = [each.requires_grad_() for each in operands.values() if isinstance(each, Tensor)]
    with pytest.raises(Unsupported, match=r"overflow .*in the backward pass"):
        backend.function(**operands)
    with torch.no_grad():
        backend.function(**operands)
        operands["log_a"].fill_(-0.8 * 88.7 / 33)
    output, _ = backend.function(**operands)
    gradients = torch.autograd.grad((10 * output).sum(), leaves)
    assert all(bool(torch.isfinite(each).all()) for each in gradients)


@pytest.mark.parametrize("recurrence", having("logspace"))
def test_logspace_refuses_long_spans_and_keeps_its_bound_below(recurrence: str) -> None:
    backend = registry.backend(recurrence, "logspace")
    shape = SHAPES[recurrence].with_(T=300)
    for decay_span in (80.0, 800.0, 8000.0):
        operands = sample(recurrence, shape, kind=PLAIN[recurrence], dtype="float32")
        scale_log_gates(operands, decay_span / span(recurrence, operands))
        got = evaluate(backend.function, operands)
        assert_close(backend, got, oracle(recurrence, operands), "float32", decay_span)
    scale_log_gates(operands, 2.0)
    with pytest.raises(Unsupported, match="decay span"):
        backend.function(**operands)
