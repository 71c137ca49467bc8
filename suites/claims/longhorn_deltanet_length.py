"""Longhorn, section 5.4: DeltaNet is said not to extrapolate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._learning import Variant, trained
from ._seeds import Trainings
from .longhorn_fig1 import CHANGED, HEADS, PLAN, SCALED, TEXT_AND_NETWORKS, of_rise

DELTA = "deltanet"


@claim(
    "longhorn:deltanet_length",
    paper=papers.LONGHORN,
    place="Section 5.4",
    statement="DeltaNet does not extrapolate beyond the contexts of its training.",
    printed="no number; the paper cites another one",
    runs=f"{TEXT_AND_NETWORKS}: `deltanet`",
    scaled=SCALED,
    rule="agrees: the loss at 16 T is more than 5 % above that at T, by the whole interval over seeds; "
    "disagrees: at most 5 %",
    doubts="Whoever trains at the size that the paper speaks of: what a small network holds on text of one "
    "kind does not say what a large one does",
    version=2,
    changed=CHANGED,
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Length:
    """One piece."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (DELTA,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return trained(setting, PLAN, {piece: Variant(piece, HEADS)})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        (length,) = trainings.lengths((PLAN.T,))
        yield of_rise(trainings, DELTA, length, said_to_rise=True, printed="does not extrapolate")
