"""HGRN2, Tables 2 and 5: parameters of the state expansions, and of the network on WikiText-103."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf import Shape
from ssmperf.suitekit import (
    ClaimSetting,
    Estimate,
    Finding,
    agree_on_equality,
    agree_on_number,
    claim,
    registry,
)

from . import _papers as papers
from ._counting import COUNTS, count, of_count

d, n = 512, 4
# the expansion's name in the paper: our model, the formula as printed, its value
EXPANSIONS = {
    "Naive": ("pese_naive", "nd²", n * d**2),
    "LR": ("pese_lr", "≈ d²", d**2),
    "GLT": ("pese_glt", "d²", d**2),
    "GLTI": ("pese_glti", "d² + n²", d**2 + n**2),
    "KRP": ("pese_krp", "nd", n * d),
    "KP": ("pese_kp", "d² + n", d**2 + n),
}
ABOUT = 0.02  # largest error of ≈: the rank is a whole number
WIKITEXT = {"layers": 6, "vocabulary": 50265, "tied": True}
GATES = 3  # of an expanded HGRN: forget, input and output, each with its own expansion


@claim(
    "hgrn2:parameters",
    paper=papers.HGRN2,
    place="Tables 2 and 5",
    statement="Expanding the state takes about d² parameters, or nd, instead of the nd² of a full map.",
    printed="Table 2: nd², ≈ d², d², d² + n², nd, d² + n; Table 5: 44.66 M",
    runs=f"parameters of one expansion at d = {d}, n = {n}, and of the network of Table 5",
    scaled="nothing",
    rule=f"agrees: the count is the formula's value, within {ABOUT:.0%} where it is printed with ≈, and "
    "rounds to 44.66 M; disagrees: it is not",
    doubts="Nobody, but on what the paper leaves open: a count is a count",
    budget_s=30,
)
class Parameters:
    """One count per expansion, and one of a network."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (COUNTS,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        found = {}
        for name, (model, _, _) in EXPANSIONS.items():
            layer = registry.model(model).cls(Shape(B=1, T=1, C=n * d), n=n)
            whole = sum(parameter.numel() for parameter in layer.parameters())
            found[name] = whole // GATES
        found["network"] = count("hgrn2", {"H": 4, "K": 128, "V": 128}, **WIKITEXT)
        return found

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        counts = found.get(COUNTS, {})
        for name, (_, formula, value) in EXPANSIONS.items():
            counted = counts.get(name)
            ours = Estimate.exact(counted) if isinstance(counted, int) else None
            if formula.startswith("≈"):
                ratio = None if ours is None else ours.over(Estimate.exact(value))
                judged = agree_on_equality(ratio, ABOUT)
            else:
                judged = agree_on_number(str(value), ours)
            note = "the weight is printed as d × d; the formula is that of d × nd" if name == "Naive" else ""
            yield Finding(
                f"expansion {name}", f"{formula} = {value:,}", {"parameters": ours}, judged, note=note
            )
        yield of_count("network on WikiText-103", "44.66", counts.get("network"))
