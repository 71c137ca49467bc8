"""Operands for the Triton kernels of linear_attention, and how they are compared with the definition."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmperf import Shape
from ssmperf.suitekit import registry
from support.kernels.table import TOLERANCE, Operands, error, evaluate, oracle, sample, widened

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
KINDS = ("none", "const", "scalar", "key", "const_complex", "scalar_complex", "key_complex")
C = 32
CANCELLATION = 3  # the gradient of a constant gate sums terms of both signs over all steps
HALF_TOLERANCE = {**TOLERANCE, "bfloat16": (1e-2, 1e-2)}

SUBNORMAL = 2**-24  # the least step of float16, which products of small decays and operands are rounded to

tiny = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(),
    reason="needs TRITON_INTERPRET=1 set before Python starts, or a CUDA device",
)
gpu = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device and no TRITON_INTERPRET"
)


def attention(**operands: Tensor | str | None) -> tuple[Tensor, Tensor]:
    return registry.backend("linear_attention", "triton").function(**operands)


def cut_into(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    from ssmperf.impls._triton import plan
    from ssmperf.impls.linear_attention._triton import schedule
    from ssmperf.impls.linear_attention._triton.tiles import Tiles

    small = {"chunk": C, "key": 16, "value": 16, "inner": 16, "pair_key": 16, "carry": 128, "stages": 1}
    cut = Tiles(**{**small, **sizes})
    monkeypatch.setattr(schedule, "tiles", lambda K, V, wide: cut)
    plan.forget()


def configured(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Change some sizes of the curated configurations."""
    from ssmperf.impls._triton import plan
    from ssmperf.impls.linear_attention._triton import schedule

    curated = schedule.tiles
    monkeypatch.setattr(schedule, "tiles", lambda K, V, wide: replace(curated(K, V, wide=wide), **sizes))
    plan.forget()


def case(
    *,
    T: int,
    kind: str,
    regime: str = "sigmoid",
    dtype: str = "float32",
    H: int = 1,
    K: int = 16,
    V: int = 16,
) -> Operands:
    shape = Shape(B=1, T=T, H=H, K=K, V=V)
    operands = sample("linear_attention", shape, regime=regime, kind=kind, dtype=dtype)
    return moved(operands)


def packed_case(
    lengths: Sequence[int], kind: str, *, G: int | None = None, H: int = 2, state: bool = True, **options: Any
) -> tuple[Operands, Tensor]:
    """Operands of packed sequences, with G key heads and a state per sequence, and their bounds."""
    operands, bounds = case(T=sum(lengths), kind=kind, H=H, **options), bounds_of(lengths)
    one = operands["initial_state"].detach()
    if state:
        scales = torch.linspace(1, -1, len(lengths), device=DEVICE).view(-1, 1, 1, 1)
        operands["initial_state"] = (one * scales).requires_grad_()
    else:
        del operands["initial_state"]
    for name in "qk" if G else "":
        operands[name] = operands[name].detach()[:, :, :G].clone().requires_grad_()
    return operands, bounds


def bounds_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], device=DEVICE, dtype=torch.int32)


def made_complex(operands: Operands, names: str) -> None:
    """Give some operands imaginary parts, and make the initial state complex."""
    generator = torch.Generator().manual_seed(4)
    for name in names:
        imaginary = torch.randn(operands[name].shape, generator=generator).to(DEVICE)
        operands[name] = torch.complex(operands[name].detach(), imaginary).requires_grad_()
    state = operands["initial_state"].detach()
    operands["initial_state"] = state.to(torch.complex64).requires_grad_()


def moved(operands: Operands) -> Operands:
    return {
        name: value.detach().to(DEVICE).requires_grad_() if isinstance(value, Tensor) else value
        for name, value in operands.items()
    }


def assert_plans_backward(backward: Any, operands: Operands) -> None:
    """A forward call has planned its backward pass, so that a first call compiles both side by side."""
    o, _ = attention(**operands)
    plans = dict(backward.plans)
    assert len(plans) == 1
    o.backward(torch.ones_like(o))
    assert backward.plans == plans


def assert_matches(operands: Operands, dtype: str = "float32", bounds: Tensor | None = None) -> None:
    """bounds: of packed sequences."""
    if bounds is None:
        got, reference = evaluate(attention, operands), oracle("linear_attention", operands)
    else:
        definition = registry.recurrence("linear_attention").definition
        got = evaluate(partial(attention, cu_seqlens=bounds), operands)
        reference = evaluate(partial(definition, cu_seqlens=bounds), widened(operands))
    forward, gradient = HALF_TOLERANCE[dtype]
    summed = {
        name for name in ("log_a", "phase") if operands.get(name) is not None and operands[name].dim() <= 2
    }
    wrong = {}
    for (name, value, is_gradient), (_, expected, _) in zip(got.items(), reference.items(), strict=True):
        found = error(value, expected)
        limit = gradient if is_gradient else forward
        if any(name.endswith(constant) for constant in summed):
            limit *= CANCELLATION
        if dtype == "float16":
            limit += SUBNORMAL / max(float(expected.abs().max()), SUBNORMAL)
        if found > limit:
            wrong[name] = found
    assert not wrong, wrong
