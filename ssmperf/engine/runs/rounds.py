"""Rounds: the records of a case that was measured several times by fresh processes, and their fold.

One process does not show the differences between two: where memory lies, in which of two states a clock
stays. So the unit of a comparison is a round, with one number per case.

Records are data that anybody may have written: what contradicts itself here is not believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ssmperf.engine.cases.reading import are_floats
from ssmperf.engine.cases.record import ONLY_WHEN_OK, SPENT, Record, Status
from ssmperf.engine.measure import statistics
from ssmperf.engine.plan.run_options import MOST_ROUNDS

ROUND = "round"  # the number of a record's round, in its numbers
LATENCY = "latency_s"
NOTE = "contradiction"  # why a record cannot be believed, in its numbers
# The least and the most that any machine may have measured, by the ending of a field: no call is over within
# ten nanoseconds, and nobody has waited thirty years for one.
POSSIBLE = {"_s": (1e-8, 1e9), "_bytes": (1.0, 2.0**63)}
MOST_PER_S = {"least_bytes": 1e15, "least_flops": 1e18}  # some hundred times what a device reaches
ROUNDING = 0.01  # by how much a number may be off from what it is the median of, as a share
# Worst first. Where no round was wrong, one that says more about the backend comes first.
SEVERITY = (
    Status.WRONG,
    Status.NAN,
    Status.CRASH,
    Status.OOM,
    Status.TIMEOUT,
    Status.UNSUPPORTED,
    Status.OK,
)

Rounds = Mapping[str, tuple[Record, ...]]  # the records of each case by its id, in the order of their rounds


def rounds_of(meta: Mapping[str, Any]) -> int:
    """Read the number of rounds of a run from its `run.json`."""
    rounds = meta.get("rounds")
    return rounds if isinstance(rounds, int) and 1 <= rounds <= MOST_ROUNDS else 1


def round_of(record: Record) -> int:
    """Get the number of a record's round; 0 in a run without rounds."""
    number = record.numbers.get(ROUND)
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


def by_case(records: Iterable[Record]) -> dict[str, tuple[Record, ...]]:
    """Group records by the id of their case. If a round has two records, the later one is kept."""
    found: dict[str, dict[int, Record]] = {}
    for record in records:
        id_, number = record.case.id, round_of(record)
        if number == 0 and len(found.get(id_, {})) <= 1:
            found.pop(id_, None)  # a case that was run again stands where its last record does
        found.setdefault(id_, {})[number] = record
    return {id_: tuple(rounds[number] for number in sorted(rounds)) for id_, rounds in found.items()}


def values_of(rounds: Sequence[Record], field: str) -> list[float]:
    """List a number of a case in each round that is ok, can be believed and has it as a positive number."""
    numbers = (record.numbers for record in rounds if believed(record, field).status is Status.OK)
    return [float(each[field]) for each in numbers if _positive(each.get(field))]


