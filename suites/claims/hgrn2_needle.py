"""HGRN2, Fig. 4: it finds a needle in longer haystacks than those of its training, better than Mamba."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._learning import Plan, Variant, trained
from ._seeds import Trainings

T, GROWTH = 512, (1, 2, 4)
HGRN2, MAMBA = "hgrn2", "mamba"
# equal states, of 4,096 numbers per layer
VARIANTS = {
    HGRN2: Variant("hgrn2", {"H": 1, "K": 64, "V": 64}),
    MAMBA: Variant("mamba", {"D": 128, "N": 32}),
}
PLAN = Plan(
    task="needle",
    T=T,
    batch=128,
    updates=6000,
    rates=(1e-3, 5e-3),
    decay=0.05,
    growth=GROWTH,
    rows=1024,  # of one answer each
    side_by_side=4,
)


@claim(
    "hgrn2:needle",
    paper=papers.HGRN2,
    place="Fig. 4",
    statement="Beyond the length of its training, HGRN2 retrieves a needle from a haystack better than "
    "Mamba.",
    printed="no number (heat maps)",
    runs="`hgrn2` with an expansion of 64 and `mamba` with as large a state, 2 layers, d = 64, on the "
    f"task `needle` (key and value in random filler, asked for at the end): trained at T = {T} for at "
    f"most {PLAN.updates:,} updates of {PLAN.batch} rows, rates 10⁻³ and 5·10⁻³, 3 seeds; accuracy on "
    "1,024 unseen rows of T = 512, 1,024 and 2,048",
    scaled="tokens instead of text, networks of two layers instead of 3 billion parameters, T = 512 to "
    "2,048 instead of 8,192 to 16,384",
    rule="agrees: `hgrn2` is more accurate at 2 T and at 4 T with disjoint intervals over seeds",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Needle:
    """One piece per model."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return tuple(VARIANTS)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return trained(setting, PLAN, {piece: VARIANTS[piece]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        (length,) = trainings.lengths((T,))
        for growth in GROWTH:
            yield trainings.higher(
                HGRN2,
                MAMBA,
                length,
                growth=growth,
                printed="" if growth == 1 else "higher",
                decides=growth > 1,
            )
