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
EQUAL = "mamba, equal state"
WIDTH = 128
# per layer 128·128 numbers of state, as the paper's expansion of 128; 256·16 of Mamba's; and 256·64, as many
VARIANTS = {
    HGRN2: Variant("hgrn2", {"H": 1, "K": 128, "V": WIDTH}),
    MAMBA: Variant("mamba", {"D": 2 * WIDTH, "N": 16}),
    EQUAL: Variant("mamba", {"D": 2 * WIDTH, "N": 64}),
}
PIECES = {HGRN2: (HGRN2,), MAMBA: (MAMBA,), "mamba-equal": (EQUAL,)}
PLAN = Plan(
    task="needle",
    T=T,
    batch=128,
    updates=6000,
    rates=(1e-3, 5e-3),
    decay=0.05,
    width=WIDTH,
    growth=GROWTH,
    rows=1024,  # of one answer each
    side_by_side=4,
)


@claim(
    "hgrn2:needle",
    paper=papers.HGRN2,
    place="Fig. 4",
    statement="Beyond the length of its training, HGRN2 retrieves a needle from a haystack better than "
    "Mamba, by its larger state.",
    printed="no number (heat maps)",
    runs="`hgrn2` with an expansion of 128 and `mamba` with N = 16, a quarter of that state, as in the "
    f"paper; beside them `mamba` with as large a state; 2 layers, d = {WIDTH}, on the task `needle` (key "
    f"and value in random filler, asked for at the end): trained at T = {T} for at most {PLAN.updates:,} "
    f"updates of {PLAN.batch} rows, rates 10⁻³ and 5·10⁻³, 3 seeds; accuracy on 1,024 unseen rows of T = "
    "512, 1,024 and 2,048",
    scaled="tokens instead of text, networks of two layers instead of 3 billion parameters, T = 512 to "
    "2,048 instead of 8,192 to 16,384",
    rule="agrees: `hgrn2` is more accurate at 2 T and at 4 T with disjoint intervals over seeds, each with "
    "the paper's state; Mamba with an equal state is shown beside",
    doubts="Whoever retrieves from text: keys and values in random filler ask for less than a question does",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Needle:
    """One piece per model."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return tuple(PIECES)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return trained(setting, PLAN, {name: VARIANTS[name] for name in PIECES[piece]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        (length,) = trainings.lengths((T,))
        for growth in GROWTH:
            for rival in (MAMBA, EQUAL):
                decides = growth > 1 and rival == MAMBA
                printed = "higher" if decides else ""
                yield trainings.higher(HGRN2, rival, length, growth=growth, printed=printed, decides=decides)
