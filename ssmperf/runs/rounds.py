"""Rounds: the records of a case that was measured several times by fresh processes, and their fold.

One process does not show the differences between two: where memory lies, in which of two states a clock
stays. So the unit of a comparison is a round, with one number per case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.cases.record import Record, Status
from ssmperf.measure import statistics

ROUND = "round"  # the number of a record's round, in its numbers
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
    """List a number of a case in each round that is ok and has it as a positive number."""
    values = (record.numbers.get(field) for record in rounds if record.status is Status.OK)
    return [float(value) for value in values if value is not None and _positive(value)]


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
    stem, _, unit = field.rpartition("_")
    interval = {f"{stem}_{end}_{unit}": getattr(summary, end) for end in ("low", "high")}
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


def _without_round(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.numbers.items() if name != ROUND}


def _of_any(rounds: Sequence[Record], name: str) -> list[str]:
    """Join the texts of all rounds, each once."""
    texts = (each for record in rounds for each in _list(record.numbers.get(name)) if each)
    return list(dict.fromkeys(map(str, texts)))


def _positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
