"""GateLoop, Fig. 6: data-controlled transitions remember for longer than fixed ones on Memory Horizon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ssmperf.suitekit import (
    Agreement,
    ClaimSetting,
    Estimate,
    Finding,
    Learned,
    agree_on_number,
    agree_on_order,
    claim,
    registry,
)

from ..tasks.memory_horizon import RESET
from . import _papers as papers
from ._learning import Plan, Variant, trained
from ._seeds import Row, Trainings

T = 1024
EPOCHS, ROWS, BATCH = 300, 2000, 32
CHANNELS = {"C": 64}  # 64 heads of one channel
CONTROLLED, FIXED = "gateloop", "gateloop_fixed"
PRINTED = {CONTROLLED: "0.43", FIXED: "0.25"}
PLAN = Plan(
    task="memory_horizon",
    T=T,
    batch=BATCH,
    updates=EPOCHS * ROWS // BATCH,
    rates=(2.5e-3,),
    layers=4,
    decay=0.05,
    warm_up=10_000,
    rows=128,  # of 1,024 answers each
)
HIDDEN = 128  # width inside the channel mixing
FAR = ("20-79", "80-319", "320-1279")  # classes of reaches
RESETS, ELSEWHERE = "at resets", "elsewhere"
WATCHED, UNSEEN = 16, 1_000_003  # rows whose gates are watched, and what makes their seed another
NOT_STATED = "the paper does not state how it split its rows, nor how resets are placed"


@claim(
    "gateloop:fig6",
    paper=papers.GATELOOP,
    place="Figs. 5, 6 and 8, and appendix A",
    statement="On Memory Horizon, data-controlled state transitions are more accurate than a fixed one, "
    "whose accuracy falls off after 50 steps; their gates close at resets.",
    printed="0.43 (data-controlled), 0.25 (fixed)",
    runs="`gateloop` and `gateloop_fixed`, 4 layers, d = 64, 64 heads of one channel, channel mixing of "
    f"128, T = {T:,}, {PLAN.updates:,} updates of {BATCH} rows (300 epochs of 2,000), rate 2.5·10⁻³ after "
    "a warm-up of 10,000 updates, AdamW with weight decay 0.05, 3 seeds; accuracy on 128 unseen rows, and "
    "the magnitudes of the gates of 16 of them",
    scaled="nothing. What the paper leaves open is read as the task's data card says: five numbers, "
    "resets uniform without replacement, 2,000 rows to learn and others to test; the fixed transition "
    "starts as LRU's",
    rule="agrees: data-controlled is more accurate with disjoint intervals over seeds, and the intervals "
    "hold the printed numbers; the mean magnitude of the gates of all layers is smaller at resets than "
    "elsewhere; cannot tell: they do not hold them, since the paper leaves the split open",
    doubts="The authors: how they split their rows and placed resets is not stated, and either changes both "
    "numbers. That is why a number which is not reached refutes nothing",
    device="cuda",
    budget_s=600,
    budget_of="piece",
    has_smoke=True,
)
class Fig6:
    """One piece per model."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return tuple(PRINTED)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        probe = gates if piece == CONTROLLED else None
        return trained(setting, PLAN, {piece: Variant(piece, CHANNELS, HIDDEN)}, probe=probe)

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        trainings = Trainings.of(found)
        (length,) = trainings.lengths((T,))
        yield trainings.higher(CONTROLLED, FIXED, length)
        for model, printed in PRINTED.items():
            ours = trainings.accuracy(model, length)
            judged = agree_on_number(printed, ours, why=trainings.why(model, T=length))
            if judged[0] is Agreement.DISAGREES:
                judged = Agreement.CANNOT_TELL, f"{judged[1]}; {NOT_STATED}"
            yield Finding(f"accuracy of {model}", printed, {model: ours}, judged)
        yield at_resets(trainings, length)
        for reach in FAR:
            by_model = {model: at_reach(trainings, model, length, reach) for model in PRINTED}
            yield Finding(
                f"accuracy where an answer depends on {reach} tokens",
                "the fixed one falls off after 50",
                by_model,
                agree_on_order(by_model[CONTROLLED], by_model[FIXED], "no test has such answers"),
                decides=False,
            )


def gates(learned: Learned, setting: ClaimSetting) -> dict[str, Any]:
    """Give the mean magnitude of the gates of each layer, at resets and elsewhere, on unseen rows."""
    job, kept = learned.job, []
    function = registry.backend(job.model, job.backend).function

    def watched(**operands: Any) -> Any:
        kept.append(operands["log_a"].float().exp().mean(-1).cpu())
        return function(**operands)

    draw = replace(job.draw, rows=WATCHED, seed=job.seed + UNSEEN, held_out=True)
    tokens = registry.task(job.task).sample(draw).tokens
    with torch.no_grad():
        learned.network(tokens.to(setting.device), backend=watched)
    resets = tokens == RESET
    found = {RESETS: resets, ELSEWHERE: ~resets}
    return {"gates": {name: [float(each[at].mean()) for each in kept] for name, at in found.items()}}


def at_resets(trainings: Trainings, length: int) -> Finding:
    """Judge the claim that gates close at resets."""

    def mean(where: str) -> Estimate | None:
        return trainings.estimate(CONTROLLED, length, lambda row: mean_gate(row, where), share=True)

    ours = {name: mean(name) for name in (ELSEWHERE, RESETS)}
    why = trainings.why(CONTROLLED, T=length) or "it was trained before gates were looked at"
    judged = agree_on_order(ours[ELSEWHERE], ours[RESETS], why)
    return Finding(
        "mean magnitude of the gates of all layers", "they close at resets (Figs. 5, 8)", ours, judged
    )


def mean_gate(row: Row, where: str) -> float | None:
    """Average the gates of a network over its layers."""
    by_layer = row.get("gates", {}).get(where)
    return sum(by_layer) / len(by_layer) if by_layer else None


def at_reach(trainings: Trainings, model: str, length: int, reach: str) -> Estimate | None:
    """Estimate the accuracy of answers that depend on so many tokens."""

    def value(row: Row) -> float | None:
        found: float | None = row["by_reach"].get(str(length), {}).get(reach)
        return found

    return trainings.estimate(model, length, value, share=True)
