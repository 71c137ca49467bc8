"""HGRN2, Fig. 3: an expanded state recalls associations that HGRN1's does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._learning import Plan, Variant, lengths, trained
from ._seeds import Trainings

LENGTHS = (64, 128)
EXPANDED, PLAIN = "hgrn2", "hgrn"
VARIANTS = {EXPANDED: Variant("hgrn2", {"H": 1, "K": 64, "V": 64}), PLAIN: Variant("hgrn", {"C": 64})}
UPDATES, BATCH, RATES = 3000, 512, (1e-3, 5e-3, 1e-2)


@claim(
    "hgrn2:fig3",
    paper=papers.HGRN2,
    place="Fig. 3",
    statement="On multi-query associative recall, HGRN2 is far more accurate than HGRN1: at T = 64 and 128 "
    "with d = 64, of the figure's four lengths and four widths.",
    printed="no number (a figure)",
    runs="`hgrn2` with an expansion of 64 and `hgrn`, 2 layers, d = 64, T = 64 with 4 pairs and T = 128 "
    f"with 8, vocabulary 8,192, at most {UPDATES:,} updates of {BATCH} rows, rates 10⁻³, 5·10⁻³ and 10⁻², "
    "3 seeds; accuracy on 512 unseen rows",
    scaled="two lengths of four and one width of four, three learning rates of seven, at most 15 epochs "
    "of 64; the layers are those of HGRN's language models, with channel mixing",
    rule="agrees: `hgrn2` is more accurate at each length with disjoint intervals over seeds",
    doubts="Whoever trains HGRN1 for longer, or wider: its loss still fell. The figure's larger lengths and "
    "widths were not run",
    version=2,
    changed="the networks had untied embeddings and no dropout",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Fig3:
    """One piece per length."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"T{T}" for T in lengths(LENGTHS, setting)]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        plan = Plan("mqar", int(piece.removeprefix("T")), BATCH, UPDATES, RATES)
        return trained(setting, plan, VARIANTS)

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        for T in trainings.lengths(LENGTHS):
            yield trainings.higher(EXPANDED, PLAIN, T)
