"""Longhorn: as fast as Mamba, whose kernel it takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, agree_on_equality, claim

from . import _papers as papers
from ._timing import latency, timed, why

SIZES = {"standard": (8, 2048, 1536, 16), "smoke": (1, 32, 8, 4)}  # B, T, D, N
LEVELS = ("op", "block")
PASSES = ("forward", "backward")
MARGIN = 0.1
BACKENDS = ("triton", "blelloch")  # the second where there is no GPU


@claim(
    "longhorn:speed",
    paper=papers.LONGHORN,
    place="the text on the implementation",
    statement="Longhorn is as fast as Mamba.",
    printed="no number",
    runs="throughput of `longhorn` and `mamba`, the recurrence alone and the whole block, forward and "
    "backward, our Triton kernels, B = 8, T = 2,048, D = 1,536, N = 16",
    scaled="our kernels instead of the papers', and another device",
    rule=f"agrees: the ratio of the times lies within {MARGIN:.0%}, with its interval; disagrees: it lies "
    "outside; both at each level and in each pass",
    device="cuda",
    budget_s=120,
    has_smoke=True,
)
class Speed:
    """One piece per level."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return LEVELS

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        B, T, D, N = SIZES[setting.preset]
        return timed(
            setting,
            piece,
            models=["longhorn", "mamba"],
            backends=BACKENDS[0] if setting.on_gpu else BACKENDS[1],
            level=piece,
            pass_=PASSES,
            axis=[f"B={B}", f"T={T}", f"D={D}", f"N={N}"],
        )

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        for level in LEVELS:
            numbers = found.get(level, {})
            for pass_ in PASSES:
                both = [{"model": model, "pass": pass_} for model in ("longhorn", "mamba")]
                longhorn, mamba = (latency(numbers, **each) for each in both)
                ratio = None if longhorn is None or mamba is None else longhorn.over(mamba)
                reason = "; ".join(filter(None, (why(numbers, **each) for each in both)))
                yield Finding(
                    f"time of Longhorn over that of Mamba, {level}, {pass_}",
                    "the same",
                    {"longhorn": longhorn, "mamba": mamba, "ratio": ratio},
                    agree_on_equality(ratio, MARGIN, reason),
                )
