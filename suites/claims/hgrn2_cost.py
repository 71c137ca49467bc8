"""HGRN2, section 3.1: elementwise expansion of the state costs time and memory, outer products do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, agree_on_order, claim

from . import _papers as papers
from ._pieces import of_pieces
from ._timing import faster, number, timed, why

EXPANSIONS = {"standard": (4, 8, 16, 32), "smoke": (2, 4)}
SIZES = {"standard": (4, 2048, 512, 128), "smoke": (1, 32, 8, 4)}  # B, T, width, HGRN2's head
OUTER = "hgrn2"
LAYERS = 2


@claim(
    "hgrn2:cost",
    paper=papers.HGRN2,
    place="Section 3.1",
    statement="Expanding the state elementwise slows training down as n grows; outer products do not.",
    printed="no number",
    runs="training steps on bytes of text of a network of two blocks of width 512 with embedding and head, "
    "B = 4, T = 2,048, our Triton kernels: `pese_lr` with n = 4, 8, 16, 32 against `hgrn2` with n = 128, "
    "about the same parameters; time and peak memory",
    scaled="two layers, and another device",
    rule="agrees: `pese_lr` takes longer with n = 32 than with n = 4, and longer and more memory than "
    "`hgrn2` with n = 128, with disjoint intervals",
    doubts="Whoever expands states by a kernel that does not write them: the cost of PESE here is that of "
    "our backends",
    device="cuda",
    budget_s=600,
    has_smoke=True,
)
class Cost:
    """One piece per expansion, and one for the outer product."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return names(setting.preset)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        B, T, width, head = SIZES[setting.preset]
        common: dict[str, Any] = {"suite": "training", "layers": LAYERS}
        if piece == OUTER:
            sizes = [f"H={width // head}", f"K={head}", f"V={head}"]
            backend = "triton" if setting.on_gpu else "chunkwise"
            return timed(
                setting, piece, models=OUTER, backends=backend, axis=[f"B={B}", f"T={T}", *sizes], **common
            )
        n = int(piece.removeprefix("n"))
        return timed(
            setting,
            piece,
            models=f"pese_lr:n={n}",
            backends="triton" if setting.on_gpu else "blelloch",
            axis=[f"B={B}", f"T={T}", f"C={n * width}"],
            **common,
        )

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        pieces = of_pieces(found, names("standard"))
        cases = {
            "cases": [{"piece": piece, **case} for piece in pieces for case in pieces[piece].get("cases", ())]
        }
        steps = sorted(int(piece.removeprefix("n")) for piece in pieces if piece != OUTER)
        least, most = {"piece": f"n{steps[0]}"}, {"piece": f"n{steps[-1]}"}
        outer = {"piece": OUTER}
        of = f"n = {steps[-1]}"
        yield from faster(f"time, elementwise {of} against n = {steps[0]}", "slower", cases, most, least)
        yield from faster(f"time, elementwise {of} against outer product", "slower", cases, most, outer)
        peaks = [number(cases, "peak_bytes", **each) for each in (most, outer)]
        reason = "; ".join(filter(None, (why(cases, **each) for each in (most, outer))))
        yield Finding(
            f"peak memory, elementwise {of} against outer product",
            "more",
            {of: peaks[0], OUTER: peaks[1]},
            agree_on_order(peaks[0], peaks[1], reason or "no peak memory was recorded"),
        )
        for step in steps[1:-1]:
            between = {"piece": f"n{step}"}
            yield from faster(
                f"time, elementwise n = {step} against n = {steps[0]}", "slower", cases, between, least,
                decides=False,
            )  # fmt: skip


def names(preset: str) -> list[str]:
    """Name the pieces of a preset."""
    return [*(f"n{n}" for n in EXPANSIONS[preset]), OUTER]
