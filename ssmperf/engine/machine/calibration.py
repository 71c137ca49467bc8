"""The resolution of a machine: the noise between processes per kind of case, kept in one file per device.

The interval of a median covers what varies within one process. Two processes that run the same code differ by
more: clocks, memory placement, neighbours. `ssmperf calibrate` measures that, and comparisons of runs use it.

The files are in $SSMPERF_CALIBRATION, or else in `ssmperf/calibration` of the user's data folder. Each holds
the log medians of the last sessions, so that a spread covers differences between sessions, and the result,
which is all that a comparison needs. Reading a file executes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np

from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.machine.spread import Array, Spread, estimate
from ssmperf.errors import UnreadableRun, UsageError

FORMAT, SCHEMA_VERSION = "ssmperf calibration", 1
FOLDER_VARIABLE = "SSMPERF_CALIBRATION"
MOST_SESSIONS = 8  # in a file; older ones describe a machine of the past
LENGTHS = {  # of a call, with their upper ends in seconds
    "<10us": 1e-5,
    "10-100us": 1e-4,
    "100us-1ms": 1e-3,
    "1-10ms": 1e-2,
    "10-100ms": 1e-1,
    ">100ms": math.inf,
}
HOST = " host"  # ends the kind of cases that take the host longer to issue than the device to run
KINDS = tuple(length + end for end in ("", HOST) for length in LENGTHS)
ABSENT = "not calibrated: ssmperf calibrate measures it"  # the reason where a device has no file
UNKNOWN = "unknown"  # kind of a record without a time


def kind_of(numbers: Mapping[str, Any]) -> str:
    """Name the kind of a case by a record's numbers: the length of a call, and whether the host limits it."""
    latency_s, issue_s = numbers.get("latency_s"), numbers.get("issue_s")
    if not _positive(latency_s):
        return UNKNOWN
    assert latency_s is not None
    length = next(name for name, end_s in LENGTHS.items() if latency_s < end_s)
    return length + (HOST if _positive(issue_s) and issue_s > latency_s else "")


def device_name(environment: Mapping[str, Any]) -> str:
    """Name the hardware of an environment: the GPU, or the CPU with the number of cores that it may use.

    Raises KeyError, TypeError or AttributeError if it names none.
    """
    hardware = environment["hardware"]
    gpu, cpu = hardware.get("gpu"), hardware["cpu"]
    if gpu:
        return str(gpu["name"])
    name = cpu["model"] or cpu["architecture"]
    if not name:
        raise KeyError("model")
    return str(name) if cpu["cores"] is None else f"{name}, {cpu['cores']} cores"


def software_of(environment: Mapping[str, Any], env_id: str) -> str | None:
    """Name the software that an environment runs; None for a checkout with changes, which no name fits."""
    git = environment.get("git") or {}
    if git.get("dirty"):
        return None
    return f"{env_id} {git.get('commit') or environment['versions'].get('ssmperf')}"


