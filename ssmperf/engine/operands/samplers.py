"""Sample log gates from the distributions that `ssmperf.engine.registry.regimes` names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ssmperf.engine.registry.regimes import REGIMES
from ssmperf.errors import UnknownName

LogGates = Callable[[Sequence[int], Generator], Tensor]


def _normal(shape: Sequence[int], generator: Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device=generator.device)


def _uniform(shape: Sequence[int], generator: Generator) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float32, device=generator.device)


def _sigmoid(shape: Sequence[int], generator: Generator) -> Tensor:
    return functional.logsigmoid(_normal(shape, generator))


def _gla(shape: Sequence[int], generator: Generator) -> Tensor:
    return functional.logsigmoid(_normal(shape, generator)) / 16


def _hgrn_top(shape: Sequence[int], generator: Generator) -> Tensor:
    bound = 5 / 6
    return torch.log(bound + (1 - bound) * torch.sigmoid(_normal(shape, generator)))


def _step_size(shape: Sequence[int], generator: Generator) -> Tensor:
    low, high = math.log(1e-3), math.log(1e-1)
    return torch.exp(low + (high - low) * _uniform(shape, generator))


def _mamba(shape: Sequence[int], generator: Generator) -> Tensor:
    rates = 1 + torch.floor(16 * _uniform(shape[-1:], generator))
    return -_step_size(shape, generator) * rates


def _s4d(shape: Sequence[int], generator: Generator) -> Tensor:
    return -0.5 * _step_size(shape, generator)


def _longhorn(shape: Sequence[int], generator: Generator) -> Tensor:
    key = _normal((*shape, 16), generator)
    beta = torch.sigmoid(_normal(shape, generator))
    step = beta / (1 + beta * key.square().sum(-1))
    return torch.log1p(-step * key[..., 0].square())


def _rglru(shape: Sequence[int], generator: Generator) -> Tensor:
    low, high = 0.9**2, 0.999**2
    radius = 0.5 * torch.log(low + (high - low) * _uniform(shape[-1:], generator))
    return 8 * radius * torch.sigmoid(_normal(shape, generator))


def _retnet(shape: Sequence[int], generator: Generator) -> Tensor:
    head = torch.arange(shape[-1], device=generator.device, dtype=torch.float32) % 8
    return torch.log1p(-torch.exp2(-5 - head)).expand(*shape).clone()


def _reset(shape: Sequence[int], generator: Generator) -> Tensor:
    resets = _uniform(shape, generator) < 0.01
    return torch.where(resets, -math.inf, _sigmoid(shape, generator))


def _small(shape: Sequence[int], generator: Generator) -> Tensor:
    return -9 - 11 * _uniform(shape, generator)


def _ones(shape: Sequence[int], generator: Generator) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float32, device=generator.device)


_SAMPLERS: dict[str, LogGates] = {
    "sigmoid": _sigmoid,
    "gla": _gla,
    "hgrn_top": _hgrn_top,
    "mamba": _mamba,
    "longhorn": _longhorn,
    "rglru": _rglru,
    "s4d": _s4d,
    "retnet": _retnet,
    "phase": _ones,
    "reset": _reset,
    "small": _small,
    "ones": _ones,
}


def log_gates(regime: str, shape: Sequence[int], generator: Generator) -> Tensor:
    """Sample log gates ≤ 0 as float32, in the given shape. The last axis is the channel axis.

    Raises:
        UnknownName: there is no such regime.
    """
    if regime not in REGIMES:
        raise UnknownName("regime", regime, REGIMES)
    return _SAMPLERS[regime](shape, generator)


def phases(shape: Sequence[int], generator: Generator) -> Tensor:
    """Sample phases in radians as float32: independent standard normals, unbounded as in GateLoop."""
    return _normal(shape, generator)
