"""Linearization, algorithms 5 to 9: parallel scans in log T steps, and S6 as a minGRU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ssmperf import compute
from ssmperf.suitekit import (
    Agreement,
    ClaimSetting,
    Estimate,
    Finding,
    agree_on_equality,
    agree_on_order,
    agree_on_range,
    claim,
    over_seeds,
    registry,
)

from . import _papers as papers
from ._timing import latency, timed, why

BLELLOCH, DOUBLING = "blelloch", "hillis_steele"
COUNTED = tuple(2**power for power in range(8, 15))  # lengths
WITHIN = 0.02  # of a count that grows as said
SEEDS, STEPS, WIDTH = 5, 64, 8
ROUNDING = 1e-12
TIMED, SMOKE_TIMED = (1024, 16384), (64, 128)
COUNTS, IDENTITY, TIMES = "counts", "identity", "times"


@claim(
    "linearization:scan",
    paper=papers.LINEARIZATION,
    place="Algorithms 5 to 9",
    statement="A parallel scan takes O(log T) steps and O(T) work, or T log T; S6 with A = -1, B = 1 is a "
    "minGRU.",
    printed="O(log T) depth, O(T) work (up- and down-sweep), O(T log T) work (doubling)",
    runs="combinations of pairs that the two scans make, counted, T = 256 to 16,384; their times, T = "
    "1,024 and 16,384; selective scan against minGRU's scan, in float64",
    scaled="batch 1, 16 channels; the device is not the paper's",
    rule=f"agrees: the counts grow with each doubling of T as printed, within {WITHIN:.0%}; with zero-order "
    "hold the results are equal up to rounding, and with Euler's rule they are not. Times are shown and "
    "decide nothing",
    doubts="Whoever counts the work of another scan than the two of the paper; the times on two shared "
    "cores decide nothing",
    budget_s=60,
    has_smoke=False,
)
class Scan:
    """Three pieces: counts, the identity, and times."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (COUNTS, IDENTITY, TIMES)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        if piece == COUNTS:
            return {name: {str(T): combinations(name, T) for T in COUNTED} for name in (BLELLOCH, DOUBLING)}
        if piece == IDENTITY:
            seeds = range(setting.seeds or SEEDS)
            return {rule: [distance(rule, seed) for seed in seeds] for rule in ("zoh", "euler")}
        lengths = SMOKE_TIMED if setting.smoke else TIMED
        return timed(
            setting,
            "scan",
            rounds=1,
            models="mingru",
            backends=[BLELLOCH, DOUBLING],
            pass_="forward",
            dtype="float32",
            axis=[f"T={','.join(map(str, lengths))}", "B=1", "C=16"],
        )

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        yield from _counted(found.get(COUNTS, {}))
        yield from _identity(found.get(IDENTITY, {}))
        yield from _times(found.get(TIMES, {}))


class Counting(TorchDispatchMode):
    """Counts additions on tensors: each combination of two pairs (a, b) makes one.

    depth: how many operations there were, one after another. work: how many numbers they made.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.depth = self.work = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.addcmul.default):
            self.depth += 1
            self.work += result.numel()
        return result


def combinations(backend: str, T: int) -> list[int]:
    """Count the depth and the work of a scan over T steps of one channel."""
    log_a, b = torch.full((1, T, 1), -0.1), torch.ones(1, T, 1)
    scan = registry.backend("scan", backend).function  # not `compute`, whose checks add, too
    with torch.no_grad(), Counting() as counting:
        scan(log_a, b)
    return [counting.depth, counting.work]


def distance(rule: str, seed: int) -> float:
    """Give the largest difference of S6 with A = -1 and B = 1 from minGRU's scan, over its largest state.

    rule: by which S6 is discretised, "zoh" or "euler".
    """
    generator = torch.Generator().manual_seed(seed)
    z, x = torch.randn(2, 2, STEPS, WIDTH, generator=generator, dtype=torch.float64)
    ones = torch.ones(2, STEPS, 1, dtype=torch.float64)
    A = -torch.ones(WIDTH, 1, dtype=torch.float64)
    given = {"x": x, "delta": functional.softplus(z), "k": ones, "q": ones, "A": A}
    s6, _ = compute("selective_scan", "sequential", **given, discretization=rule)
    mingru, _ = compute("scan", "sequential", -functional.softplus(z), torch.sigmoid(z) * x)
    return float((s6 - mingru).abs().max() / mingru.abs().max())


def _counted(counts: Mapping[str, Any]) -> Iterable[Finding]:
    """Compare how depth and work grow with each doubling of T."""
    for name, algorithm in ((BLELLOCH, "up- and down-sweep"), (DOUBLING, "doubling")):
        of = counts.get(name, {})
        lengths = sorted(map(int, of))
        depths = [of[str(T)][0] for T in lengths]
        work = [of[str(T)][1] for T in lengths]
        rises = [after - before for before, after in pairwise(depths)]
        rise = None if not rises else Estimate(sum(rises) / len(rises), min(rises), max(rises))
        steady = None
        if rise is not None and min(rises) > 0:
            steady = Estimate.exact(max(rises) / min(rises))
        yield Finding(
            f"steps more per doubling of T, {algorithm}",
            "O(log T) depth: the same at every doubling",
            {"steps": rise},
            agree_on_equality(steady, WITHIN),
        )
        if name == BLELLOCH:
            grown = [math.log2(after / before) for before, after in pairwise(work)]
            what, printed = f"exponent of the work, {algorithm}", "O(T) work: 1"
        else:
            each = [total / T for total, T in zip(work, lengths, strict=True)]
            grown = [after - before for before, after in pairwise(each)]
            what, printed = (
                f"work per step, more per doubling of T, {algorithm}",
                "O(T log T) work: constant, 1",
            )
        ours = None if not grown else Estimate(sum(grown) / len(grown), min(grown), max(grown))
        yield Finding(what, printed, {name: ours}, agree_on_equality(ours, WITHIN))


def _identity(distances: Mapping[str, Any]) -> Iterable[Finding]:
    """Compare S6 with minGRU, by its rule."""
    of = {rule: over_seeds(values) if values else None for rule, values in distances.items()}
    zoh, euler = of.get("zoh"), of.get("euler")
    worst = max(distances.get("zoh", ()), default=None)
    yield Finding(
        "relative distance of S6 (zero-order hold) from minGRU",
        "equal",
        {"largest over seeds": None if worst is None else Estimate.exact(worst)},
        agree_on_range(0.0, ROUNDING, None if worst is None else Estimate.exact(worst)),
    )
    yield Finding(
        "relative distance of S6 from minGRU, by rule",
        "only zero-order hold gives the gate",
        {"Euler": euler, "zero-order hold": zoh},
        agree_on_order(euler, zoh),
        note="Mamba's code uses Euler's rule, for which the identity does not hold",
    )


def _times(numbers: Mapping[str, Any]) -> Iterable[Finding]:
    """Show how times grow with T; they decide nothing."""
    lengths = sorted({case["T"] for case in numbers.get("cases", ())})
    for name, printed in ((BLELLOCH, "O(T) work"), (DOUBLING, "O(T log T) work")):
        if not lengths:
            continue
        ends = {f"T = {T:,}": latency(numbers, backend=name, T=T) for T in (lengths[0], lengths[-1])}
        reason = why(numbers, backend=name) or "shown beside the counts"
        yield Finding(f"time, {name}", printed, ends, (Agreement.CANNOT_TELL, reason), decides=False)
