"""Compare two runs case by case: which cases became slower, wrong or lost. Pure functions of records.

Cases are matched by their id, which hashes every axis. Numbers are compared only if both records are `ok`;
the compared field is the one by which the suite ranks. A time is judged with the noise between processes,
which the samples of two runs do not show (`unpaired`), or by pairs of rounds that were measured side by side
(`compare_pairs`). Numbers that are not sampled, such as bytes, are compared as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ssmperf.comparison import unpaired
from ssmperf.comparison.environments import Differences, differences
from ssmperf.comparison.noise import Noise, NoiseCalibration
from ssmperf.comparison.outcome import VERDICTS, Pair, RunComparison, check_unsure
from ssmperf.comparison.remarks import Alarms, busy_line, unfinished
from ssmperf.comparison.unpaired import CaseSide, Change, Timed
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import REFUSED_VALUES
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.machine.calibration import kind_of
from ssmperf.engine.runs.judged import with_doubt
from ssmperf.engine.runs.rounds import values_of
from ssmperf.engine.runs.scope import Restriction, Scope, kept
from ssmperf.engine.runs.standings import declared_ranks, rank_fields
from ssmperf.engine.runs.store import Run, planned
from ssmperf.errors import UsageError

THRESHOLD = 0.05
MOST_THRESHOLD = 10
PAIRED = "rounds of both sides in pairs, verdicts from fresh pairs"
WRONG_STATUSES = (Status.WRONG, Status.NAN, Status.CRASH)
# Numbers that are sampled, with the names of their samples and of the ends of their interval.
_SAMPLED = {"latency_s": ("samples_s", "latency_low_s", "latency_high_s")}


class PairedVerdict(Protocol):
    """The verdict of `measure.paired` on a case, from rounds of both sides that were measured in pairs."""

    @property
    def verdict(self) -> str: ...
    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def p(self) -> float | None: ...
    @property
    def least_change(self) -> float: ...
    @property
    def pairs(self) -> int: ...


def parse_threshold(threshold: str | float) -> float:
    """Read `5%` or `0.05`; a number is taken as it is.

    Raises:
        UsageError: it is no number or percentage, is 1 or more without a percent sign, or is not above 0.
    """
    text = f"{threshold:g}" if isinstance(threshold, float | int) else str(threshold).strip()
    percent = text.endswith("%")
    try:
        value = float(text[:-1]) / 100 if percent else float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value >= 1 and not percent:
        offer = f"{text}% or {value / 100:g}" if value < 100 else "5% or 0.05"
        raise UsageError(f"the threshold {text} would be {100 * value:g} %: write {offer}")
    if not 0 < value < MOST_THRESHOLD:
        raise UsageError(f"the threshold must look like 5% or 0.05 and be above 0, got {threshold!r}")
    return value


def compare_runs(
    base: Run,
    new: Run,
    *,
    threshold: str | float = THRESHOLD,
    force: bool = False,
    unsure: str = "fail",
    restriction: Restriction | None = None,
    calibration: NoiseCalibration | None = None,
    local: Callable[[str], NoiseCalibration | None] = lambda device: None,
) -> RunComparison:
    """Match the cases of two runs that were measured at different times, and judge each.

    threshold: largest relative change that counts as the same, such as 0.05 or "5%".
    force: compare numbers even if device, driver or versions differ.
    unsure: "pass" if a comparison in which only ambiguity is left counts as fine, else "fail".
    restriction: the part of both runs to compare; None means all.
    calibration: the noise of the machine, instead of that in the runs' environments.
    local: finds the calibration of a device if the environments have none.

    Raises:
        UsageError: the threshold or `unsure` is illegal, or a name of the restriction is in neither run.
    """
    limit = parse_threshold(threshold)
    matched = _match(base, new, rank_fields(base.meta), restriction or Restriction())
    noise = Noise(base, new, calibration, local)
    timed = {
        each.case.id: each.timed(noise)
        for each in matched.compared
        if each.sampled and not each.same_record and (force or not each.differences.breaking)
    }
    found, scatter = unpaired.compare(list(timed.values()), limit)
    changes = dict(zip(timed, found, strict=True))
    pairs = list(matched.unmatched)
    for each in matched.compared:
        if each.differences.breaking and not force:
            pairs.append(each.incomparable())
        elif each.case.id in timed:
            pairs.append(each.pair(changes[each.case.id], limit, timed[each.case.id].values))
        elif each.sampled:
            pairs.append(each.pair(Change("same", 1.0, 1.0, 1.0), limit))
        else:
            pairs.append(each.pair(unpaired.exact(*each.values, limit), limit))
    breaking = () if force else matched.breaking
    tolerated = matched.breaking if force else ()
    method = _method(timed.values(), noise, scatter)
    pairs = noise.without_strays(pairs)
    return _comparison(
        matched, limit, pairs, method, unsure, differences=breaking, notes=_tolerated(tolerated)
    )


def compare_pairs(
    base: Run,
    new: Run,
    verdicts: Mapping[str, PairedVerdict],
    *,
    threshold: float = THRESHOLD,
    unsure: str = "fail",
    restriction: Restriction | None = None,
    method: str = PAIRED,
    notes: Sequence[str] = (),
) -> RunComparison:
    """Combine verdicts from rounds in pairs with the statuses of the two sides' runs.

    The sides of a comparison in pairs may differ in their software on purpose, so differences between
    environments are notes, and the base version's suites say what is compared.

    verdicts: by case id; a timed case without one, which was never measured in pairs, is ambiguous.
    threshold: the largest change that counts as the same, as `parse_threshold` gives it.
    method, notes: how the verdicts came about, and further remarks.

    Raises:
        UsageError: `unsure` is illegal, or a name of the restriction is in neither run.
    """
    matched = _match(base, new, declared_ranks(base.meta), restriction or Restriction())
    pairs = list(matched.unmatched)
    for each in matched.compared:
        found = verdicts.get(each.case.id)
        if not each.sampled:
            pairs.append(each.pair(unpaired.exact(*each.values, threshold), threshold))
        elif found is None:
            pairs.append(
                Pair(each.case, "ambiguous", "it was not measured in pairs", each.field, *each.values)
            )
        else:
            numbers = found.ratio, found.low, found.high, found.p, found.least_change, found.pairs
            pairs.append(each.pair(Change(found.verdict, *numbers), threshold, paired=True))
    notes = (*notes, *_tolerated(matched.breaking))
    return _comparison(matched, threshold, pairs, method, unsure, notes=notes)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A case that is ok in both runs and has the number by which its suite ranks."""

    old: Record
    now: Record
    field: str
    values: tuple[float, float]
    differences: Differences

    @property
    def case(self) -> Case:
        return self.now.case

    @property
    def sampled(self) -> bool:
        return self.field in _SAMPLED

    @property
    def same_record(self) -> bool:
        """Whether both records are one measurement, as when a run is compared with itself."""
        names = ("round_values", _SAMPLED[self.field][0])
        raw = [[_numbers(record, name) for name in names] for record in (self.old, self.now)]
        if not any(raw[0]):
            return self.old.numbers == self.now.numbers
        return raw[0] == raw[1] and self.values[0] == self.values[1]

    def timed(self, noise: Noise) -> Timed:
        sides = [_side(record, self.field) for record in (self.old, self.now)]
        return Timed(sides[0], sides[1], noise.spread(self.old, self.now), kind_of(self.now.numbers))

    def pair(
        self,
        change: Change,
        threshold: float,
        values: tuple[float, float] | None = None,
        *,
        paired: bool = False,
    ) -> Pair:
        """Make the pair of a case that was judged.

        values: those compared, if not the records' own. paired: whether rounds of both sides were pairs.
        """
        base, new = values or self.values
        return Pair(
            self.case,
            change.verdict,
            unpaired.why(change, threshold, paired=paired),
            self.field,
            base,
            new,
            change.ratio,
            change.low,
            change.high,
            change.p,
            change.least_change,
            change.rounds,
        )

    def incomparable(self) -> Pair:
        changed = "; ".join(self.differences.breaking)
        reason = f"another environment ({changed}): --force compares nevertheless"
        ratio = self.values[1] / self.values[0]
        return Pair(self.case, "ambiguous", reason, self.field, *self.values, ratio)


