"""Standings: whether the backend of a record competes, stands beside the others, or is kept out, and why.

"Fastest" is a claim about a backend, not about a record: a kernel that is wrong in backward is no fast kernel
in forward. These are pure functions of a run's records; what a backend declares is read from its records.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.envelope import BROKEN, Envelope, envelope_of, value_of
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.runs import rounds

if TYPE_CHECKING:
    from ssmperf.engine.runs.store import Run

COMPETES, BESIDE = "competes", "beside"
MOST_TIED = 1.25  # times the least value: what shares its place is not above it
MOST_COPIES = 4  # of operands and results, which read and write them once each
ADDED = "added_s"  # the time of prepare and finish, in a record whose latency has it
PARTS = ("prepare_s", "finish_s")
_TIMES = (
    *("latency_s", "latency_low_s", "latency_high_s", "quartile_low_s", "quartile_high_s"),
    *("round_values", "samples_s"),
)
_RATES = ("tokens_per_s", "bandwidth_bytes_per_s", "copy_fraction", "limit_fraction")
INCORRECT = (Status.WRONG, Status.NAN)
MOST_OF_LIMIT = 1.05  # ceilings are measured, within a few per cent
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True, slots=True)
class Standing:
    """Standing of a record's backend in the comparison to which the record belongs.

    name: "competes"; "beside", for a backend that is never first, since it is approximate by declaration,
        computes another function, was not judged, is beyond its envelope, or has a time beyond the machine's
        limit; or the status that keeps it out. That is the record's own status, or "wrong" or "nan" if
        another record shows the backend to be so.
    mark: a few words to show with the backend's name, such as "bound 0.999" or "wrong in backward"; empty if
        there is nothing to add to the record's status.
    reason: the reason in full. A backend that competes has none, or `note`.
    note: the part of the reason that is about the record's time: that the time of `prepare` and `finish` is
        added to it, or that the machine cannot be so fast; else empty.
    """

    name: str
    mark: str = ""
    reason: str | None = None
    note: str = ""


def standings(run: Run) -> list[Standing]:
    """Give the standing of each record's backend, in the order of the run's records.

    In a suite that ranks its cases, a backend is kept out by:

    - a wrong or nan record with the same operands, of any pass and any suite;
    - a wrong or nan record of the same subject, dtype and device, at any shape, in a suite that ranks
      nothing, such as correctness: it asks whether backends are right. A suite that gives envelopes asks up
      to where: beyond its envelope, a backend stands beside the others;
    - the record's own status, which concerns that record alone if it is neither wrong nor nan.

    Runs are judged one by one, and environments within a run apart.
    """
    ranked, explored = rank_fields(run.meta), envelope_fields(run.meta)
    records = believed(run)
    at_operands: dict[Hashable, list[Record]] = {}
    at_subject: dict[Hashable, list[Record]] = {}
    for record in records:
        if record.status in INCORRECT:
            at_operands.setdefault(_operands(run, record), []).append(record)
            if record.case.suite not in ranked and record.case.suite not in explored:
                at_subject.setdefault(_subject(run, record), []).append(record)
    envelopes = Envelopes(run, explored)
    return [
        _standing(
            record,
            [*at_operands.get(_operands(run, record), ()), *at_subject.get(_subject(run, record), ())]
            if record.case.suite in ranked
            else (),
            envelopes.beyond(record) if record.case.suite in ranked else None,
        )
        for record in records
    ]


def believed(run: Run) -> list[Record]:
    """List a run's records as they may be ranked: `wrong` where no machine can have measured the number."""
    ranks = rank_fields(run.meta)
    return [rounds.believed(record, ranks.get(record.case.suite)) for record in run.records]


