"""Estimates over seeds, and comparisons of variants, from rows of trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssmperf.suitekit import (
    Agreement,
    Estimate,
    Finding,
    agree_on_equality,
    agree_on_order,
    over_seeds,
)

from ._learning import ROWS

Row = Mapping[str, Any]
Judged = tuple[Agreement, str]
BOTH_KNOW = "both learn it: all of their trainings ended early, at 99 %"
SUCCEEDS = 0.9  # accuracy above which a training has solved the task
GUESSING = 0.9  # share of a guess's loss above which a training has not begun to learn
OPTIMISATION = "that is how they were trained, not what they can hold"
NEITHER_KNOWS = "neither learned it: their intervals do not lie above chance"


@dataclass(frozen=True, slots=True)
class Trainings:
    """The rows of all pieces of a claim that have a result.

    paper_updates: how long the paper trains, where that is much longer.
    """

    rows: Sequence[Row]
    paper_updates: int = 0

    @classmethod
    def of(cls, found: Mapping[str, Mapping[str, Any]], *, paper_updates: int = 0) -> Trainings:
        return cls([row for numbers in found.values() for row in numbers.get(ROWS, ())], paper_updates)

    def lengths(self, standard: Sequence[int]) -> Sequence[int]:
        """List the lengths of trainings to judge: those of the claim, or the tiny one that was tried."""
        tried = sorted({row["T"] for row in self.rows if row["smoke"]})
        return tried or standard

    def has(self, T: int) -> bool:
        """Tell whether anything was trained at a length."""
        return any(row["T"] == T for row in self.rows)

    def of_variant(self, variant: str, T: int) -> list[Row]:
        """List the rows of a variant that was trained at T and has results, by seed."""
        found = [row for row in self.rows if (row["variant"], row["T"], row["status"]) == (variant, T, "ok")]
        return sorted(found, key=lambda row: row["seed"])

    def estimate(
        self, variant: str, T: int, value: Callable[[Row], float | None], *, share: bool = False
    ) -> Estimate | None:
        """Estimate a value over the seeds of a variant; None if a seed has none, or none was trained.

        share: whether it lies between 0 and 1.
        """
        values = [value(row) for row in self.of_variant(variant, T)]
        known = [each for each in values if each is not None]
        return over_seeds(known, share=share) if known and len(known) == len(values) else None

    def accuracy(self, variant: str, T: int, growth: int = 1) -> Estimate | None:
        """Estimate the accuracy of a variant that was trained at T, at a multiple of T."""
        return self.estimate(variant, T, lambda row: row["accuracies"].get(str(growth * T)), share=True)

    def why(self, *variants: str, T: int) -> str:
        """Say why variants have no number; empty if all have rows with results and nothing is missing."""
        reasons = []
        for variant in variants:
            rows = [row for row in self.rows if (row["variant"], row["T"]) == (variant, T)]
            if not rows:
                reasons.append(f"{variant} was not trained at T = {T}")
            reasons += dict.fromkeys(f"{variant}: {row['reason']}" for row in rows if row["reason"])
        return "; ".join(reasons)

    def knows(self, variant: str, T: int) -> bool:
        """Tell whether all trainings of a variant ended since it knew the answers."""
        rows = self.of_variant(variant, T)
        return bool(rows) and all(row["ended_early"] for row in rows)

    def unlearned(self, *variants: str, T: int, growth: int = 1) -> bool:
        """Tell whether all variants have intervals, and none of these lies above the accuracy of a guess."""
        for variant in variants:
            found = self.accuracy(variant, T, growth)
            if found is None or found.low is None or found.low > self.of_variant(variant, T)[0]["chance"]:
                return False
        return True

    def stuck(self, variant: str, T: int, growth: int = 1) -> str:
        """Say why a low accuracy of a variant says nothing of what it can hold; empty if it does.

        A network that has not left chance may be hard to train, and no worse: if its best seed solves the
        task, or the loss of a seed is still that of a guess.
        """
        found, rows = self.accuracy(variant, T, growth), self.of_variant(variant, T)
        if found is None or found.low is None or found.low > rows[0]["chance"]:
            return ""
        at_T = [(row["accuracies"].get(str(T)), row.get("losses", {}).get(str(T)), row) for row in rows]
        best = max((accuracy for accuracy, _, _ in at_T if accuracy is not None), default=0.0)
        if best > SUCCEEDS:
            return f"a seed of {variant} solves it, others stay at chance: {OPTIMISATION}"
        guessing = sum(
            loss is not None and loss > GUESSING * row.get("guess_loss", math.inf) for _, loss, row in at_T
        )
        if guessing:
            return f"{guessing} of {len(rows)} seeds of {variant} have the loss of a guess: {OPTIMISATION}"
        return ""

    def cut(self, variant: str, T: int) -> str:
        """Say that trainings of a variant ended sooner than in the paper, unlearned; empty if none did."""
        rows = self.of_variant(variant, T)
        short = [row for row in rows if not row["ended_early"] and row["updates"] < self.paper_updates]
        if not short:
            return ""
        some = f"{len(short)} of {len(rows)} trainings of {variant}"
        return f"{some} end before the paper's {self.paper_updates:,} updates"

    def undecided(self, *variants: str, T: int, growth: int = 1) -> tuple[Agreement, str] | None:
        """Say why differences between variants are chance; None if they may be more.

        All of their trainings ended early, or none has learned anything.
        """
        if growth == 1 and all(self.knows(variant, T) for variant in variants):
            return Agreement.CANNOT_TELL, BOTH_KNOW
        if self.unlearned(*variants, T=T, growth=growth):
            return Agreement.CANNOT_TELL, NEITHER_KNOWS
        return None

    def note(self, *variants: str, T: int) -> str:
        """Say at which rate variants were trained, and for how long."""
        parts = []
        for variant in variants:
            rows = self.of_variant(variant, T)
            if rows:
                updates = [row["updates"] for row in rows]
                span = f"{min(updates):,}" + (f" to {max(updates):,}" if len(set(updates)) > 1 else "")
                ended = sum(row["ended_early"] for row in rows)
                early = f", {ended} of {len(rows)} ended at 99 %" if ended else ""
                parts.append(f"{variant}: rate {rows[0]['rate']:g}, {span} updates{early}")
        shares = {row.get("repeated_share") for variant in variants for row in self.of_variant(variant, T)}
        parts += [
            f"{share:.1%} of the held-out windows of 32 bytes are in the text learned"
            for share in shares
            if share is not None
        ]
        return "; ".join(parts)

    def ordered(self, better: str, worse: str, judged: Judged, T: int, growth: int = 1) -> Judged:
        """Let an order of accuracies count only if the lower one is not stuck at chance.

        Against the paper it counts only if the lower one was trained for as long as in the paper.
        """
        lower = {Agreement.AGREES: worse, Agreement.DISAGREES: better}.get(judged[0])
        why = self.stuck(lower, T, growth) if lower else ""
        if judged[0] is Agreement.DISAGREES:
            why = why or self.cut(better, T)
        return (Agreement.CANNOT_TELL, why) if why else judged

    def higher(
        self,
        better: str,
        worse: str,
        T: int,
        *,
        growth: int = 1,
        printed: str = "higher",
        decides: bool = True,
        note: str = "",
    ) -> Finding:
        """Judge the claim that one variant is more accurate than another, trained at T."""
        ours = {name: self.accuracy(name, T, growth) for name in (better, worse)}
        judged = self.undecided(better, worse, T=T, growth=growth) or self.ordered(
            better, worse, agree_on_order(ours[better], ours[worse], self.why(better, worse, T=T)), T, growth
        )
        where = f"T = {T}" if growth == 1 else f"at {growth * T}, trained at {T}"
        notes = "; ".join(filter(None, (note, self.note(better, worse, T=T))))
        return Finding(f"accuracy, {better} against {worse}, {where}", printed, ours, judged, decides, notes)

    def as_accurate(self, one: str, other: str, T: int, margin: float, printed: str) -> Finding:
        """Judge the claim that two variants are equally accurate, from the ratio of their accuracies."""
        ours = {name: self.accuracy(name, T) for name in (one, other)}
        first, second = ours.values()
        ratio = None
        positive = all(each is not None and (each.bounds or (each.value,))[0] > 0 for each in (first, second))
        why = self.why(one, other, T=T) or "an interval reaches down to 0"
        if first is not None and second is not None and positive:
            ratio = first.over(second)
        judged = agree_on_equality(ratio, margin, why)
        if self.unlearned(one, other, T=T):
            judged = Agreement.CANNOT_TELL, NEITHER_KNOWS
        elif judged[0] is Agreement.DISAGREES and first is not None and second is not None:
            lower = one if first.value < second.value else other
            if why := self.stuck(one, T) or self.stuck(other, T) or self.cut(lower, T):
                judged = Agreement.CANNOT_TELL, why
        return Finding(
            f"accuracy, {one} against {other}, T = {T}",
            printed,
            {**ours, "ratio": ratio},
            judged,
            note=self.note(one, other, T=T),
        )
