"""Relations: simple ways in which a wrong object may follow from the exact ones, each tested on the numbers.

A relation is claimed only if undoing it leaves an error within the tolerance, or a hundredth of the error
before, and never more than a tenth of it. A failure near the tolerance therefore matches none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssmperf.diagnosis.profile import Profile, chosen, trimmed
from ssmperf.operands.contract import TIME
from ssmperf.operands.dtypes import widen

LESS, FAR_LESS = 10.0, 100.0
NEAR = 1e-3  # relative distance within which a factor has a name
FEWEST = 16  # elements that show a relation; fewer are looked at together with the right ones


@dataclass(frozen=True, slots=True)
class Match:
    """What explains an object's error.

    kind: name of the relation. text: it in words, as in "it is 2 × the exact one".
    error: relative error that is left when the relation is undone.
    whole: whether it holds for all of the object, and not only where the object is wrong.
    value: a constant factor, if it is one.
    """

    kind: str
    text: str
    error: float
    whole: bool = True
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One wrong object, as relations see it.

    name: as results are named; label: as words name it.
    others: exact values of other objects, and operands, by label.
    operand: of a gradient, the operand itself.
    sizes: sizes of the case by letter, for the names of factors.
    """

    name: str
    label: str
    actual: Tensor
    exact: Tensor
    scale: float
    tolerance: float
    profile: Profile
    others: Mapping[str, Tensor]
    operand: Tensor | None
    sizes: Mapping[str, int]


def explains(before: float, after: float, tolerance: float) -> bool:
    """Tell whether an error has gone that was there before."""
    return after <= before / LESS and (after <= tolerance or after <= before / FAR_LESS)


def relation(subject: Subject) -> Match | None:
    """Find the first relation that explains an object's error; None if there is none."""
    if subject.profile.not_finite or not subject.exact.numel():
        return None
    for found in _candidates(subject):
        if found is not None:
            return found
    return None


def _candidates(subject: Subject) -> Iterator[Match | None]:
    shape, around = subject.exact.shape, subject.profile.box()
    some = chosen(subject.actual, trimmed(around, subject.profile.worst))
    yield _zero(some, whole=_covers(around, shape))
    if math.prod(map(len, around)) < FEWEST:
        around = [torch.arange(size) for size in shape]
    whole, box = _covers(around, shape), trimmed(around, subject.profile.worst)
    actual, exact = (_wide(chosen(each, box)) for each in (subject.actual, subject.exact))
    yield _factor(subject, actual, exact, whole=whole)
    before = _distance(actual, exact, subject.scale)
    for label, other in subject.others.items():
        if other.shape != subject.exact.shape or other.is_complex() != subject.exact.is_complex():
            continue
        after = _distance(actual, _wide(chosen(other, box)), subject.scale)
        if explains(before, after, subject.tolerance):
            yield Match("another", f"it is the {label}", after, whole)
    yield _gradient_of_gate(subject, box, actual, exact, before, whole=whole)
    if exact.is_complex():
        after = _distance(actual.conj(), exact, subject.scale)
        if explains(before, after, subject.tolerance):
            yield Match("conjugate", "it is the complex conjugate of the exact one", after, whole)
    yield from _rearrangements(subject)
    yield _first_item(subject)


def _covers(indices: Sequence[Tensor], shape: Sequence[int]) -> bool:
    return all(len(index) == size for index, size in zip(indices, shape, strict=True))


def _zero(actual: Tensor, *, whole: bool) -> Match | None:
    if bool(actual.any()):
        return None
    return Match("zeros", "it is 0", 0.0, whole)


def _factor(subject: Subject, actual: Tensor, exact: Tensor, *, whole: bool) -> Match | None:
    size = float((exact.conj() * exact).real.sum())
    if not size or exact.numel() < FEWEST // 4:
        return None
    factor = float((exact.conj() * actual).real.sum()) / size
    before = _distance(actual, exact, subject.scale)
    after = _distance(actual, factor * exact, subject.scale * max(1.0, abs(factor)))
    if not (factor and explains(before, after, subject.tolerance) and after <= abs(factor) / LESS):
        return None
    if abs(factor + 1) <= NEAR:
        return Match("sign", "its sign is flipped", after, whole, factor)
    flipped = ", with its sign flipped" if factor < 0 else ""
    text = f"it is {_named(abs(factor), subject.sizes)} × the exact one{flipped}"
    return Match("factor", text, after, whole, factor)


