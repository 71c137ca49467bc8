"""Longhorn, sections 3.2 and 4: its update needs no normalised keys to stay stable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ssmperf import compute
from ssmperf.suitekit import ClaimSetting, Estimate, Finding, agree_on_order, claim, over_seeds

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
    scaled="random values instead of trained layers; a state beyond float64 counts as its largest number",
    rule="agrees: DeltaNet's state with raw keys is larger than Longhorn's, with disjoint intervals over "
    "seeds; and Longhorn's is not larger than that of DeltaNet with normalised keys",
    doubts="Whoever trains the keys: random ones of a fixed deviation grow a state that learned ones may not",
    budget_s=60,
)
class Stability:
    """One piece per scale of the keys."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"scale{scale:g}" for scale in SCALES]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        scale = float(piece.removeprefix("scale"))
        return largest_states(scale, setting.seeds or SEEDS, setting.device)

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


def largest_states(scale: float, seeds: int, device: str) -> dict[str, list[float]]:
    """Find the largest magnitude in the states of all steps, by form of the update, for each seed."""
    keys, values = [], []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        keys.append(scale * torch.randn(T, K, generator=generator, dtype=torch.float64))
        values.append(torch.randn(T, V, generator=generator, dtype=torch.float64))
    k, v = torch.stack(keys).to(device), torch.stack(values).to(device)  # (seeds, T, ·)
    rate = torch.full_like(k[..., :1], BETA)
    length = k.square().sum(-1, keepdim=True)
    step = rate / (1 + rate * length)
    return {
        DELTA: largest(delta_states(k, v, rate)),
        UNIT: largest(delta_states(k / length.sqrt(), v, rate)),
        EXACT: largest(delta_states(k, v, step)),
        DIAGONAL: largest(diagonal_states(k, v, step)),
    }


def delta_states(k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Compute the states of the delta rule at all steps, (seeds, K, T, V)."""
    q, k, v, beta = per_key_channel(k, v, beta)
    heads = {"q": q.unsqueeze(2), "k": k.unsqueeze(2), "v": v.unsqueeze(2)}
    rows, _ = compute("delta_rule", "sequential", **heads, beta=beta)
    states: Tensor = rows.squeeze(2).unflatten(0, (-1, K))
    return states


def diagonal_states(k: Tensor, v: Tensor, step: Tensor) -> Tensor:
    """Compute the states of Longhorn's diagonal update at all steps, (seeds, K, T, V)."""
    q, k, v, step = per_key_channel(k, v, step)
    given = {"x": v, "delta": step.expand(v.shape).contiguous(), "k": k, "gate": "implicit"}
    rows, _ = compute("selective_scan", "sequential", q=q, **given)
    states: Tensor = rows.unflatten(0, (-1, K))
    return states


def per_key_channel(k: Tensor, *others: Tensor) -> list[Tensor]:
    """Repeat a batch for each key channel, with the query that reads out this channel of the state."""
    q = torch.eye(K, dtype=k.dtype, device=k.device).repeat(len(k), 1).unsqueeze(1)
    repeated = [each.repeat_interleave(K, dim=0) for each in (k, *others)]
    return [q.expand_as(repeated[0]).contiguous(), *repeated]


def largest(states: Tensor) -> list[float]:
    """Give the largest magnitude for each seed; the largest float64 once a state is beyond it."""
    most = torch.finfo(torch.float64).max
    found: list[float] = states.nan_to_num(most, most, -most).abs().amax((1, 2, 3)).tolist()
    return found


def _decades(states: Any) -> Estimate | None:
    """Estimate the logarithm of the largest state over seeds."""
    return over_seeds([math.log10(each) for each in states]) if states else None
