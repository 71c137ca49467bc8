"""The rule by which a measurement agrees with a paper: orders and numbers need disjoint 95 % intervals.

Pure functions of estimates. Each gives an agreement and the reason for it in a sentence.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from ssmperf.engine.cases.record import Record

CONFIDENCE = 0.95
LARGEST_WHOLE = 1e15  # beyond it, a count has an exponent
SCALES = {  # of a unit, the largest first
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
NARROW = 0.1  # most that the half of an interval may be of its number, for the number to be reached
PRINTED = re.compile(r"[-+]?\d+(?:\.(\d+))?")


class Agreement(enum.StrEnum):
    """The verdict of a measurement on a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    CANNOT_TELL = "cannot tell"
    WITHDRAWN = "withdrawn"  # what it rests on was measured under another rule, and is to be measured again


Judged = tuple[Agreement, str]  # with the reason


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured number with its 95 % interval. A count is exact: its interval is the number itself.

    low, high: None where there is no interval, such as after a single seed.
    n: how many seeds, samples or rounds it comes from; None for a count.

    Raises:
        ValueError: the number is not finite, or lies outside of its interval.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""
    n: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"an estimate is finite, got {self.value}")
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two ends")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} lies outside of its interval, {self.low} to {self.high}")

    @classmethod
    def exact(cls, value: float, unit: str = "") -> Estimate:
        """Make the estimate of a number that was counted."""
        return cls(value, value, value, unit)

    @classmethod
    def of_record(cls, record: Record, name: str = "latency_s", unit: str = "s") -> Estimate | None:
        """Read a number of a record with its interval, in the fields such as `latency_low_s`.

        None for a record that is not ok, or has no such number.
        """
        stem, _, end = name.rpartition("_")
        value, low, high = (
            record.numbers.get(each) for each in (name, f"{stem}_low_{end}", f"{stem}_high_{end}")
        )
        if str(record.status) != "ok" or not _is_number(value):
            return None
        samples = record.numbers.get("rounds") or record.numbers.get("samples")
        n = samples if isinstance(samples, int) else None
        if not (_is_number(low) and _is_number(high)):
            return cls(float(value), unit=unit, n=n)
        return cls(float(value), min(float(low), float(value)), max(float(high), float(value)), unit, n)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The ends of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def over(self, other: Estimate) -> Estimate:
        """Divide two positive estimates. The interval holds every quotient of numbers in the two intervals.

        Raises:
            ValueError: a number is not positive.
        """
        ends = [*(self.bounds or (self.value,)), *(other.bounds or (other.value,))]
        if min(ends) <= 0:
            raise ValueError("a quotient of estimates needs positive ones")
        value, n = self.value / other.value, _least(self.n, other.n)
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Estimate(value, unit="×", n=n)
        return Estimate(value, self.low / other.high, self.high / other.low, "×", n)

    def __str__(self) -> str:
        size, unit = _scale(self.value, self.unit)
        value = self.value / size
        exact = self.low == self.high == self.value
        whole = exact and value.is_integer() and abs(value) < LARGEST_WHOLE
        number = f"{value:,.0f}" if whole else f"{value:.5g}" if exact else f"{value:.4g}"
        number += f"{'' if unit in ('', '×') else ' '}{unit}"
        if self.bounds is None:
            return f"{number} (no interval)"
        low, high = (each / size for each in self.bounds)
        return number if exact else f"{number} [{low:.4g}, {high:.4g}]"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, which `from_json` reads."""
        return {"value": self.value, "low": self.low, "high": self.high, "unit": self.unit, "n": self.n}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Estimate | None:
        """Undo `to_json`; None for None.

        Raises:
            ValueError: it is no estimate.
        """
        if data is None:
            return None
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"no estimate: {data!r:.80}") from error


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a claim's result.

    what: the quantity compared.
    printed: the paper's number; empty where it has none, only the statement.
    ours: our numbers by name.
    judged: the agreement, and the reason for it.
    decides: whether it counts for the claim's verdict; else it is shown beside the others.
    """

    what: str
    printed: str
    ours: Mapping[str, Estimate | None]
    judged: Judged
    decides: bool = True
    note: str = ""

    @property
    def agreement(self) -> Agreement:
        return self.judged[0]

    @property
    def reason(self) -> str:
        return self.judged[1]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "what": self.what,
            "printed": self.printed,
            "ours": {name: None if each is None else each.to_json() for name, each in self.ours.items()},
            "agreement": str(self.agreement),
            "reason": self.reason,
            "decides": self.decides,
            "note": self.note,
        }


def agree_on_order(larger: Estimate | None, smaller: Estimate | None, why: str = "") -> Judged:
    """Judge the claim that one number is larger than another: by disjoint intervals, or not at all.

    why: the reason for a missing number, if there is one.
    """
    if (unknown := _unknown(why, larger, smaller)) is not None:
        return unknown
    (low, high), (other_low, other_high) = _bounds(larger), _bounds(smaller)
    if low > other_high:
        return Agreement.AGREES, "the same order, with disjoint intervals"
    if high < other_low:
        return Agreement.DISAGREES, "the opposite order, with disjoint intervals"
    return Agreement.CANNOT_TELL, "the intervals overlap"


