"""Relations: simple ways in which a wrong object may follow from the exact ones, each tested on the numbers.

A relation is claimed only if undoing it leaves an error within the tolerance, or a hundredth of the error
before, and never more than a tenth of it. A failure near the tolerance therefore matches none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from ssmperf.engine.diagnosis.profile import ErrorProfile, chosen, trimmed
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import widen

LESS, FAR_LESS = 10.0, 100.0
NEAR = 1e-3  # relative distance within which a factor has a name
LEAST_STEPS = 4  # of a sequence in which an order of time shows
FEWEST = 16  # elements that show a relation; fewer are looked at together with the right ones


@dataclass(frozen=True, slots=True)
class Match:
    """An explanation of an object's error.

    kind: name of the relation. text: its wording, as in "it is 2 × the exact one".
    error: relative error that is left when the relation is undone.
    value: a constant factor, if it is one.
    """

    kind: str
    text: str
    error: float
    value: float | None = None


@dataclass(frozen=True, slots=True)
class WrongObject:
    """One wrong object, as relations see it.

    name: key among the results; label: name in texts.
    others: exact values of other objects, and operands, by label.
    operand: of a gradient, the operand itself.
    sizes: sizes of the case by letter, for the names of factors.
    tried: tested relations, with the relative error that each leaves; tests add to it.
    """

    name: str
    label: str
    actual: Tensor
    exact: Tensor
    scale: float
    tolerance: float
    profile: ErrorProfile
    others: Mapping[str, Tensor]
    operand: Tensor | None
    sizes: Mapping[str, int]
    tried: list[tuple[str, float]] = field(default_factory=list)

    def test(self, text: str, before: float, after: float) -> bool:
        """Tell whether an explanation takes the error away, and note that it was tested."""
        self.tried.append((text, after))
        return explains(before, after, self.tolerance)


def explains(before: float, after: float, tolerance: float) -> bool:
    """Tell whether an error has gone that was there before."""
    return after <= before / LESS and (after <= tolerance or after <= before / FAR_LESS)


def relation(subject: WrongObject) -> Match | None:
    """Find the first relation that explains an object's error; None if there is none."""
    if subject.profile.not_finite or not subject.exact.numel():
        return None
    return next(_matches(subject), None)


def _matches(subject: WrongObject) -> Iterator[Match]:
    box = subject.profile.box()
    if not bool(chosen(subject.actual, trimmed(box, subject.profile.worst)).any()):
        yield Match("zeros", "it is 0", 0.0)
    everything = [torch.arange(size) for size in subject.exact.shape]
    at_all_steps = (
        [*box[:TIME], *everything[TIME : TIME + 1], *box[TIME + 1 :]] if subject.profile.time else box
    )
    box = next((part for part in (box, at_all_steps) if math.prod(map(len, part)) >= FEWEST), everything)
    box = trimmed(box, subject.profile.worst)
    actual, exact = (_wide(chosen(each, box)) for each in (subject.actual, subject.exact))
    yield from _factor(subject, actual, exact)
    before = _distance(actual, exact, subject.scale)
    for kind, text, changed, other in _same_places(subject, box, actual, exact):
        after = _distance(changed, other, subject.scale)
        if subject.test(text, before, after):
            yield Match(kind, text, after)
    yield from _rearrangements(subject)
    yield from _first_item(subject)


def _factor(subject: WrongObject, actual: Tensor, exact: Tensor) -> Iterator[Match]:
    """Fit a constant factor, and test whether it is all that is wrong."""
    size = float((exact.conj() * exact).real.sum())
    factor = float((exact.conj() * actual).real.sum()) / size if size else 0.0
    if not factor or exact.numel() < FEWEST // 4:
        return
    scale = subject.scale * max(1.0, abs(factor))
    before, after = (_distance(actual, other, scale) for other in (exact, factor * exact))
    if abs(factor + 1) <= NEAR:
        kind, text = "sign", "its sign is flipped"
    else:
        flipped = ", with its sign flipped" if factor < 0 else ""
        kind, text = "factor", f"it is {_named(abs(factor), subject.sizes)} × the exact one{flipped}"
    if subject.test(text, before, after) and after <= abs(factor) / LESS:
        yield Match(kind, text, after, factor)