class Envelopes:
    """The envelopes of a run's backends, by the suites that give some.

    An envelope is that of a backend for a model (or a bare recurrence), dtype, device and environment. What
    is right on the same source of operands at the same or a greater length is inside, whatever others say.
    """

    def __init__(self, run: Run, fields: Mapping[str, tuple[str, ...]]) -> None:
        self._run, self._fields = run, fields
        self._records: dict[Hashable, list[Record]] = {}
        for record in run.records:
            if record.case.suite in fields:
                self._records.setdefault(self._key(record, record.case.suite), []).append(record)
        self._found: dict[Hashable, Envelope] = {}

    def beyond(self, record: Record) -> tuple[str, str] | None:
        """Say that a record's case is beyond an envelope of its backend, in a few words and in full."""
        for suite, fields in self._fields.items():
            key = self._key(record, suite)
            tried = self._records.get(key)
            if not tried or _seen_right(record, tried):
                continue
            if key not in self._found:
                self._found[key] = envelope_of(map(_status_and_numbers, tried), fields)
            envelope = self._found[key]
            values = {name: _value(record, name, tried) for name in fields}
            name = envelope.exceeded(values)
            if name is not None:
                mark = f"beyond its {name.replace('_', ' ')}"
                return (
                    mark,
                    f"{suite}: {envelope} in {record.case.dtype}; here {_written(name, values[name])}",
                )
        return None

    def _key(self, record: Record, suite: str) -> Hashable:
        case = record.case
        place = (environment_of(self._run, record), case.device, case.dtype)
        return (suite, place, case.recurrence, case.model, case.backend)


def first_places(values: Sequence[tuple[float, float | None, float | None]]) -> list[bool]:
    """Tell which of several values share the first place: near the least, with an interval that overlaps.

    values: each with the ends of its interval; None for an end that is not known, which is then the value.
    """
    if not values:
        return []
    least, _, end = min(values, key=lambda each: each[0])
    reach = least if end is None else max(least, end)
    most = MOST_TIED * least
    lows = (value if low is None else min(value, low) for value, low, _ in values)
    return [value[0] <= most and low <= reach for value, low in zip(values, lows, strict=True)]


def with_native_parts(record: Record) -> Record:
    """Add the time of `prepare` and `finish` to a record's times if it exceeds that of four copies.

    `added_s` then is what was added, and rates are those of the longer time. A record that has it is returned
    as it is, and so is one that was timed end to end, whose times contain both parts, and one whose time no
    machine can have measured, which must not become a likely one.
    """
    numbers = record.numbers
    added, latency = added_s(record), _positive(numbers.get("latency_s"))
    if ADDED in numbers or not added or latency is None or rounds.believed(record, None) is not record:
        return record
    share = latency / (latency + added)
    changed: dict[str, Any] = {ADDED: added}
    for name in _TIMES:
        if name in numbers:
            changed[name] = _plus(numbers[name], added)
    for name in _RATES:
        if (rate := _positive(numbers.get(name))) is not None:
            changed[name] = rate * share
    return replace(record, numbers={**numbers, **changed})


def added_s(record: Record) -> float:
    """Give the time of `prepare` and `finish` that counts as a part of the call's: all of it, or 0.

    Without the time of a copy there is nothing that it could be small against, and all of it counts.
    """
    if record.status is not Status.OK or record.case.timing != "native":
        return 0.0
    parts = math.fsum(_positive(record.numbers.get(name)) or 0.0 for name in PARTS)
    return parts if parts > MOST_COPIES * (copy_s(record) or 0.0) else 0.0


def copy_s(record: Record) -> float | None:
    """Give the time of a copy of the operands and results at the measured bandwidth; None if it is unknown.

    `copy_fraction` is the share of that bandwidth at which the call moves its least bytes. These are the
    operands and results once; a copy reads and writes them.
    """
    fraction, latency = (_positive(record.numbers.get(name)) for name in ("copy_fraction", "latency_s"))
    return None if fraction is None or latency is None else 2 * fraction * latency


