"""Compare two runs case by case: which cases became slower, wrong or lost. Pure functions of records.

Cases are matched by their id, which hashes every axis. Numbers are compared only if both records are `ok`;
the compared field is the one by which the suite ranks. The interval of a ratio comes from the samples within
the two runs, so it does not cover differences between two processes or two days.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.errors import ExitCode, UsageError
from ssmperf.measure import statistics
from ssmperf.runs.standings import rank_fields
from ssmperf.runs.store import Run

THRESHOLD = 0.05

# worst first, which is the order of tables
VERDICTS = {
    "wrong": "the new record is wrong, nan or crash",
    "lost": "it was ok and no longer is",
    "missing": "it was measured and is not in the new run",
    "slower": "worse by more than the threshold",
    "ambiguous": "beyond the threshold, but its interval reaches back; or not comparable",
    "faster": "better by more than the threshold",
    "mended": "it was not ok and now is",
    "same": "within the threshold",
    "new": "not in the base run",
    "failing": "it was not ok and still is not, but gives no wrong answer",
}
BROKEN = ("wrong", "lost", "missing")
WRONG_STATUSES = (Status.WRONG, Status.NAN, Status.CRASH)
_SAMPLES = {"latency_s": "samples_s"}  # fields whose raw samples are in the record, under these names


@dataclass(frozen=True, slots=True)
class Pair:
    """One case in both runs. ratio: new / base of `field`; low, high: the ends of its interval."""

    case: Case
    verdict: str
    reason: str | None = None
    field: str | None = None
    base: float | None = None
    new: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Any]:
        case = self.case.to_json()
        numbers = ("verdict", "reason", "field", "base", "new", "ratio", "low", "high")
        return {"case_id": self.case.id, **case, **{name: getattr(self, name) for name in numbers}}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """All pairs, worst verdicts first, and the differences between the two environments."""

    base: Run
    new: Run
    threshold: float
    pairs: tuple[Pair, ...]
    differences: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Pairs by verdict, worst first."""
        counts = Counter(pair.verdict for pair in self.pairs)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def exit_code(self) -> int:
        """3 for a wrong, lost or missing case, then 1 for a slower one, then 4 if one cannot tell."""
        found = set(self.counts)
        if found & set(BROKEN):
            return ExitCode.BAD_CASE
        if "slower" in found:
            return ExitCode.REGRESSION
        compared = found & {"same", "faster", "mended"}
        return ExitCode.UNSURE if "ambiguous" in found or not compared else ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        return {
            "base": str(self.base.path),
            "new": str(self.new.path),
            "threshold": self.threshold,
            "exit_code": self.exit_code,
            "verdicts": self.counts,
            "differences": list(self.differences),
            "cases": [pair.to_json() for pair in self.pairs],
        }


def parse_threshold(text: str) -> float:
    """Read `5%` or `0.05`.

    Raises:
        UsageError: the text is no number or percentage, or not between 0 and 10.
    """
    number = text.strip()
    try:
        value = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < 10:
        raise UsageError(f"the threshold must look like 5% or 0.05 and lie between 0 and 10, got {text!r}")
    return value


def compare_runs(base: Run, new: Run, *, threshold: float = THRESHOLD, force: bool = False) -> RunComparison:
    """Match the cases of two runs and judge each.

    threshold: largest relative change that counts as the same, such as 0.05.
    force: compare numbers even if device, driver or versions differ.
    """
    before = {record.case.id: record for record in base.records}
    after = {record.case.id: record for record in new.records}
    timed = sum(_both_ok(before.get(id_), record) for id_, record in after.items())
    fields = rank_fields(base.meta) | rank_fields(new.meta)
    differences: dict[str, None] = {}
    pairs: list[Pair] = []
    for id_ in {**before, **after}:
        old, now = before.get(id_), after.get(id_)
        if old is None or now is None or not _both_ok(old, now):
            pairs += _unmatched(old, now)
            continue
        changed = _differences(base, new, old, now)
        differences |= dict.fromkeys(changed)
        pair = _judge(old, now, fields.get(old.case.suite), threshold, timed)
        if changed and not force and pair.ratio is not None:
            reason = f"another environment ({'; '.join(changed)}): --force compares nevertheless"
            pair = replace(pair, verdict="ambiguous", reason=reason)
        pairs.append(pair)
    order = list(VERDICTS)
    pairs.sort(key=lambda pair: (order.index(pair.verdict), -abs(math.log(pair.ratio or 1.0))))
    return RunComparison(base, new, threshold, tuple(pairs), tuple(differences))