@dataclass(frozen=True, slots=True)
class _Matched:
    """The cases of two runs. unmatched: pairs that are decided without numbers. unmeasured: number of cases
    planned in the new run that neither run has. alarms: see `RunComparison`."""

    base: Run
    new: Run
    restriction: Restriction
    unmatched: tuple[Pair, ...]
    compared: tuple[_Compared, ...]
    unmeasured: int
    alarms: tuple[str, ...]

    @property
    def breaking(self) -> tuple[str, ...]:
        """The differences between environments that make times incomparable."""
        return tuple(dict.fromkeys(text for each in self.compared for text in each.differences.breaking))


def _match(base: Run, new: Run, ranks: Mapping[str, str], restriction: Restriction) -> _Matched:
    """Match cases. ranks: by which field each suite ranks; never the new run's, which may be anybody's."""
    restriction.check(record.case for run in (base, new) for record in run.records)
    before, after = (kept(run, restriction, ranks) for run in (base, new))
    scope, alarms = Scope.of(new, base), Alarms()
    unmatched: list[Pair] = []
    compared: list[_Compared] = []
    same_values = base.meta.get("nonce") == new.meta.get("nonce")
    for id_ in {**before, **after}:
        old, now = before.get(id_), after.get(id_)
        if now is None:
            assert old is not None
            unmatched += _absent(old, scope, alarms)
            continue
        field = ranks.get(now.case.suite)
        if lost := alarms.doubt(old, now, field):
            unmatched.append(Pair(now.case, "lost", lost, field))
            continue
        if old is None or old.status is not Status.OK or now.status is not Status.OK:
            unmatched += _unmatched(old, now, same_values=same_values)
            continue
        value, other = (_number(record, field) for record in (old, now))
        if field is None or (value is None and other is None):
            unmatched.append(Pair(now.case, "same", "ok in both runs"))
        elif value is None:
            unmatched.append(Pair(now.case, "ambiguous", f"the baseline has no {field}", field))
        elif other is None:
            unmatched.append(Pair(now.case, "lost", f"it has no {field} any more", field, value))
        else:
            compared.append(_Compared(old, now, field, (value, other), differences(base, new, old, now)))
    known = {record.case.id for run in (base, new) for record in run.records}
    unmeasured = len(set(planned(new.meta)) - known)
    unmatched = with_doubt(unmatched, base, new, restriction)
    return _Matched(base, new, restriction, tuple(unmatched), tuple(compared), unmeasured, alarms.texts)


