"""Judge learning, and the length up to which it holds: in numbers over seeds, and in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssmperf.suitekit import over_seeds

PARTLY, WHOLLY = 0.25, 0.9  # of the way from the best guess to 1, from which on something was learned, or all
HOLDS, LOST = 0.9, 0.5  # shares of the gain at T, from which on it holds, and below which it is lost


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """The mean of an accuracy over seeds and its 95 % interval; low and high are None for a single seed."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Level:
    """An accuracy at one length, beside what needs no learning: guessing, and the most frequent answer.

    factor: the length, as a multiple of that of the training.
    """

    factor: int
    accuracy: SeedSpread
    chance: float
    majority: float

    @property
    def base(self) -> float:
        return max(self.chance, self.majority)

    @property
    def gain(self) -> float:
        """The share of the way from the base to 1 that was covered."""
        return (self.accuracy.mean - self.base) / (1 - self.base) if self.base < 1 else 0.0


@dataclass(frozen=True, slots=True)
class LearningVerdict:
    """A judgement of a training. learned: "learned", "partly learned" or "not learned".

    holds_to: the largest of the tested multiples of the training's length up to which what was learned holds;
        None if nothing was learned.
    """

    learned: str
    holds_to: int | None
    text: str


def spread(values: Sequence[float]) -> SeedSpread:
    """Give the mean with Student's interval for independent normal values, cut to what accuracies can be."""
    found = over_seeds(values, share=True)
    return SeedSpread(found.value, found.low, found.high)


def judge(levels: Sequence[Level], untested: str = "") -> LearningVerdict:
    """Judge accuracies at the length of the training, which come first, and beyond it.

    Something was learned if a part of the way from the best guess to 1 was gone, and if the interval over
    seeds excludes that guess. It holds at a length where most of that part is left.

    untested: why further lengths were not tested.
    """
    first, *longer = levels
    at = first.accuracy
    sure = at.low is None or at.low > first.base
    if first.gain < PARTLY or not sure:
        by = "by chance" if first.chance >= first.majority else "by the most frequent answer"
        doubt = " (the interval over seeds does not exclude it)" if first.gain >= PARTLY else ""
        text = f"not learned: {at.mean:.2f} against {first.base:.2f} {by}{doubt}; nothing to extrapolate"
        return LearningVerdict("not learned", None, text)
    learned = "learned" if first.gain >= WHOLLY else "partly learned"
    text = f"{learned} ({at.mean:.2f})"
    if learned != "learned":
        text = f"{learned} ({at.mean:.2f} against {first.base:.2f} without)"
    holding = [first]
    for level in longer:
        if level.gain < HOLDS * first.gain:
            break
        holding.append(level)
    last, beyond = holding[-1], longer[len(holding) - 1 :]
    parts = [f"holds to {last.factor}T ({last.accuracy.mean:.2f})"] if longer and last is not first else []
    if beyond:
        fading = beyond[0]
        lost = next((level for level in beyond if level.gain < LOST * first.gain), None)
        if lost is not fading:
            parts.append(f"fades at {fading.factor}T ({fading.accuracy.mean:.2f})")
        if lost is not None:
            parts.append(f"lost at {lost.factor}T ({lost.accuracy.mean:.2f})")
    if untested:
        parts.append(f"not tested beyond {levels[-1].factor}T: {untested}")
    return LearningVerdict(learned, last.factor, "; ".join([text, ", ".join(parts)]) if parts else text)
