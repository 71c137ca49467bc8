"""Measure several cases one after the other, and keep what was measured as a file of records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.run import Progress
from ssmperf.engine.execute.worker import ended_by
from ssmperf.engine.machine import environment
from ssmperf.engine.plan import Selection, refusal
from ssmperf.errors import CannotMeasure, Unsupported, UsageError


@dataclass
class Measurement:
    """The records of one kind of measurement, and the file that keeps them.

    kind: the option that asks for it, without its dashes; names the file, too.
    """

    kind: str
    device: str
    folder: Path
    environment: Mapping[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.kind}.json"

    def to_json(self) -> dict[str, Any]:
        return {
            "measurement": self.kind,
            "environment": self.environment,
            "records": [record.to_json() for record in self.records],
        }

    def add(self, record: Record) -> None:
        """Add a record, and write the file anew, so that it has all records when a user interrupts."""
        self.records.append(record)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {self.file}: {error.strerror or error}") from error


def measure(
    found: Measurement,
    cases: Sequence[Case],
    selection: Selection,
    numbers_of: Callable[[Case], Mapping[str, Any]],
    progress: Progress,
) -> None:
    """Measure cases in order; whatever a case raises becomes the status of its record.

    numbers_of: measures a case.

    Raises:
        Unsupported: every case is refused beforehand; the message says why the first one is.
        CannotMeasure: this machine lacks something that all cases need.
        UsageError: the folder cannot be written.
    """
    found.environment = environment.capture(found.device)
    env_id = environment.env_id(found.environment)
    reasons = [refusal(case, selection) for case in cases]
    if all(reasons):
        raise Unsupported(f"{cases[0]}: {reasons[0]}")
    progress.begin(len(cases), 0)
    try:
        for case, reason in zip(cases, reasons, strict=True):
            progress.start(case, found.device)
            record = (
                Record(case, Status.UNSUPPORTED, reason, env_id)
                if reason
                else _measured(case, env_id, numbers_of)
            )
            found.add(record)
            progress.finish(record)
    finally:
        progress.end()


class Failed(Exception):
    """A case failed in another process, with this status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def _measured(case: Case, env_id: str, numbers_of: Callable[[Case], Mapping[str, Any]]) -> Record:
    try:
        return Record(case, Status.OK, None, env_id, numbers_of(case))
    except CannotMeasure:
        raise
    except Failed as failed:
        return Record(case, failed.status, failed.reason, env_id)
    except Exception as error:
        status, reason, notes = ended_by(error)
        return Record(case, status, reason, env_id, notes)
