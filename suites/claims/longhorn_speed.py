"""Longhorn: at least as fast as Mamba, whose kernel it takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import Agreement, ClaimSetting, Finding, agree_on_limit, claim

from . import _papers as papers
from ._timing import latency, timed, why

SIZES = {"standard": (8, 2048, 1536, 16), "smoke": (1, 32, 8, 4)}  # B, T, D, N
LEVELS = ("op", "block")
PASSES = ("forward", "backward")
MARGIN = 0.1
NO_KERNEL = "the paper's kernel is no backend here"
BACKENDS = ("triton", "blelloch")  # the second where there is no GPU


@claim(
    "longhorn:speed",
    paper=papers.LONGHORN,
    place="the text on the implementation",
    statement="Longhorn is at least as fast as Mamba.",
    printed="no number",
    runs="throughput of `longhorn` and `mamba`, the recurrence alone and the whole block, forward and "
    "backward, our Triton kernels, B = 8, T = 2,048, D = 1,536, N = 16",
    scaled="our kernels instead of the papers', and another device",
    rule="cannot tell without the paper's kernel. Ours are shown: agrees, if Longhorn takes at most "
    f"{MARGIN:.0%} longer, with its interval; disagrees, if it takes longer; at each level and in each pass",
    doubts="Nobody yet: our kernels of both models are not those that the paper compares",
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
        yield Finding(
            "time of Longhorn over that of Mamba, by the paper's kernels",
            "at most as long",
            {},
            (Agreement.CANNOT_TELL, NO_KERNEL),
        )
        for level in LEVELS:
            numbers = found.get(level, {})
            for pass_ in PASSES:
                both = [{"model": model, "pass": pass_} for model in ("longhorn", "mamba")]
                longhorn, mamba = (latency(numbers, **each) for each in both)
                ratio = None if longhorn is None or mamba is None else longhorn.over(mamba)
                reason = "; ".join(filter(None, (why(numbers, **each) for each in both)))
                yield Finding(
                    f"time of Longhorn over that of Mamba, {level}, {pass_}, by our kernels",
                    "at most as long",
                    {"longhorn": longhorn, "mamba": mamba, "ratio": ratio},
                    agree_on_limit(ratio, MARGIN, reason),
                    decides=False,
                )
