"""Linearization: minimal RNNs copy selectively as well as Mamba, and time-invariant models do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._learning import Plan, Variant, trained
from ._seeds import Trainings

T = 256
MINIMAL, MAMBA, INVARIANT = ("mingru", "minlstm"), "mamba", ("s4d_lin", "lru")
GROUPS = {"minimal": MINIMAL, "mamba": (MAMBA,), "invariant": INVARIANT}
PLAN = Plan(
    task="selective_copying",
    T=T,
    batch=64,
    updates=8000,
    rates=(1e-3, 5e-3),
    layers=3,
    decay=0.05,
)
MARGIN = 0.1
PAPER_UPDATES = 400_000


@claim(
    "linearization:copying",
    paper=papers.LINEARIZATION,
    place="Its remarks on selective copying",
    statement="On selective copying, minimal RNNs are as accurate as Mamba, and time-invariant models fail.",
    printed="no number",
    runs="`mingru`, `minlstm`, `mamba`, `s4d_lin` and `lru`, each in the block of its paper, 3 layers, d = "
    f"64, T = {T} with 16 tokens of an alphabet of 16, at most {PLAN.updates:,} updates of {PLAN.batch} "
    "rows, rates 10⁻³ and 5·10⁻³, 3 seeds; accuracy on 512 unseen rows",
    scaled=f"T = {T} instead of 4,096, and {PLAN.updates:,} updates instead of {PAPER_UPDATES:,}; a learning "
    "rate is chosen instead of 10⁻⁴",
    rule=f"agrees: each minimal RNN is as accurate as `mamba` within {MARGIN:.0%}, and `mamba` and each "
    "minimal RNN are more accurate than each time-invariant model, with disjoint intervals over seeds; one "
    f"that is cut before the paper's {PAPER_UPDATES:,} updates does not count as worse against the paper",
    doubts="Whoever trains for the 400,000 updates of the set-up: a time-invariant model may yet learn T = "
    "256",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Copying:
    """One piece per kind of model."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return tuple(GROUPS)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return trained(setting, PLAN, {model: Variant(model) for model in GROUPS[piece]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found, paper_updates=PAPER_UPDATES)
        (length,) = trainings.lengths((T,))
        for model in MINIMAL:
            yield trainings.as_accurate(model, MAMBA, length, MARGIN, "as accurate")
        for model in (*MINIMAL, MAMBA):
            for invariant in INVARIANT:
                yield trainings.higher(model, invariant, length, printed="time-invariant models fail")