def _named(factor: float, sizes: Mapping[str, int]) -> str:
    """Write a factor, with the sizes of the case from which it may come."""
    for plain in (2.0, 0.5, 3.0, 4.0, 0.25):
        if abs(factor / plain - 1) <= NEAR and plain in (2.0, 0.5):
            return f"{plain:g}"
    forms = [
        (text.format(letter), value)
        for letter, n in sizes.items()
        if n > 1
        for text, value in (("1/√{}", n**-0.5), ("√{}", n**0.5), ("1/{}", 1 / n), ("{}", float(n)))
    ]
    named = [text for text, value in forms if abs(factor / value - 1) <= NEAR]
    return f"{factor:.4g}" + (f" ({' or '.join(named[:2])})" if named else "")


def _gradient_of_gate(
    subject: Subject, box: Sequence[Tensor], actual: Tensor, exact: Tensor, before: float, *, whole: bool
) -> Match | None:
    """Test whether the factor is missing that a gate's logarithm has by the chain rule."""
    operand = subject.operand
    if operand is None or not subject.name.startswith("log_") or operand.shape != subject.exact.shape:
        return None
    after = _distance(actual * torch.exp(_wide(chosen(operand, box))), exact, subject.scale)
    if not explains(before, after, subject.tolerance):
        return None
    return Match("gate", f"it is that of exp({subject.name}), not of {subject.name}", after, whole)


def _rearrangements(subject: Subject) -> Iterator[Match | None]:
    """Test exchanged axes, and time reversed or late by a step."""
    shape, names = subject.exact.shape, subject.profile.axes
    pairs = [(i, j) for j in range(len(shape)) for i in range(j) if shape[i] == shape[j] > 1]
    for i, j in pairs:
        actual, exact = _parts(subject, whole=(i, j))
        found = _moved(subject, actual, exact, actual.transpose(i, j), exact)
        if found is not None:
            text = f"its axes {i} and {j} ({names[i]} and {names[j]}) are exchanged"
            yield Match("transposed", text, found)
    if not subject.profile.time or shape[TIME] < 4:
        return
    actual, exact = _parts(subject, whole=(TIME,))
    moved = {
        "reversed": (actual.flip(TIME), exact, "it runs backwards in time"),
        "late": (actual[:, 1:], exact[:, :-1], "it is one step late"),
        "early": (actual[:, :-1], exact[:, 1:], "it is one step early"),
    }
    for kind, (one, other, text) in moved.items():
        found = _moved(subject, actual, exact, one, other)
        if found is not None:
            yield Match(kind, text, found)


def _moved(subject: Subject, actual: Tensor, exact: Tensor, one: Tensor, other: Tensor) -> float | None:
    before = _distance(actual, exact, subject.scale)
    after = _distance(one, other, subject.scale)
    return after if explains(before, after, subject.tolerance) else None


def _first_item(subject: Subject) -> Match | None:
    """Test whether all batch items have the same values, though the exact ones differ."""
    profile, count = subject.profile, subject.exact.shape[0]
    if not profile.axes or profile.axes[0] != "batch" or count < 2:
        return None
    actual, exact = _parts(subject, whole=(0,))
    spread = _distance(actual, actual[:1].expand_as(actual), subject.scale)
    wanted = _distance(exact, exact[:1].expand_as(exact), subject.scale)
    if not explains(wanted, spread, subject.tolerance):
        return None
    first = _distance(actual[:1], exact[:1], subject.scale)
    right = first <= subject.tolerance
    text = f"all {count} batch items have the answer of the first" if right else "all batch items are equal"
    return Match("broadcast", text, spread)


def _parts(subject: Subject, *, whole: Sequence[int]) -> tuple[Tensor, Tensor]:
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
