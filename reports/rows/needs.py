"""Memory at a length: measured by a suite that ranks by bytes, or forecast by the growth that it found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssmperf.suitekit import PHASES, TRAINING, UNPACKED, BestQuestion, narrowed

from . import frames, ranking, units
from .answers import PhaseAnswer

if TYPE_CHECKING:
    from ssmperf import Run

TRAIN, *_ = PHASES
NAMES = {"forward_backward": TRAINING, "forward": "prefill"}  # of the passes whose memory is asked for


@dataclass(frozen=True, slots=True)
class Need:
    """The most bytes that a call of a backend holds at once, beyond its operands.

    place: subject, sizes and dtype, as text. use: training or prefill.
    forecast: how the bytes were forecast; empty if they were measured at this length.
    free_bytes: those that the device had.
    """

    place: str
    use: str
    backend: str
    hardware: str
    bytes: float
    forecast: str
    free_bytes: float | None

    def to_json(self) -> dict[str, Any]:
        """Return one flat object; `memory_of` tells it from a contest."""
        names = ("use", "backend", "hardware", "bytes", "forecast", "free_bytes")
        return {"memory_of": self.place} | {name: getattr(self, name) for name in names}


def needs(question: BestQuestion) -> list[Need]:
    """List what calls need at the lengths that a question names, by the newest run that says so."""
    lengths = [T for each in question.sizes if each.name == "T" for T in each.sizes]
    others = tuple(each for each in question.sizes if each.name != "T")
    runs = narrowed(question.runs, question.models, others, question.dtypes) if lengths else []
    asked = question.passes
    return _newest(
        (row, T)
        for row in _rows(runs)
        for T in lengths
        if asked is None or {row["pass"], _asked_as(row["pass"])} & {*asked}
    )


def needs_of(found: Sequence[PhaseAnswer], runs: Sequence[Run]) -> list[Need]:
    """List what training and prefill of workloads need, by the newest run that says so."""
    asked: dict[tuple[Any, ...], set[int]] = {}
    for each in found:
        contest = each.contest
        if contest["axes"]["packing"] == UNPACKED and "T" in contest["sizes"]:
            use = TRAINING if each.phase == TRAIN else each.phase
            place = (units.plain(contest["subject"]), contest["dtype"], use, _others(contest["sizes"]))
            asked.setdefault(place, set()).add(contest["sizes"]["T"])
    if not asked:
        return []
    return _newest((row, T) for row in _rows(runs) for T in asked.get(_place_of(row), ()))


def _place_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (units.plain(row["subject"]), row["dtype"], NAMES[row["pass"]], _others(frames.sizes(row)))


def _others(sizes: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((letter, size) for letter, size in sizes.items() if letter != "T")


def _newest(asked: Iterable[tuple[dict[str, Any], int]]) -> list[Need]:
    """Give the needs of rows at lengths; of several rows about the same, the one of the newest run."""
    found: dict[tuple[str, ...], Need] = {}
    for row, T in sorted(asked, key=lambda each: units.plain(each[0]["date"])):
        if (need := _at(row, T)) is not None:
            found[need.place, need.use, need.backend, need.hardware] = need
    return sorted(found.values(), key=lambda each: (each.place, each.use, each.hardware, each.bytes))


def _asked_as(pass_: str) -> str:
    return TRAINING if pass_ == "forward_backward" else pass_


def _rows(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Give the rows of operations that were measured by suites that rank by bytes, and are right."""
    table = frames.frame(runs)
    for name, section in frames.sections(runs, table).items():
        if units.suffix(section.rank or "") == "_bytes":
            for row in frames.records(table[table["suite"] == name]):
                right = row["status"] == "ok" and row["standing"] not in ranking.INCORRECT
                if right and row["pass"] in NAMES and row["level"] == "op":
                    yield row


def _at(row: Mapping[str, Any], T: int) -> Need | None:
    """Give the need at a length: one that was measured, or the longest one's times a power of the ratio."""
    lengths, peaks = row.get("lengths"), row.get("peaks_bytes")
    if not (isinstance(lengths, list) and isinstance(peaks, list) and len(lengths) == len(peaks) > 0):
        return None
    known, power = dict(zip(lengths, peaks, strict=True)), row.get("growth_exponent")
    if not all(units.is_number(each) and each > 0 for each in (*lengths, *peaks)):
        return None
    if T not in known and not units.is_number(power):
        return None
    sizes = [f"{letter}{size}" for letter, size in frames.sizes(row).items() if letter != "T"]
    longest = max(lengths)
    forecast = "" if T in known else f"forecast from T = {longest:,} by the power {power:.2f} of T"
    return Need(
        f"{units.plain(row['subject'])} at T = {T:,} ({' '.join(sizes)}), {row['dtype']}",
        NAMES[row["pass"]],
        units.plain(row["backend"]),
        units.plain(row["hardware"] or row["device"]),
        float(known[T] if T in known else known[longest] * (T / longest) ** power),
        forecast,
        units.as_float(row.get("capacity_bytes")),
    )
