"""The fused delta rules at the edge of stability, judged as suites judge: 43,884 steps on a GPU.

Where a GPU is missing, threads stand in for a Hopper's, and there are three chunks and a part.
"""

from __future__ import annotations

import functools
import io
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Status
from ssmperf.engine.judge.reference import Reference, reference_of, steadied
from ssmperf.engine.judge.verdict import judge_call
from ssmperf.engine.operands.values import Values, draw_cotangents
from ssmperf.suitekit import registry

RECURRENCE = registry.recurrence("delta_rule")
HALF = torch.bfloat16
GPU = torch.cuda.is_available()
CHUNK = 64
T = 43_884 if GPU else 3 * CHUNK + 9
K = V = 64 if GPU else 16


def unit(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=-1)


def near(k: Tensor) -> Tensor:
    """64 keys that are nearly the same, again and again."""
    return unit(k[:, :1] + 0.02 * k[:, :CHUNK])[:, torch.arange(k.shape[1]) % CHUNK]


def eight(k: Tensor) -> Tensor:
    """Eight keys, again and again."""
    return unit(k[:, torch.arange(k.shape[1]) % 8])


def thrice(k: Tensor) -> Tensor:
    """Keys of norm 3."""
    return 3 * unit(k)


NOTHING, RESETS = (0.0, 0.0), (0.0, 0.03)  # the gates, and the share of resets among them
CASES: dict[str, dict[str, Any]] = {
    "near keys, rates of 1.9": {"keys": near, "rate": 1.9},
    "near keys, rates of 2": {"keys": near, "rate": 2.0},
    "eight keys, rates of 1.9": {"keys": eight, "rate": 1.9},
    "eight keys, rates of 2": {"keys": eight, "rate": 2.0},
    "any keys, rates of 2": {"rate": 2.0},
    "rates near 0": {"rate": 1e-3},
    "keys of norm 3": {"keys": thrice, "rate": 0.22},
    "gates of 0": {"gates": NOTHING},
    "gates of 0 and resets": {"gates": RESETS},
    "shared keys": {"H": 4, "rate": 2.0, "gates": RESETS},
    "packed, shared keys": {"H": 4, "rate": 2.0, "packed": True},
}


@functools.cache
def judged_by(name: str) -> tuple[Values, Reference]:
    """Values of a case, and what suites compare results with: found by a CPU, whose loops are the faster."""
    found = values_of(**CASES[name])
    reference = reference_of(RECURRENCE.definition, found, length=T, dtype=HALF, gradients=True, mixes=True)
    subject: Any = SimpleNamespace(case=SimpleNamespace(shape={"T": T}, dtype="bfloat16"))
    torch.save((found, steadied(reference, subject, RECURRENCE.definition, found)), saved := io.BytesIO())
    saved.seek(0)
    return torch.load(saved, map_location="cuda" if GPU else None, weights_only=False)  # its own


def values_of(
    keys: Any = unit, rate: float = 1.9, gates: tuple[float, float] | None = None, H: int = 2,
    packed: bool = False,
) -> Values:  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    operands: dict[str, Any] = {
        "q": (normal(1, T, 2, K) * K**-0.5).to(HALF),
        "k": keys(normal(1, T, 2, K)).to(HALF),
        "v": normal(1, T, H, V).to(HALF),
        "beta": torch.full((1, T, H), rate),
        "initial_state": normal(4 if packed else 1, H, K, V),
    }
    if gates is not None:
        log_a = torch.full((1, T, H), gates[0])
        operands["log_a"] = log_a.masked_fill(normal(1, T, H).abs() < gates[1], -math.inf)
    if packed:
        bounds = [0, T // 3, T // 3, T - 5, T]
        operands["cu_seqlens"] = torch.tensor(bounds, dtype=torch.int32)
    return Values(operands, *draw_cotangents(operands["v"], operands["initial_state"], 1))


@pytest.mark.slow
@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "backend",
    [
        "cuda",
        pytest.param("triton", marks=[pytest.mark.gpu, pytest.mark.skipif(not GPU, reason="needs a GPU")]),
    ],
)
def test_it_is_right_by_the_tolerances_of_suites(backend: str, name: str) -> None:
    entry = registry.backend("delta_rule", backend)
    if GPU and (missing := entry.missing("cuda")):
        pytest.skip(missing)
    found, reference = judged_by(name)
    verdict = judge_call(entry.function, found, reference, dtype=HALF, gradients=True, poison=GPU)
    assert verdict.status is Status.OK, verdict.problems or verdict.reason
