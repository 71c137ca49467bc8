"""Mamba: its fused scan against a scan that writes the expanded states to memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._timing import faster, timed

FUSED, NAIVE = ("mamba_ssm", "triton"), ("torch_scan", "blelloch")
OURS = "triton"  # our kernel, beside that of the paper
SIZES = {"standard": (8, 4096, 1024, 16), "smoke": (1, 32, 8, 4)}  # B, T, D, N
PRINTED = (20.0, 40.0)
TIMES = "times"


@claim(
    "mamba:scan",
    paper=papers.MAMBA,
    place="Section 4.5 and Fig. 8",
    statement="The fused selective scan is 20 to 40 times as fast as a standard scan in PyTorch.",
    printed="20 to 40×",
    runs="throughput of `mamba`, forward: mamba_ssm, our Triton kernel, and scans in PyTorch (torch_scan, "
    "blelloch), B = 8, T = 4,096, D = 1,024, N = 16",
    scaled="the paper's device is an A100 with 80 GB; the factor is shown, the order decides",
    rule="agrees: mamba_ssm is faster than both scans in PyTorch, with disjoint intervals; our kernel and "
    "the sequential loop are shown beside it",
    doubts="Whoever compares with a scan that is compiled: those in PyTorch here launch a kernel per level "
    "of the scan",
    device="cuda",
    budget_s=120,
    has_smoke=True,
)
class FusedScan:
    """One piece with all backends."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (TIMES,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        B, T, D, N = SIZES[setting.preset]
        return timed(
            setting,
            "mamba",
            models="mamba",
            backends=[*FUSED, *NAIVE, "sequential"],
            pass_="forward",
            axis=[f"B={B}", f"T={T}", f"D={D}", f"N={N}"],
        )

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        numbers = found.get(TIMES, {})
        for fused in FUSED:
            for naive in NAIVE:
                yield from faster(
                    f"{fused} against {naive}",
                    "20 to 40×",
                    numbers,
                    {"backend": naive},
                    {"backend": fused},
                    times=PRINTED,
                    decides=fused != OURS,
                    note="our kernel, not the paper's" if fused == OURS else "",
                )
        yield from faster(
            f"{OURS} against sequential",
            "",
            numbers,
            {"backend": "sequential"},
            {"backend": OURS},
            decides=False,
            note="one launch or more per step, which no paper calls a scan",
        )