@dataclass(frozen=True, slots=True)
class Rounds:
    """One case in one session: its kind, and the log median of each round, NaN for a round without one."""

    kind: str
    logs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CalibrationSession:
    """Rounds by case id, measured in one go.

    created: when, in ISO format.
    software: the software that ran, as `software_of` names it. Only sessions of the same one are compared
        with one another, since a change of software may change a median.
    """

    created: str
    software: str | None
    cases: Mapping[str, Rounds]

    @classmethod
    def of(cls, rounds: Mapping[str, Sequence[Record]], software: str | None, created: str = "") -> Self:
        """Collect the rounds of each case that was measured at least twice.

        Raises:
            UsageError: no case was.
        """
        found = {}
        for case_id, records in rounds.items():
            measured = {
                _place(record.numbers.get("round"), place): record.numbers
                for place, record in enumerate(records)
                if record.status is Status.OK and _positive(record.numbers.get("latency_s"))
            }
            if len(measured) < 2:
                continue
            seconds = {place: float(numbers["latency_s"]) for place, numbers in measured.items()}
            issues = [n["issue_s"] for n in measured.values() if _positive(n.get("issue_s"))]
            kind = kind_of(
                {
                    "latency_s": statistics.median(seconds.values()),
                    "issue_s": statistics.median(issues) if issues else None,
                }
            )
            logs = [math.log(seconds[i]) if i in seconds else math.nan for i in range(max(seconds) + 1)]
            found[case_id] = Rounds(kind, tuple(logs))
        if not found:
            raise UsageError("no case was measured in at least two rounds: nothing to calibrate with")
        return cls(created or datetime.now(UTC).isoformat(timespec="seconds"), software, found)

    def to_json(self) -> dict[str, Any]:
        cases = {
            case_id: {"kind": case.kind, "log_s": [None if math.isnan(x) else x for x in case.logs]}
            for case_id, case in self.cases.items()
        }
        return {"created": self.created, "software": self.software, "cases": cases}

    @classmethod
    def from_json(cls, data: Any) -> CalibrationSession:
        """Read a session.

        Raises:
            UnreadableRun: it is damaged.
        """
        fields = _mapping(data, "a session")
        software = fields.get("software")
        cases = {}
        for case_id, case in _mapping(fields.get("cases"), "a session's cases").items():
            logs = _mapping(case, "a session's case").get("log_s")
            if not isinstance(logs, list) or not all(x is None or _finite(x) for x in logs):
                raise UnreadableRun("damaged calibration: the rounds of a case are no numbers")
            cases[case_id] = Rounds(
                _kind(case.get("kind")), tuple(math.nan if x is None else x for x in logs)
            )
        return cls(_text(fields.get("created")), None if software is None else _text(software), cases)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The noise between processes on one device.

    device: name of the hardware. created: when the last session was measured, in ISO format.
    kinds: by kind of case, as `kind_of` names it.
    sessions: the sessions behind the estimate, oldest first; empty in the copy that runs carry.
    """

    device: str
    created: str
    kinds: Mapping[str, Spread]
    sessions: tuple[CalibrationSession, ...] = ()

    @classmethod
    def of_rounds(
        cls, device: str, rounds: Mapping[str, Sequence[Record]], *, software: str | None = None
    ) -> Calibration:
        """Make the calibration of one session from the rounds of each case, by case id.

        Raises:
            UsageError: no case was measured in two rounds.
        """
        return cls.of_sessions(device, [CalibrationSession.of(rounds, software)])

    @classmethod
    def of_sessions(cls, device: str, sessions: Sequence[CalibrationSession]) -> Calibration:
        """Estimate the spread of every kind from the last sessions.

        A case has the kind of its last session.
        """
        kept = tuple(sessions[-MOST_SESSIONS:])
        kinds = {case_id: case.kind for session in kept for case_id, case in session.cases.items()}
        found = {}
        for kind in KINDS:
            members = [case_id for case_id, own in kinds.items() if own == kind]
            if members:
                found[kind] = estimate(_groups(kept, members))
        return cls(device, kept[-1].created, found, kept)

    def spread(self, kind: str) -> float:
        """Get the standard deviation of a process's log median for a kind of case.

        A kind that was not measured has the spread of the nearest length that is limited by the same side, or
        the larger of two that are equally near. Without any, it has the largest spread known.
        """
        if kind in self.kinds:
            return self.kinds[kind].spread
        places = {name: place for place, name in enumerate(LENGTHS)}
        place = places.get(kind.removesuffix(HOST))
        same = [own for own in self.kinds if own.endswith(HOST) == kind.endswith(HOST)]
        if place is None or not same:
            return max(found.spread for found in self.kinds.values())
        distances = {own: abs(places[own.removesuffix(HOST)] - place) for own in same}
        least = min(distances.values())
        return max(self.kinds[own].spread for own in same if distances[own] == least)

    def to_json(self) -> dict[str, Any]:
        """Return all but the sessions, as plain JSON."""
        kinds = {kind: dataclasses.asdict(found) for kind, found in self.kinds.items()}
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "device": self.device,
            "created": self.created,
            "kinds": kinds,
        }

    @classmethod
    def from_json(cls, data: Any) -> Calibration:
        """Read a calibration, with or without sessions.

        Raises:
            UnreadableRun: the data is damaged, of a newer version, or something else.
        """
        fields = data if isinstance(data, Mapping) else {}
        if fields.get("format") != FORMAT or not isinstance(fields.get("schema_version"), int):
            raise UnreadableRun("not a calibration of ssmperf")
        if fields["schema_version"] > SCHEMA_VERSION:
            raise UnreadableRun("a calibration by a newer ssmperf: upgrade ssmperf")
        kinds = {
            _kind(kind): _spread(found) for kind, found in _mapping(fields.get("kinds"), "its kinds").items()
        }
        if not kinds:
            raise UnreadableRun("damaged calibration: it has no kinds of cases")
        sessions = fields.get("sessions", [])
        if not isinstance(sessions, list):
            raise UnreadableRun("damaged calibration: its sessions are no list")
        return cls(
            _text(fields.get("device")),
            _text(fields.get("created")),
            kinds,
            tuple(CalibrationSession.from_json(session) for session in sessions),
        )


def folder() -> Path:
    """Find the folder of the calibration files, which may not exist."""
    own = os.environ.get(FOLDER_VARIABLE)
    if own:
        return Path(own)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "ssmperf" / "calibration"


def path_for(device: str) -> Path:
    """Choose the file of a device: its name in plain letters, and a hash to tell similar names apart."""
    plain = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:60]
    return folder() / f"{plain}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.json"


def read(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        UnreadableRun: it is missing, damaged, or something else.
    """
    try:
        return Calibration.from_json(json.loads(path.read_text()))
    except UnreadableRun as error:
        raise UnreadableRun(f"{path}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableRun(f"cannot read the calibration {path}: {error}") from error


def load_for(device: str) -> Calibration | None:
    """Read the calibration of a device, or return None if it has none.

    Raises:
        UnreadableRun: its file is damaged, or that of another device.
    """
    path = path_for(device)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # which the reading explains
    found = read(path)
    if found.device != device:
        raise UnreadableRun(f"{path} is the calibration of another device ({found.device})")
    return found


def facts_for(device: str) -> dict[str, Any]:
    """Describe the calibration of a device for an environment; never fails.

    Returns:
        `calibration`, None without one, and `calibration_reason`, which says why there is none.
    """
    try:
        found = load_for(device)
    except UnreadableRun as error:
        return {"calibration": None, "calibration_reason": str(error)}
    reason = None if found else ABSENT
    return {"calibration": found.to_json() if found else None, "calibration_reason": reason}


def save(calibration: Calibration) -> Calibration:
    """Add a calibration's sessions to the file of its device, and return the file's calibration.

    Raises:
        UnreadableRun: the present file is damaged. UsageError: the file cannot be written.
    """
    before = load_for(calibration.device)
    sessions = (*(before.sessions if before else ()), *calibration.sessions)
    merged = Calibration.of_sessions(calibration.device, sessions)
    data = {**merged.to_json(), "sessions": [session.to_json() for session in merged.sessions]}
    path = path_for(calibration.device)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the calibration {path}: {error.strerror or error}") from error
    return merged


def _groups(sessions: Sequence[CalibrationSession], members: Sequence[str]) -> list[list[Array]]:
    """Arrange sessions as arrays (rounds, members), grouped by software."""
    groups: dict[object, list[Array]] = {}
    for place, session in enumerate(sessions):
        rows = [session.cases[name].logs if name in session.cases else () for name in members]
        array = np.full((max(map(len, rows)), len(rows)), np.nan)
        for column, row in enumerate(rows):
            array[: len(row), column] = row
        if len(array):
            groups.setdefault(place if session.software is None else session.software, []).append(array)
    return list(groups.values())


def _place(number: Any, place: int) -> int:
    """Get the number of a round, or the record's place where it has none."""
    return number if isinstance(number, int) and number >= 0 else place


def _spread(data: Any) -> Spread:
    fields = _mapping(data, "a kind")
    names = [field.name for field in dataclasses.fields(Spread)]
    if not all(_finite(fields.get(name)) and fields[name] >= 0 for name in names):
        raise UnreadableRun("damaged calibration: a kind has something other than numbers")
    return Spread(
        float(fields["spread"]),
        float(fields["largest"]),
        float(fields["degrees"]),
        int(fields["cases"]),
        int(fields["rounds"]),
    )


def _kind(value: Any) -> str:
    if value not in KINDS:
        raise UnreadableRun(f"damaged calibration: unknown kind {value!r}")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnreadableRun("damaged calibration: a name or date is no text")
    return value


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableRun(f"damaged calibration: {what} is no object")
    return value


def _finite(value: Any) -> bool:
    """Tell whether a value is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _positive(value: Any) -> bool:
    return _finite(value) and value > 0