def _absent(old: Record, scope: Scope, alarms: Alarms) -> Iterable[Pair]:
    """Make the pair of a case that is not in the new run, if it should be there."""
    if old.status is Status.UNSUPPORTED:
        return
    if not scope.covers(old.case):
        alarms.unasked.append(old.case)
        return
    cut = old.case.id in scope.planned
    reason = "it was planned, but the run ended before it" if cut else f"it was {old.status} before"
    yield Pair(old.case, "missing", reason)


def _unmatched(old: Record | None, now: Record, *, same_values: bool) -> Iterable[Pair]:
    """Make the pair of a case that is not ok in both runs; none if nobody misses it.

    same_values: whether both runs drew the same values.
    """
    found = f"{now.status}: {now.reason or ''}"
    if now.status in WRONG_STATUSES:
        yield Pair(now.case, "wrong", found)
    elif now.status is Status.OK:
        earlier = f"it was {old.status}: {old.reason or ''}" if old else "not in the base run"
        yield Pair(now.case, "mended" if old else "new", earlier)
    elif old is not None and old.status is Status.OK:
        if now.numbers.get(REFUSED_VALUES) and not same_values:
            yield Pair(now.case, "ambiguous", f"the values of this run are refused: {now.reason or ''}")
        else:
            yield Pair(now.case, "lost", found)
    elif now.status is not Status.UNSUPPORTED:
        yield Pair(now.case, "failing", found)


def _comparison(
    matched: _Matched,
    threshold: float,
    pairs: list[Pair],
    method: str,
    unsure: str,
    *,
    differences: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> RunComparison:
    """Put pairs into order, and add remarks about the two runs."""
    check_unsure(unsure)
    order = list(VERDICTS)
    pairs.sort(key=lambda pair: (order.index(pair.verdict), -abs(math.log(pair.ratio or 1.0))))
    harmless = dict.fromkeys(text for each in matched.compared for text in each.differences.notes)
    unfinished_ = unfinished(matched.new, matched.base, matched.restriction)
    found = [*notes, *_tolerated(harmless), *unfinished_, *_busy(matched)]
    return RunComparison(
        base=matched.base,
        new=matched.new,
        threshold=threshold,
        pairs=tuple(pairs),
        differences=differences,
        notes=tuple(found),
        alarms=matched.alarms,
        method=method,
        unsure=unsure,
        restriction=matched.restriction,
        unmeasured=0 if matched.restriction else matched.unmeasured,
    )


def _method(timed: Iterable[Timed], noise: Noise, scatter: float | None) -> str:
    """Say how times were compared; empty if none were."""
    rounds = [case.rounds for case in timed]
    if not rounds:
        return ""
    least, most = min(rounds), max(rounds)
    several = f"{least} to {most} rounds" if least < most else "one round" if most == 1 else f"{most} rounds"
    return f"{several} on each side, not in pairs; {noise.text(scatter, len(rounds))}"


def _tolerated(differences: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"environments differ, compared nevertheless: {each}" for each in differences)


def _busy(matched: _Matched) -> Iterable[str]:
    """Say where machines were busy with something else."""
    for place, name in enumerate(("base", "new")):
        if line := busy_line([(each.old, each.now)[place] for each in matched.compared]):
            yield f"the {name} run's machine was {line}"


def _number(record: Record, field: str | None) -> float | None:
    return next(iter(values_of([record], field)), None) if field else None


def _side(record: Record, field: str) -> CaseSide:
    """Gather one run's facts about a case's time."""
    value = _number(record, field)
    assert value is not None
    samples, *ends = _SAMPLED[field]
    rounds = tuple(_numbers(record, "round_values"))
    if taken := rounds if len(rounds) > 1 else _numbers(record, samples):
        return CaseSide(value, unpaired.error_of(taken), rounds)
    low, high = (_number(record, end) for end in ends)
    return CaseSide(value, None if low is None or high is None else unpaired.error_of_interval(low, high))


def _numbers(record: Record, name: str) -> list[float]:
    """Get a list of positive numbers of a record; empty if it has none or has something else."""
    found = record.numbers.get(name)
    if not isinstance(found, list):
        return []
    good = all(isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x < math.inf for x in found)
    return found if good else []
