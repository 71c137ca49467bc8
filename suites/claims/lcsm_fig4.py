"""LCSM, Figs. 3 to 7: which parts of a linear model associative recall needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import (
    Agreement,
    ClaimSetting,
    Estimate,
    Finding,
    agree_on_order,
    claim,
    over_seeds,
    registry,
)

from . import _papers as papers
from ._learning import Plan, Variant, lengths, trained
from ._seeds import Trainings

LENGTHS = (64, 128)
STATE, WIDTH = 32, 64  # k and d
UPDATES, BATCH, RATES = 3000, 128, (1e-3, 5e-3, 1e-2)
BASE, SSM, COMPLEX = "lcsm:1-1-1-0", "lcsm:1-ssm-1-0", "lcsm:1-11-1-0"
INDEPENDENT = ("lcsm:1-0-1-0", "lcsm:1-0f-1-0")
SEPARABLE = tuple(f"lcsm:1-{o}-1-0" for o in (2, 3, 4, 5, 10))
BY_KEY, BY_VALUE = ("lcsm:1-6-1-0", "lcsm:1-9-1-0"), ("lcsm:1-7-1-0", "lcsm:1-8-1-0")
ACTIVATED = tuple(f"lcsm:1-1-1-{a}" for a in (1, 2, 4))  # relu, sigmoid, SiLU
COLDEST, HOTTEST = "lcsm:1-1-1-0:1", "lcsm:1-1-1-0:64"
GROUPS = {
    "base": (BASE, SSM, COLDEST, HOTTEST),
    "activations": ACTIVATED,
    "oscillations": (COMPLEX, *SEPARABLE),
    "constant": INDEPENDENT,
    "by-key": BY_KEY,
    "by-value": BY_VALUE,
}


@claim(
    "lcsm:fig4",
    paper=papers.LCSM,
    place="Figs. 3 to 7",
    statement="On multi-query associative recall, the oscillation must depend on the data, a complex one "
    "is best, activations and a larger τ help, and the parameterisation of SSMs is better.",
    printed="no number (figures)",
    runs="the codes of the grid with e = s = 1: all oscillations, activations none, relu, sigmoid and "
    f"SiLU, τ = 1, 16 and 64, and the SSM parameterisation; k = {STATE}, d = {WIDTH}, 2 layers, T = 64 "
    f"with 4 pairs and T = 128 with 8, vocabulary 8,192; at most {UPDATES:,} updates of {BATCH} rows, "
    "rates 10⁻³, 5·10⁻³ and 10⁻², 3 seeds; accuracy on 512 unseen rows",
    scaled="k = 32 instead of 128 (64 in the published scripts); two lengths of four and one width of "
    "four, three learning rates of seven, at most 4 epochs of 64; layers of the language models, with "
    "channel mixing",
    rule="agrees: at each length, with disjoint intervals over seeds, oscillation 1 is more accurate "
    "than 0 (Fig. 4), 11 than every other (Fig. 5), the mean of the activations than none (Fig. 6), τ = "
    "64 than τ = 1 (Fig. 7), and SSM than 1 (Fig. 3)",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Fig4:
    """Six pieces per length; a code is trained in one of them."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"T{T}-{group}" for T in lengths(LENGTHS, setting) for group in GROUPS]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        length, _, group = piece.partition("-")
        plan = Plan("mqar", int(length.removeprefix("T")), BATCH, UPDATES, RATES, width=WIDTH)
        return trained(setting, plan, {code: Variant(code, sizes_of(code)) for code in GROUPS[group]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        for T in trainings.lengths(LENGTHS):
            if not trainings.has(T):
                yield Finding(f"all of this, T = {T}", "", {}, (Agreement.CANNOT_TELL, "not trained"))
                continue
            yield trainings.higher(SSM, BASE, T, printed="better (Fig. 3)")
            for independent in INDEPENDENT:
                yield trainings.higher(BASE, independent, T, printed="must depend on the data (Fig. 4)")
            for other in (BASE, *INDEPENDENT[:1], *SEPARABLE, *BY_KEY, *BY_VALUE):
                yield trainings.higher(COMPLEX, other, T, printed="the best (Fig. 5)")
            yield activations_help(trainings, T)
            yield trainings.higher(HOTTEST, COLDEST, T, printed="larger τ is better (Fig. 7)")
            yield trainings.higher(HOTTEST, BASE, T, printed="", decides=False, note="τ = 64 against τ = 16")


def sizes_of(code: str) -> dict[str, int]:
    """Give the sizes of a code, k and d, by the letters of its recurrence."""
    if registry.recurrence_of(code) == "selective_scan":
        return {"N": STATE, "D": WIDTH}
    return {"H": 1, "K": STATE, "V": WIDTH}


def activations_help(trainings: Trainings, T: int) -> Finding:
    """Compare the mean over activations of each seed with no activation."""
    mean, without = mean_of(trainings, ACTIVATED, T), trainings.accuracy(BASE, T)
    every = (*ACTIVATED, BASE)
    judged = trainings.undecided(*every, T=T) or agree_on_order(mean, without, trainings.why(*every, T=T))
    ours = {"mean of activations": mean, BASE: without}
    beside = {code: trainings.accuracy(code, T) for code in ACTIVATED}
    return Finding(
        f"accuracy, activations against none, T = {T}", "they help (Fig. 6)", {**ours, **beside}, judged
    )


def mean_of(trainings: Trainings, variants: Sequence[str], T: int) -> Estimate | None:
    """Estimate the mean accuracy of variants over seeds; None if they do not have the same ones."""
    by_seed: dict[int, list[float]] = {}
    for variant in variants:
        for row in trainings.of_variant(variant, T):
            accuracy = row["accuracies"].get(str(T))
            if accuracy is not None:
                by_seed.setdefault(row["seed"], []).append(accuracy)
    if not by_seed or any(len(found) < len(variants) for found in by_seed.values()):
        return None
    return over_seeds([sum(found) / len(found) for found in by_seed.values()], share=True)