def named_parts(record: Record) -> str:
    """Name those of `prepare` and `finish` that matter in their sum."""
    times = {name.removesuffix("_s"): _positive(record.numbers.get(name)) or 0.0 for name in PARTS}
    total = math.fsum(times.values())
    return " and ".join(name for name, seconds in times.items() if 10 * seconds >= total > 0)


def rank_fields(meta: Mapping[str, Any]) -> dict[str, str]:
    """Name the field by which each suite ranks its cases, if it ranks any.

    An installed suite says so itself, whatever a `run.json` says, which anybody may have written.
    """
    fields = declared_ranks(meta)
    for name, suite in registry.suites().items():
        fields.pop(name, None)
        if suite.section.rank is not None:
            fields[name] = suite.section.rank
    return fields


def declared_ranks(meta: Mapping[str, Any]) -> dict[str, str]:
    """Read from a `run.json` by which field each suite of the run ranked its cases, if it ranked any."""
    suites = meta.get("suites")
    return {
        str(name): section["rank"]
        for name, section in (suites.items() if isinstance(suites, Mapping) else ())
        if isinstance(section, Mapping) and isinstance(section.get("rank"), str)
    }


def envelope_fields(meta: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Name the fields in which each suite gives envelopes, if it gives any: see `rank_fields`."""
    suites = meta.get("suites")
    declared = {
        str(name): section.get("envelope")
        for name, section in (suites.items() if isinstance(suites, Mapping) else ())
        if isinstance(section, Mapping)
    }
    declared |= {name: suite.section.envelope for name, suite in registry.suites().items()}
    return {
        name: tuple(map(str, fields))
        for name, fields in declared.items()
        if isinstance(fields, list | tuple) and fields
    }


def environment_of(run: Run, record: Record) -> str | None:
    """Get the id of the first environment that compares with a record's.

    A case that never ran belongs to the run's only place.
    """
    if len(run.environments) < 2:
        return record.env_id or next(iter(run.environments), None)
    if record.env_id is None:
        places = {*run.places.values()}
        return places.pop() if len(places) == 1 else None
    return run.places.get(record.env_id, record.env_id)


def _operands(run: Run, record: Record) -> Hashable:
    return (environment_of(run, record), record.case.backend, record.case.operand_key)


def _subject(run: Run, record: Record) -> Hashable:
    case = record.case
    subject = (case.recurrence, case.model, case.operand_source)
    return (environment_of(run, record), case.backend, subject, case.dtype, case.device)


def _seen_right(record: Record, tried: Iterable[Record]) -> bool:
    """Tell whether cases with a record's source of operands are right up to its length."""
    length, source = record.case.shape["T"], record.case.operand_source
    same = [other for other in tried if other.case.operand_source == source]
    broken = any(other.status in BROKEN and other.case.shape["T"] <= length for other in same)
    return not broken and any(o.status is Status.OK and o.case.shape["T"] >= length for o in same)


def _value(record: Record, name: str, tried: Iterable[Record]) -> float | None:
    """Read a field of a record; if it has none, take that of the tried records per step, times its length.

    Only tried records with the same source of operands count; None if there are none.
    """
    value = value_of(_status_and_numbers(record)[1], name)
    if value is not None:
        return value
    source, length = record.case.operand_source, record.case.shape["T"]
    known = [
        found * length / other.case.shape["T"]
        for other in tried
        if other.case.operand_source == source
        and (found := value_of(_status_and_numbers(other)[1], name)) is not None
    ]
    return max(known, default=None)


def _status_and_numbers(record: Record) -> tuple[str, dict[str, Any]]:
    return str(record.status), {**record.numbers, **record.case.shape}


def _written(name: str, value: float | None) -> str:
    return f"{name.replace('_', ' ')} is {value:,.5g}"


def _standing(record: Record, incorrect: Iterable[Record], beyond: tuple[str, str] | None = None) -> Standing:
    """Judge a record by itself, by the incorrect records that concern it, and by its backend's envelope."""
    if record.status in INCORRECT:
        return Standing(str(record.status), reason=record.reason)
    # the pass of the same suite comes first: it is nearest to the reader's subject
    others = sorted(incorrect, key=lambda other: other.case.suite != record.case.suite)
    if others:
        mark = f"{others[0].status} in {_where(others[0], record)}"
        return Standing(str(others[0].status), mark, f"{mark}: {others[0].reason}")
    if record.status is not Status.OK:
        return Standing(str(record.status), reason=record.reason)
    record = with_native_parts(record)
    too_fast = [*_too_fast(record.numbers)]
    against = [*_declared(record.numbers), *([beyond] if beyond else []), *too_fast, *_hides(record.numbers)]
    of_time = [*too_fast, *_with_parts(record)]
    found = dict([*against, *of_time])
    return Standing(
        BESIDE if against else COMPETES,
        ", ".join(found),
        "; ".join(found.values()) or None,
        "; ".join(reason for _, reason in of_time),
    )


def _where(other: Record, record: Record) -> str:
    if other.case.suite != record.case.suite:
        return other.case.suite
    return other.case.pass_


Remark = tuple[str, str]  # a mark, and the reason in full


def _declared(numbers: Mapping[str, Any]) -> Iterator[Remark]:
    """Say what a backend's declarations have against it, which records of old runs do not have."""
    if numbers.get("judged") is False:
        yield "not judged", "whether its results are right was not judged"
    if numbers.get("own_definition") is True:
        yield "own definition", "it computes another function, by a definition of its own"
    bound = _number(numbers.get("declared_bound"))
    if bound is not None and (numbers.get("approximate") is True or _widened(bound, numbers)):
        yield f"bound {bound:.3g}", f"it is approximate by declaration, with the error bound {bound:.3g}"


def _too_fast(numbers: Mapping[str, Any]) -> Iterator[Remark]:
    """Say that a time is beyond what the machine can reach; `believed` knows what no machine can."""
    fraction = _number(numbers.get("limit_fraction"))
    if fraction is not None and fraction > MOST_OF_LIMIT:
        mark = f"{100 * fraction:.0f} % of the limit"
        act = "do its arithmetic" if numbers.get("limit") == "matmul" else "read its operands"
        yield mark, f"faster than this machine can {act}: {mark}"


def _hides(numbers: Mapping[str, Any]) -> Iterator[Remark]:
    """Say that a part of the work seems to be done while the graph is made."""
    if hidden := _positive(numbers.get("hidden_s")):
        mark = f"hides {_time(hidden)}"
        yield mark, f"{mark}: forward and backward together take as much longer than apart"


def _with_parts(record: Record) -> Iterator[Remark]:
    """Say that the time has that of `prepare` and `finish`, since these do more than change a layout."""
    if added := added_s(record):
        mark = f"with {named_parts(record)}, {_time(added)}"
        yield mark, f"{mark}: more than four times a copy"


def _widened(bound: float, numbers: Mapping[str, Any]) -> bool:
    """Tell whether a bound widened the tolerance of any object: the larger of both is in the record."""
    tolerances = numbers.get("tolerances")
    limits = map(_number, tolerances.values()) if isinstance(tolerances, Mapping) else ()
    known = [limit for limit in limits if limit is not None]
    return not known or min(known) <= bound


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _time(seconds: float) -> str:
    """Write a time with two or three digits and its unit."""
    scale, unit = next((each for each in _UNITS if seconds >= each[0]), _UNITS[-1])
    return f"{seconds / scale:.3g} {unit}"


def _plus(value: Any, added: float) -> Any:
    """Add to a number, or to each of a list; leave anything else."""
    if isinstance(value, (list, tuple)):
        return [_plus(each, added) for each in value]
    return value + added if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _positive(value: Any) -> float | None:
    """Give a finite number above 0 as a float, or None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None