def _named(factor: float, sizes: Mapping[str, int]) -> str:
    """Write a factor, with the sizes of the case from which it may come."""
    for plain in (2.0, 0.5):
        if abs(factor / plain - 1) <= NEAR:
            return f"{plain:g}"
    if abs(factor - 1) <= NEAR:  # four digits would show it badly
        return f"(1 {'−' if factor < 1 else '+'} {abs(factor - 1):.2g})"
    forms = [
        (text.format(letter), value)
        for letter, n in sizes.items()
        if n > 1
        for text, value in (("1/√{}", n**-0.5), ("√{}", n**0.5), ("1/{}", 1 / n), ("{}", float(n)))
    ]
    named = [text for text, value in forms if abs(factor / value - 1) <= NEAR]
    return f"{factor:.4g}" + (f" ({' or '.join(named[:2])})" if named else "")


def _same_places(
    subject: WrongObject, box: Sequence[Tensor], actual: Tensor, exact: Tensor
) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """List the tensors that are equal if a relation holds that moves no element: kind, words, and both."""
    for label, other in subject.others.items():
        if other.shape == subject.exact.shape and other.is_complex() == subject.exact.is_complex():
            yield "another", f"it is the {label}", actual, _wide(chosen(other, box))
    operand = subject.operand
    if operand is not None and subject.name.startswith("log_") and operand.shape == subject.exact.shape:
        # the factor is missing that the logarithm has by the chain rule
        text = f"it is that of exp({subject.name}), not of {subject.name}"
        yield "gate", text, actual * torch.exp(_wide(chosen(operand, box))), exact
    if exact.is_complex():
        yield "conjugate", "it is the complex conjugate of the exact one", actual.conj(), exact


def _rearrangements(subject: WrongObject) -> Iterator[Match]:
    """Test exchanged axes, and time reversed or late by a step."""
    shape, names = subject.exact.shape, subject.profile.axes
    for i, j in combinations(range(len(shape)), 2):
        if not shape[i] == shape[j] > 1:
            continue
        actual, exact = _parts(subject, whole=(i, j))
        text = f"its axes {i} and {j} ({names[i]} and {names[j]}) are exchanged"
        yield from _moved(subject, "transposed", text, (actual, exact), (actual.transpose(i, j), exact))
    if subject.profile.time and shape[TIME] >= LEAST_STEPS:
        actual, exact = pair = _parts(subject, whole=(TIME,))
        yield from _moved(subject, "reversed", "it runs backwards in time", pair, (actual.flip(TIME), exact))
        yield from _moved(subject, "late", "it is one step late", pair, (actual[:, 1:], exact[:, :-1]))
        yield from _moved(subject, "early", "it is one step early", pair, (actual[:, :-1], exact[:, 1:]))


def _moved(
    subject: WrongObject, kind: str, text: str, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]
) -> Iterator[Match]:
    errors = [_distance(*pair, subject.scale) for pair in (before, after)]
    if subject.test(text, *errors):
        yield Match(kind, text, errors[1])


def _first_item(subject: WrongObject) -> Iterator[Match]:
    """Test whether all batch items have the same values, though the exact ones differ."""
    profile = subject.profile
    if profile.axes[:1] != ("batch",) or subject.exact.shape[0] < 2:
        return
    actual, exact = _parts(subject, whole=(0,))
    right = _distance(actual[:1], exact[:1], subject.scale) <= subject.tolerance
    text = "all batch items have the answer of the first" if right else "all batch items are equal"
    spread, wanted = (_distance(each, each[:1].expand_as(each), subject.scale) for each in (actual, exact))
    if subject.test(text, wanted, spread):
        yield Match("broadcast", text, spread)


def _parts(subject: WrongObject, *, whole: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Take a part of the object and of its exact value that has all of some axes."""
    everything = [torch.arange(size) for size in subject.exact.shape]
    kept = trimmed(everything, subject.profile.worst, whole=whole)
    actual, exact = (_wide(chosen(each, kept)) for each in (subject.actual, subject.exact))
    return actual, exact


def _distance(one: Tensor, other: Tensor, scale: float) -> float:
    if not one.numel():
        return 0.0
    found = float((one - other).abs().max()) / scale
    return found if math.isfinite(found) else math.inf


def _wide(tensor: Tensor) -> Tensor:
    wide: Tensor = widen(tensor.detach(), torch.float64)
    return wide