def _both_ok(old: Record | None, now: Record) -> bool:
    return old is not None and old.status is Status.OK and now.status is Status.OK


def _unmatched(old: Record | None, now: Record | None) -> Iterable[Pair]:
    """Make the pair of a case that is not ok in both runs; none if neither run could measure it."""
    if now is None:
        assert old is not None
        if old.status is not Status.UNSUPPORTED:
            yield Pair(old.case, "missing", f"it was {old.status} in the base run")
        return
    if now.status in WRONG_STATUSES:
        yield Pair(now.case, "wrong", f"{now.status}: {now.reason or ''}")
    elif old is None:
        if now.status is Status.OK:
            yield Pair(now.case, "new")
        elif now.status is not Status.UNSUPPORTED:
            yield Pair(now.case, "failing", f"{now.status}: {now.reason or ''}")
    elif now.status is Status.OK:
        yield Pair(now.case, "mended", f"it was {old.status}: {old.reason or ''}")
    elif old.status is Status.OK:
        yield Pair(now.case, "lost", f"{now.status}: {now.reason or ''}")
    elif now.status is not Status.UNSUPPORTED:
        yield Pair(now.case, "failing", f"{now.status}: {now.reason or ''}")


def _judge(old: Record, now: Record, field: str | None, threshold: float, cases: int) -> Pair:
    before, after = (_number(record, field) for record in (old, now))
    if field is None or before is None or after is None:
        if field is not None and before is not None:
            return Pair(now.case, "lost", f"it has no {field} any more", field, before, None)
        return Pair(now.case, "same")
    samples = _SAMPLES.get(field)
    change = statistics.compare(
        _samples(old, samples, before), _samples(now, samples, after), threshold=threshold, comparisons=cases
    )
    return Pair(now.case, change.verdict, None, field, before, after, change.ratio, change.low, change.high)


def _number(record: Record, field: str | None) -> float | None:
    value = record.numbers.get(field) if field else None
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None and math.isfinite(value) else None


def _samples(record: Record, name: str | None, value: float) -> Sequence[float]:
    """Get the raw samples behind a number, or the number itself if it was not sampled."""
    found = record.numbers.get(name) if name else None
    numbers = isinstance(found, list) and found and all(isinstance(item, (int, float)) for item in found)
    return found if numbers and isinstance(found, list) else [value]


def _differences(base: Run, new: Run, old: Record, now: Record) -> list[str]:
    """List the differences between two records' environments that make their times incomparable."""
    if old.env_id == now.env_id:
        return []
    before, after = (_facts(run, record) for run, record in ((base, old), (new, now)))
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    texts = [f"{name}: {before.get(name)} and {after.get(name)}" for name in sorted(changed)]
    return texts or ["their environments' ids"]


def _facts(run: Run, record: Record) -> dict[str, Any]:
    """List hardware, driver, versions and settings of a record's environment, by dotted name."""
    environment = run.environments.get(record.env_id or "")
    if not isinstance(environment, Mapping):
        return {"environment": None}
    parts = ("hardware", "driver", "versions", "torch", "cpu_limit", "variables")
    facts: dict[str, Any] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                collect(f"{prefix}.{name}", item)
        else:
            facts[prefix] = value

    for name in parts:
        collect(name, environment.get(name))
    ignored = ("hardware.gpu.uuid", "hardware.cpu.memory_bytes", "versions.ssmperf")
    return {name: value for name, value in facts.items() if name not in ignored}
