"""Longhorn, Fig. 4: it alone recalls nearly all associations at T = 512 with a width of 64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssmperf.suitekit import Agreement, ClaimSetting, Estimate, Finding, claim

from . import _papers as papers
from ._learning import Plan, Variant, lengths, trained
from ._seeds import Trainings

CLAIMED = 512  # the length of which the paper speaks
LENGTHS = (64, 128, 256, CLAIMED)
SCANS = {"D": 128, "N": 16}
HEADS = {"H": 2, "K": 32, "V": 32}  # as many numbers of state, 2,048
SIZES: dict[str, dict[str, int] | None] = {
    "longhorn": SCANS,
    "mamba": SCANS,
    "attention": HEADS,
    "deltanet": HEADS,
    "based": None,
    "rwkv4": None,
}
LONGHORN = "longhorn"
OTHERS = ("mamba", "attention", "based", "rwkv4")  # of the figure
ABSENT = ("hyena", "baseconv")  # of the figure, and no models here
BESIDE = ("deltanet",)
GROUPS = {LONGHORN: (LONGHORN, "mamba", "deltanet", "attention"), "based": ("based", "rwkv4")}
RATES = (4.6e-4, 2.2e-3, 1e-2)
BATCHES = {64: 256, 128: 256, 256: 128, CLAIMED: 128}
UPDATES = {64: 3000, 128: 3000, 256: 3000, CLAIMED: 6000}
TASKS = {CLAIMED: "mqar:pairs=64"}  # at other lengths T/16 pairs, as in the paper
NEAR_PERFECT = 0.95
ONLY = "only Longhorn is near perfect"


@claim(
    "longhorn:fig4",
    paper=papers.LONGHORN,
    place="Fig. 4",
    statement="On multi-query associative recall, only Longhorn is near perfect at T = 512 with d = 64.",
    printed="no number (a figure)",
    runs="`longhorn` and the figure's rivals `mamba`, `attention`, `based` and `rwkv4`, with `deltanet` "
    "beside them; 2 layers, d = 64, T = 64, 128, 256 and 512 with 4, 8, 16 and 64 pairs, vocabulary 8,192; "
    "at most 3,000 updates of 256 rows (128 at T = 256; 6,000 updates of 128 at T = 512), rates 4.6·10⁻⁴, "
    "2.2·10⁻³ and 10⁻², 3 seeds; accuracy on 512 unseen rows. The states of `longhorn`, `mamba` and "
    "`deltanet` have 2,048 numbers",
    scaled="one width of four, three learning rates of four, at most 8 epochs of 64 (4 at T = "
    "256); layers as in language models, with their channel mixing. Hyena and BaseConv, which the figure "
    "has, are no models here. The paper does not say how large states are, nor which RWKV it trained. "
    "Lengths below 512 are shown and decide nothing",
    rule="agrees: at T = 512 `longhorn` is more accurate than each of the others with disjoint intervals "
    "over seeds, and its interval is above 95 %; disagrees: another one is more accurate, or above 95 %, "
    "too; cannot tell: T = 512 was not run, a rival was not trained, or `longhorn` is not above 95 %, "
    "since it was trained for a shorter time than in the paper",
    doubts="The authors: their networks were trained for longer, with Hyena and BaseConv among the rivals. "
    "DeltaNet, which the figure does not have, may recall as much",
    version=2,
    changed="it compared with rivals that the figure does not have, in networks with untied embeddings",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Fig4:
    """Two pieces per length, named after the first model that they train."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return [f"T{T}-{group}" for T in lengths(LENGTHS, setting) for group in GROUPS]

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        length, _, group = piece.partition("-")
        T = int(length.removeprefix("T"))
        plan = Plan(TASKS.get(T, "mqar"), T, BATCHES.get(T, 1), UPDATES.get(T, 1), RATES)
        return trained(setting, plan, {model: Variant(model, SIZES[model]) for model in GROUPS[group]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        lengths_ = trainings.lengths(LENGTHS)
        last = lengths_[-1]
        reached = trainings.accuracy(LONGHORN, last)
        why = trainings.why(LONGHORN, T=last)
        yield Finding(
            f"accuracy of {LONGHORN}, T = {last}",
            "near perfect",
            {LONGHORN: reached},
            judge_near_perfect(reached, why),
            note=trainings.note(LONGHORN, T=last),
        )
        for absent in ABSENT:
            here = Agreement.CANNOT_TELL, f"{absent} is no model here"
            yield Finding(f"accuracy, {LONGHORN} against {absent}, T = {last}", ONLY, {}, here)
        for T in (each for each in reversed(lengths_) if each == last or trainings.has(each)):
            for other in (*OTHERS, *BESIDE):
                decides = last == T and other in OTHERS
                printed = ONLY if decides else ""
                found_here = trainings.higher(LONGHORN, other, T, printed=printed, decides=decides)
                ours = found_here.ours[other]
                if decides and is_near_perfect(ours):
                    judged = Agreement.DISAGREES, f"{other} is above {NEAR_PERFECT:.0%}, too"
                    found_here = replace(found_here, judged=judged)
                yield found_here


def is_near_perfect(ours: Estimate | None) -> bool:
    """Tell whether the whole interval of an accuracy is near 1."""
    return ours is not None and ours.low is not None and ours.low >= NEAR_PERFECT


def judge_near_perfect(ours: Estimate | None, why: str) -> tuple[Agreement, str]:
    """Judge the claim that an accuracy is near 1, which a shorter training than the paper's cannot refute."""
    if ours is None or ours.low is None:
        return Agreement.CANNOT_TELL, why or "there is no interval: more seeds are needed"
    if is_near_perfect(ours):
        return Agreement.AGREES, f"its interval is above {NEAR_PERFECT:.0%}"
    shorter = f"not above {NEAR_PERFECT:.0%}, but trained for fewer steps than in the paper"
    return Agreement.CANNOT_TELL, shorter
