"""The spread between processes that a comparison takes for a case, and its wording.

The spread comes from the calibration of the machine, which a run carries in its environments. Without one it
is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ssmperf.comparison.outcome import Pair, percent
from ssmperf.comparison.remarks import texts
from ssmperf.engine.cases.record import Record
from ssmperf.engine.machine.calibration import Calibration, device_name, kind_of
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UnreadableRun

# Spread between processes of a machine that is not calibrated, as a standard deviation of logs. Others on the
# cores of a CPU may take half of their time.
ASSUMED, ASSUMED_BUSY_GPU, ASSUMED_BUSY_CPU = 0.02, 0.04, 0.25
MOST_SHARED = 2.0  # times as long: the effect on a call of another virtual machine on the same core
CHANGED = ("slower", "faster")


class NoiseCalibration(Protocol):
    """A calibration: device, date, and the spread per kind of case."""

    @property
    def device(self) -> str: ...
    @property
    def created(self) -> str: ...
    def spread(self, kind: str) -> float: ...


class Noise:
    """Gives the spread between processes for pairs of records, and remembers where it came from.

    calibration: to be used for all cases. Otherwise a case has the calibration in the new run's environment,
        else in the base's, else what `local` returns for the name of its device.
    """

    def __init__(
        self,
        base: Run,
        new: Run,
        calibration: NoiseCalibration | None = None,
        local: Callable[[str], NoiseCalibration | None] = lambda device: None,
    ) -> None:
        self._base, self._new, self._given, self._local = base, new, calibration, local
        self._known: dict[tuple[str | None, str | None], NoiseCalibration | None] = {}
        self._calibrated: dict[str, list[float]] = {}
        self._assumed: set[float] = set()
        self._assumed_on_cpu: set[str] = set()  # ids of cases

    def spread(self, old: Record, now: Record) -> float:
        """Get the spread for a case, as a standard deviation of logs."""
        found = self._given or self._of_environments(old.env_id, now.env_id)
        if found is None:
            busy = any(texts(each.numbers.get("busy")) for each in (old, now))
            on_gpu = now.case.device != "cpu"
            spread = (ASSUMED_BUSY_GPU if on_gpu else ASSUMED_BUSY_CPU) if busy else ASSUMED
            self._assumed.add(spread)
            if not on_gpu:
                self._assumed_on_cpu.add(now.case.id)
            return spread
        spread = found.spread(kind_of(now.numbers))
        self._calibrated.setdefault(f"{found.device}, calibrated {found.created[:10]}", []).append(spread)
        return spread

    def text(self, scatter: float | None, cases: int) -> str:
        """Say which spreads were taken. scatter: that of the comparison's own ratios, over so many cases."""
        least = min([*self._assumed, *(each for found in self._calibrated.values() for each in found)])
        parts = [f"{_span(found)} ({who})" for who, found in self._calibrated.items()]
        if self._assumed:
            busy = self._assumed - {ASSUMED}
            why = ", more where a machine was busy" if busy else ""
            why = " for a busy machine" if busy == self._assumed else why
            parts.append(
                f"{_span(self._assumed)} assumed{why}, this machine is not calibrated: ssmperf calibrate"
            )
        if scatter is not None and scatter > least:
            parts.append(f"up to {percent(scatter)} as these {cases} ratios scatter")
        return f"spread between processes: {'; '.join(parts)}"

    def without_strays(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Take back the verdict of a case that changed alone, where one round on a CPU is compared with one.

        A virtual machine's core may be half as fast for a second, which nothing on it shows. That hits one
        case in fifty by up to a factor of 2. A change of a backend shows in its other cases, too. A case that
        is its backend's only one, or of a machine that is calibrated, keeps its verdict.
        """
        cases = Counter(_of_backend(pair) for pair in pairs if pair.ratio is not None)
        changed = Counter((*_of_backend(pair), pair.verdict) for pair in pairs)

        def strays(pair: Pair) -> bool:
            return (
                pair.verdict in CHANGED
                and pair.rounds == 1
                and pair.case.id in self._assumed_on_cpu
                and changed[(*_of_backend(pair), pair.verdict)] == 1 < cases[_of_backend(pair)]
                and pair.ratio is not None
                and 1 / MOST_SHARED < pair.ratio < MOST_SHARED
            )

        reason = "of its backend's cases, this one alone changed: its core may have been shared meanwhile"
        return [replace(pair, verdict="ambiguous", reason=reason) if strays(pair) else pair for pair in pairs]

    def _of_environments(self, old: str | None, now: str | None) -> NoiseCalibration | None:
        if (old, now) not in self._known:
            self._known[old, now] = self._search(old, now)
        return self._known[old, now]

    def _search(self, old: str | None, now: str | None) -> NoiseCalibration | None:
        found = [(run, run.environments.get(id_ or "")) for run, id_ in ((self._new, now), (self._base, old))]
        environments = [(run, each) for run, each in found if isinstance(each, Mapping)]
        for run, environment in environments:
            if environment.get("calibration") is not None:
                try:
                    return Calibration.from_json(environment["calibration"])
                except UnreadableRun as error:
                    raise UnreadableRun(f"{run.path}: {error}") from error
        for _, environment in environments:
            try:
                return self._local(device_name(environment))
            except (KeyError, TypeError, AttributeError):  # an environment that names no device
                continue
        return None


def _of_backend(pair: Pair) -> tuple[str, str, str]:
    return pair.case.suite, pair.case.owner, pair.case.backend


def _span(values: set[float] | list[float]) -> str:
    least, most = percent(min(values)), percent(max(values))
    return most if least == most else f"{least} to {most}"
