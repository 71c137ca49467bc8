"""Longhorn, sections 3.2 and 4: its update needs no normalised keys to stay stable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ssmperf import ClaimSetting, Estimate, Finding, agree_on_order, claim, compute, over_seeds

from . import _papers as papers

T, K, V = 400, 8, 4
BETA = 0.9
SCALES = (1.0, 4.0)  # standard deviations of the keys' entries
SEEDS = 10
DELTA, UNIT, EXACT, DIAGONAL = (
    "DeltaNet, raw keys",
    "DeltaNet, unit keys",
    "Longhorn, theorem 3.1",
    "Longhorn, eqs. 8-9",
)


@claim(
    "longhorn:stability",
    paper=papers.LONGHORN,
    place="Sections 3.2 and 4",
    statement="Longhorn is stable without normalised keys, which DeltaNet needs.",
    printed="no number",
    runs=f"the largest state over {T} steps of random keys that are not normalised, K = {K}, β = {BETA}, in "
    f"float64: DeltaNet, Longhorn's exact update and its diagonal one, on the same values",
    scaled="random values instead of trained layers",
    rule="agrees: DeltaNet's state with raw keys is larger than Longhorn's, with disjoint intervals over seeds; "
    "and Longhorn's is not larger than that of DeltaNet with normalised keys",
    budget_s=60,
)
class Stability:
    """One piece per scale of the keys; our own figures, 3·10⁹³ against less than 1, are of scale 1."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"scale{scale:g}" for scale in SCALES]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        scale = float(piece.removeprefix("scale"))
        seeds = range(setting.seeds or SEEDS)
        found = [largest_states(scale, seed, setting.device) for seed in seeds]
        return {name: [each[name] for each in found] for name in found[0]}

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        for scale in SCALES:
            numbers = found.get(f"scale{scale:g}", {})
            decades = {name: _decades(numbers.get(name)) for name in (DELTA, UNIT, EXACT, DIAGONAL)}
            for form in (EXACT, DIAGONAL):
                yield Finding(
                    f"log₁₀ of the largest state, keys of deviation {scale:g}",
                    "DeltaNet with raw keys grows, Longhorn does not",
                    {name: decades[name] for name in (DELTA, form)},
                    agree_on_order(decades[DELTA], decades[form]),
                )
                yield Finding(
                    f"log₁₀ of the largest state, keys of deviation {scale:g}",
                    "no normalisation needed",
                    {name: decades[name] for name in (UNIT, form)},
                    agree_on_order(decades[UNIT], decades[form]),
                )


def largest_states(scale: float, seed: int, device: str) -> dict[str, float]:
    """Find the largest magnitude in the states of all steps, by form of the update."""
    generator = torch.Generator().manual_seed(seed)
    k = (scale * torch.randn(1, T, 1, K, generator=generator, dtype=torch.float64)).to(device)
    v = torch.randn(1, T, 1, V, generator=generator, dtype=torch.float64).to(device)
    rate = torch.full((1, T, 1), BETA, dtype=torch.float64, device=device)
    length = k.square().sum(-1)  # k·k (1, T, 1)
    step = rate / (1 + rate * length)
    unit = k / length.sqrt().unsqueeze(-1)
    return {
        DELTA: largest(delta_states(k, v, rate)),
        UNIT: largest(delta_states(unit, v, rate)),
        EXACT: largest(delta_states(k, v, step)),
        DIAGONAL: largest(diagonal_states(k, v, step)),
    }


def delta_states(k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Compute the states of the delta rule at all steps, (1, T, K, V), through one query per key channel."""
    queries = torch.eye(K, dtype=k.dtype, device=k.device)
    rows = [compute("delta_rule", "sequential", q=q.expand_as(k), k=k, v=v, beta=beta)[0] for q in queries]
    return torch.stack(rows, dim=2).squeeze(3)


def diagonal_states(k: torch.Tensor, v: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Compute the states of Longhorn's diagonal update at all steps, (1, T, K, V), in the same way."""
    queries = torch.eye(K, dtype=k.dtype, device=k.device)
    x, key = v.squeeze(2), k.squeeze(2)
    given = {"x": x, "delta": step.expand(1, T, V), "k": key, "gate": "implicit"}
    rows = [compute("selective_scan", "sequential", q=q.expand_as(key), **given)[0] for q in queries]
    return torch.stack(rows, dim=2)


def largest(states: torch.Tensor) -> float:
    """Give the largest magnitude; the largest float64 where it is beyond."""
    return float(states.abs().nan_to_num(posinf=torch.finfo(torch.float64).max).max())


def _decades(states: Any) -> Estimate | None:
    """Estimate the logarithm of the largest state over seeds."""
    return over_seeds([math.log10(each) for each in states]) if states else None