def fold(rounds: Sequence[Record], field: str | None) -> Record:
    """Make one record of a case's rounds.

    A round that is not ok makes the case so: the worst one stands for all. Otherwise the round with the
    middle value of `field` lends its numbers, and these are of all rounds: `field`, the median; its interval
    (`latency_low_s`, `latency_high_s`), where it has one; `rounds`, their number; `round_values`, the value
    of `field` in each; `doubts` and `busy` of any.

    field: by which the suite ranks its cases; None if it ranks nothing.
    """
    if len(rounds) == 1:
        return rounds[0]
    rounds = [believed(record, field) for record in rounds]
    worst = min(rounds, key=lambda record: SEVERITY.index(record.status))
    if worst.status is not Status.OK:
        reason = f"{worst.reason} (round {round_of(worst) + 1} of {len(rounds)})"
        return Record(worst.case, worst.status, reason, worst.env_id, _without_round(worst))
    values = values_of(rounds, field) if field else []
    if field is None or len(values) < len(rounds):
        numbers = {**_without_round(rounds[-1]), "rounds": len(rounds)}
        return Record(worst.case, Status.OK, None, worst.env_id, numbers)
    logs = sorted(math.log(value) for value in values)
    middle = math.exp((logs[(len(logs) - 1) // 2] + logs[len(logs) // 2]) / 2)
    lender = min(rounds, key=lambda record: abs(math.log(record.numbers[field] / middle)))
    summary = statistics.summarise(values)
    interval = dict(zip(interval_of(field), (summary.low, summary.high), strict=True))
    numbers = {
        **_without_round(lender),
        field: middle,
        **{name: value for name, value in interval.items() if name in lender.numbers},
        "rounds": len(rounds),
        "round_values": values,
    }
    for name in ("doubts", "busy"):
        if name in lender.numbers:
            numbers[name] = _of_any(rounds, name)
    return Record(lender.case, Status.OK, None, lender.env_id, numbers)


def interval_of(field: str) -> tuple[str, str]:
    """Name the ends of a field's interval: `latency_s` has `latency_low_s` and `latency_high_s`."""
    stem, _, unit = field.rpartition("_")
    return f"{stem}_low_{unit}", f"{stem}_high_{unit}"


def watched(records: Iterable[Record], meta: Mapping[str, Any]) -> Iterator[Record]:
    """Pass the records of a run on, with a note in those that it cannot have written.

    A run writes a second record of a round only if the first ran out of time and the case could go on.

    meta: the contents of its `run.json`.
    """
    known: dict[tuple[str, int], tuple[Record, str | None]] = {}
    count = meta.get("rounds")
    for record in records:
        key = record.case.id, round_of(record)
        earlier, why = known.get(key, (record, None))
        if earlier.status is not Status.TIMEOUT and earlier != record:
            why = "it has two records of one round, with different numbers"
        elif isinstance(count, int) and not 0 <= key[1] < max(count, 1):
            why = f"it has a record of round {key[1] + 1}, and its run has {count}"
        known[key] = record, why
        yield record if why is None else noted(record, why)


def noted(record: Record, why: str) -> Record:
    """Note in a record that it contradicts itself."""
    return replace(record, numbers={**record.numbers, NOTE: why})


def fault(record: Record, field: str | None, others: Mapping[str, Any] | None = None) -> str | None:
    """Say why a record cannot be believed; None if it can.

    It has such a note; or a number that no machine gives, or that lies outside of its own interval, or is not
    the median of its own samples.

    field: by which its suite ranks; the latency is looked at in any case.
    others: the numbers of another record of the case, which may name more work.
    """

    def find(numbers: Mapping[str, Any], name: str) -> str | None:
        return _impossible(numbers, name, others or {}) or _unlike_samples(numbers, name)

    return _first(record, field, find)


def believed(record: Record, field: str | None) -> Record:
    """Give a record as it may be ranked: `wrong` and without times if no machine can have measured it."""
    why = _first(record, field, _impossible)
    if why is None or record.status is not Status.OK:
        return record
    numbers = {
        name: value
        for name, value in record.numbers.items()
        if name == SPENT or not (name == field or name.endswith(ONLY_WHEN_OK))
    }
    return Record(record.case, Status.WRONG, why, record.env_id, {**numbers, NOTE: why})


def _first(
    record: Record, field: str | None, find: Callable[[Mapping[str, Any], str], str | None]
) -> str | None:
    """Take the note of a record, or else what is found first about its latency, and its field."""
    if note := record.numbers.get(NOTE):
        return str(note)
    fields = dict.fromkeys((LATENCY, field or LATENCY)) if record.status is Status.OK else ()
    return next(filter(None, (find(record.numbers, name) for name in fields)), None)


def _impossible(
    numbers: Mapping[str, Any], field: str, others: Mapping[str, Any] = MappingProxyType({})
) -> str | None:
    """Say why no machine can have measured a number with its interval; None if one can. See `fault`."""
    value = numbers.get(field)
    limits = None if field.endswith("_per_s") else next(filter(field.endswith, POSSIBLE), None)
    if limits is None or not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    if not math.isfinite(value):
        return f"its {field} is no finite number"
    least, most = POSSIBLE[limits]
    if value == 0 and limits == "_bytes":  # what a call reuses is not counted
        return None
    if not least <= value <= most:
        return f"its {field} of {value:.4g} is {'less' if value < least else 'more'} than any machine gives"
    for name, rate in MOST_PER_S.items() if field == LATENCY else ():
        known = [float(each[name]) for each in (numbers, others) if _is_number(each.get(name))]
        if known and value * rate < max(known):
            return f"its {field} of {value:.4g} is less than any machine needs for {max(known):.4g} {name}"
    ends = [numbers.get(name) for name in interval_of(field)]
    if ends != [None, None] and not _holds(ends, value):
        return f"its interval from {ends[0]} to {ends[1]} does not hold its {field} of {value:.4g}"
    return None


def _unlike_samples(numbers: Mapping[str, Any], field: str) -> str | None:
    """Say that a number is not the median of the rounds, or else the samples, beside it; None if it is."""
    value, rounds = numbers.get(field), numbers.get("round_values")
    name = "round_values" if isinstance(rounds, list) and len(rounds) > 1 else "samples_s"
    taken = numbers.get(name) if field == LATENCY or name != "samples_s" else None
    if not _is_number(value) or not isinstance(taken, list) or not taken:
        return None
    if not are_floats(taken) and not all(map(_is_number, taken)):
        return f"its {name} are no numbers"
    ordered = np.sort(np.asarray(taken, dtype=np.float64))
    middle = [float(ordered[place // 2]) for place in (len(ordered) - 1, len(ordered))]
    if ordered[0] < 0 or not _holds(middle, float(value or 0)):
        return f"its {field} of {value:.4g} is not the median of its {name}, {middle[0]:.4g}"
    return None


def _holds(ends: Sequence[Any], value: float) -> bool:
    """Tell whether two numbers are the ends of an interval that holds a value."""
    low, high = ends
    if not (_is_number(low) and _is_number(high)):
        return False
    return bool(0 < low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING) < math.inf)


def _without_round(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.numbers.items() if name != ROUND}


def _of_any(rounds: Sequence[Record], name: str) -> list[str]:
    """Join the texts of all rounds, each once."""
    texts = (each for record in rounds for each in _list(record.numbers.get(name)) if each)
    return list(dict.fromkeys(map(str, texts)))


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