def agree_on_number(printed: str, ours: Estimate | None, *, full_size: bool = True, why: str = "") -> Judged:
    """Judge the claim of a number, which stands for all numbers that round to it: 44.66 is 44.655 to 44.665.

    A wide interval holds nearly any number, so that one whose half is more than a tenth of our number
    cannot agree.

    full_size: whether we measured what the paper did, nothing scaled down.
    """
    found = PRINTED.fullmatch(printed.replace(",", "").strip())
    if found is None:
        raise ValueError(f"{printed!r} is no number")
    half = 0.5 * 10.0 ** -len(found[1] or "")
    value = float(found[0])
    slack = 1e-9 * max(abs(value), half)  # half of the last digit has no exact float
    if ours is not None and ours.low == ours.high:
        words = f"rounds to {printed}", f"does not round to {printed}"
    else:
        words = f"holds {printed}", f"does not hold {printed}"
    return _inside(value - half - slack, value + half + slack, ours, full_size, why, words)


def agree_on_range(
    low: float, high: float, ours: Estimate | None, *, full_size: bool = True, why: str = ""
) -> Judged:
    """Judge the claim that a number lies in a range, such as 20 to 40×."""
    words = f"reaches {low:g} to {high:g}", f"lies outside of {low:g} to {high:g}"
    return _inside(low, high, ours, full_size, why, words)


def agree_on_limit(ratio: Estimate | None, margin: float, why: str = "") -> Judged:
    """Judge the claim that one number is at most as large as another, from their ratio, but for a margin."""
    if (unknown := _unknown(why, ratio)) is not None:
        return unknown
    low, high = _bounds(ratio)
    if high <= 1 + margin:
        return Agreement.AGREES, f"at most {margin:.0%} more"
    if low > 1 + margin:
        return Agreement.DISAGREES, f"more than {margin:.0%} more"
    return Agreement.CANNOT_TELL, f"the interval holds {1 + margin:g}"


def agree_on_equality(ratio: Estimate | None, margin: float, why: str = "") -> Judged:
    """Judge the claim that two numbers are the same, from their ratio: within ± a margin, such as 0.1.

    The interval must lie inside the margin to agree, and outside of it to disagree.
    """
    if (unknown := _unknown(why, ratio)) is not None:
        return unknown
    low, high = _bounds(ratio)
    least, most = 1 / (1 + margin), 1 + margin
    if least <= low and high <= most:
        return Agreement.AGREES, f"the same within {margin:.0%}"
    if high < least or low > most:
        return Agreement.DISAGREES, f"they differ by more than {margin:.0%}"
    return Agreement.CANNOT_TELL, f"the interval is partly within {margin:.0%}"


def taken_together(findings: Iterable[Finding]) -> Judged:
    """Judge a claim by its deciding findings: all must agree; one that disagrees is enough to disagree."""
    deciding = [each.agreement for each in findings if each.decides]
    counts = ", ".join(
        f"{deciding.count(each)} {_verb(each, deciding.count(each))}"
        for each in Agreement
        if each in deciding
    )
    if Agreement.DISAGREES in deciding:
        return Agreement.DISAGREES, counts
    if not deciding or Agreement.CANNOT_TELL in deciding:
        return Agreement.CANNOT_TELL, counts or "nothing was measured"
    return Agreement.AGREES, counts


def over_seeds(values: Sequence[float], unit: str = "", *, share: bool = False) -> Estimate:
    """Estimate a mean over seeds, with Student's interval; one seed gives none.

    share: whether values lie between 0 and 1, to which the interval is then cut.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("an estimate over seeds needs finite values")
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, unit=unit, n=1)
    from scipy.special import stdtrit

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    return Estimate(mean, *((max(0.0, low), min(1.0, high)) if share else (low, high)), unit, n)


def _inside(
    low: float, high: float, ours: Estimate | None, full_size: bool, why: str, words: tuple[str, str]
) -> Judged:
    """Judge whether an estimate reaches into a range. words: for that, and for the opposite."""
    if (unknown := _unknown(why, ours)) is not None:
        return unknown
    if not full_size:
        return Agreement.CANNOT_TELL, "not measured at the paper's size and on its device"
    our_low, our_high = _bounds(ours)
    subject = "it" if our_low == our_high else "its interval"
    if our_low <= high and our_high >= low:
        if (our_high - our_low) / 2 > NARROW * abs(our_low + our_high) / 2:
            return Agreement.CANNOT_TELL, f"{subject} {words[0]}, but is wider than {NARROW:.0%} either way"
        return Agreement.AGREES, f"{subject} {words[0]}"
    return Agreement.DISAGREES, f"{subject} {words[1]}"


def _unknown(why: str, *estimates: Estimate | None) -> Judged | None:
    """Say that nothing can be told, if a number or an interval is missing."""
    if any(each is None for each in estimates):
        return Agreement.CANNOT_TELL, why or "not measured"
    if any(each is not None and each.bounds is None for each in estimates):
        return Agreement.CANNOT_TELL, "there is no interval: more seeds or samples are needed"
    return None


def _bounds(estimate: Estimate | None) -> tuple[float, float]:
    assert estimate is not None and estimate.bounds is not None
    return estimate.bounds


def _verb(agreement: Agreement, count: int) -> str:
    if agreement is Agreement.CANNOT_TELL:
        return "cannot be told"
    return str(agreement) if count == 1 else str(agreement).removesuffix("s")


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Choose the multiple of a unit in which a number is shown."""
    scales = SCALES.get(unit, ((1.0, unit),))
    return next((each for each in scales if abs(value) >= each[0]), scales[-1])


def _least(*counts: int | None) -> int | None:
    return min((each for each in counts if each is not None), default=None)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
