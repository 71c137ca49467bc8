"""Record: the outcome of one case, as one flat JSON object with a versioned schema."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssmperf.case import Case
from ssmperf.errors import UnreadableRun, UsageError

SCHEMA_VERSION = 1


class Status(enum.StrEnum):
    """How a case ended. Every planned case ends in exactly one."""

    OK = "ok"
    WRONG = "wrong"
    NAN = "nan"
    OOM = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    UNSUPPORTED = "unsupported"


# Numbers that only a case that ended `ok` may carry: a failed case has no time.
_ONLY_WHEN_OK = ("_s", "_per_s", "_j", "_fraction")


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one case: a status, a reason, and numbers whose names carry their SI unit.

    Missing numbers are None, never 0. A record whose status is not `ok` carries no time, rate,
    energy or fraction: the constructor drops nothing and raises ValueError instead.
    """

    case: Case
    status: Status
    reason: str | None = None
    env_id: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status is not Status.OK:
            timed = [
                name
                for name, value in self.numbers.items()
                if name.endswith(_ONLY_WHEN_OK) and value is not None
            ]
            if timed:
                raise ValueError(f"a {self.status} record must not carry {', '.join(timed)}")
            if not self.reason:
                raise ValueError(f"a {self.status} record needs a reason")

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object; NaN and infinity become null, since JSON has neither."""
        head: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "case_id": self.case.id,
            "env_id": self.env_id,
            **self.case.to_json(),
            "status": str(self.status),
            "reason": self.reason,
        }
        overlap = head.keys() & self.numbers.keys()
        if overlap:
            raise ValueError(f"numbers must not redefine {', '.join(sorted(overlap))}")
        return {**head, **{name: _finite(value) for name, value in self.numbers.items()}}

    def to_line(self) -> str:
        """The record as one line of `records.jsonl`, without the newline."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read a record of this or an older schema.

        Raises:
            UnreadableRun: for a newer schema, or an object that is no record.
        """
        version = data.get("schema_version")
        if not isinstance(version, int):
            raise UnreadableRun("a record without a schema_version")
        if version > SCHEMA_VERSION:
            raise UnreadableRun(
                f"a record of schema {version}; this ssmperf reads up to {SCHEMA_VERSION}: upgrade ssmperf"
            )
        try:
            case = Case.from_json(data)
            status = Status(data["status"])
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise UnreadableRun(f"a damaged record: {error!r}") from error
        head = {"schema_version", "case_id", "env_id", "status", "reason", *case.to_json()}
        numbers = {name: value for name, value in data.items() if name not in head}
        try:
            return cls(case, status, data.get("reason"), data.get("env_id"), numbers)
        except ValueError as error:
            raise UnreadableRun(f"a damaged record: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
