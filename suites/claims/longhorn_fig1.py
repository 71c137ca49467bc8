"""Longhorn, Fig. 1: trained on short contexts, it holds in contexts that are 16 times as long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import Agreement, ClaimSetting, Estimate, Finding, agree_on_order, claim

from . import _papers as papers
from ._learning import Plan, Variant, trained
from ._seeds import Row, Trainings

T, FACTOR = 512, 16
GROWTH = (1, 2, 4, 8, FACTOR)
LONGHORN, ATTENTION = "longhorn", "attention"
HEADS = {"H": 4, "K": 64, "V": 64}
VARIANTS = {
    LONGHORN: Variant("longhorn", {"D": 512, "N": 16}),
    ATTENTION: Variant("attention", HEADS),
}
PLAN = Plan(
    task="language",
    T=T,
    batch=32,
    updates=2000,
    rates=(1e-3, 3e-3),
    width=256,
    layers=4,
    growth=GROWTH,
    rows=512,
    side_by_side=3,
)
MARKED = 0.05  # a rise of the loss by more than this share is marked
TEXT_AND_NETWORKS = (
    "a model of bytes of text (Python's standard library; files are held out that repeat under 2 % of their "
    "windows of 32 bytes from others), 4 layers, d = 256, trained at T = 512 for 2,000 updates of 32 rows "
    "(33 MB, about 3 epochs of 10.2 MB), the better rate of 10⁻³ and 3·10⁻³, 3 seeds; the loss of the same "
    "256 KiB of held-out bytes, cut into rows of T = 512 to 8,192 without a state carried over"
)
SCALED = (
    "millions of parameters instead of 1.3 billion, bytes of one kind of text instead of 100 billion tokens, "
    f"T = 512 to 8,192 instead of 2,048 to 32,768. A rise by more than {MARKED:.0%} of the loss counts as "
    "marked"
)
CHANGED = "24 % of the held-out windows of 32 bytes occurred in the text to learn"


@claim(
    "longhorn:fig1",
    paper=papers.LONGHORN,
    place="Fig. 1 and section 5.4",
    statement="Trained on contexts of 2,048 tokens, Longhorn's perplexity does not rise markedly up to "
    "32,768 (16×); a transformer's does.",
    printed="no number (a figure)",
    runs=f"{TEXT_AND_NETWORKS}: `longhorn`, and `attention` with rotary positions",
    scaled=SCALED,
    rule="agrees: the loss at 16 T is at most 5 % above that at T for `longhorn`, and more than 5 % for "
    "`attention`, by the whole interval over seeds; and the rise of `attention` is larger",
    doubts="Whoever trains at a billion parameters: small networks on text of one kind may hold where large "
    "ones do not. Rotary attention is one of several transformers, and others extrapolate further",
    version=2,
    changed=CHANGED,
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Fig1:
    """One piece per model."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return tuple(VARIANTS)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        return trained(setting, PLAN, {piece: VARIANTS[piece]})

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        (length,) = trainings.lengths((T,))
        ratios = {model: rise(trainings, model, length, FACTOR) for model in VARIANTS}
        yield of_rise(trainings, LONGHORN, length, said_to_rise=False, printed="no marked rise")
        yield of_rise(trainings, ATTENTION, length, said_to_rise=True, printed="fails")
        yield Finding(
            f"loss at {FACTOR} T relative to T, {ATTENTION} against {LONGHORN}",
            "larger",
            {model: ratios[model] for model in (ATTENTION, LONGHORN)},
            agree_on_order(ratios[ATTENTION], ratios[LONGHORN], trainings.why(ATTENTION, LONGHORN, T=length)),
        )


def of_rise(trainings: Trainings, model: str, length: int, *, said_to_rise: bool, printed: str) -> Finding:
    """Judge the claim that the loss of a model rises markedly beyond its training's length, or does not."""
    ratio = rise(trainings, model, length, FACTOR)
    beside = {f"{k} T": rise(trainings, model, length, k) for k in GROWTH[1:-1]}
    return Finding(
        f"loss of {model} at {FACTOR} T relative to T",
        printed,
        {f"{FACTOR} T": ratio, **beside},
        judge_rise(ratio, said_to_rise, why_none(trainings, model, length)),
        note=trainings.note(model, T=length),
    )


def rise(trainings: Trainings, model: str, length: int, factor: int) -> Estimate | None:
    """Estimate the loss at a multiple of the training's length, relative to that at its length."""

    def value(row: Row) -> float | None:
        short, long = (row["losses"].get(str(each)) for each in (length, factor * length))
        return None if not short or long is None else float(long / short)

    return trainings.estimate(model, length, value)


def why_none(trainings: Trainings, model: str, length: int) -> str:
    """Say why a model has no rise of its loss."""
    return trainings.why(model, T=length) or "a loss is not finite, or that length was not tested"


def judge_rise(ratio: Estimate | None, said_to_rise: bool, why: str) -> tuple[Agreement, str]:
    """Judge the claim that a loss rises markedly, or that it does not."""
    if ratio is None or ratio.low is None or ratio.high is None:
        few = "there is no interval: more seeds are needed"
        return Agreement.CANNOT_TELL, why if ratio is None else few
    rises, stays = ratio.low > 1 + MARKED, ratio.high <= 1 + MARKED
    if not (rises or stays):
        return Agreement.CANNOT_TELL, f"the interval holds a rise of {MARKED:.0%}"
    words = f"it rises by {'more' if rises else 'no more'} than {MARKED:.0%}"
    return (Agreement.AGREES if rises == said_to_rise else Agreement.DISAGREES), words
