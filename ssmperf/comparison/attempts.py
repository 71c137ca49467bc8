"""The checks of two runs against each other: one line per check, in the new run's folder.

Whoever checks until a check passes has another error rate than the one that a check promises.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ssmperf.comparison.outcome import RunComparison
from ssmperf.engine.cases import reading
from ssmperf.engine.runs.store import Run

FILE = "checks.jsonl"


def count(found: RunComparison) -> RunComparison:
    """Add a check to the file of its new run, and return the comparison with the number of checks so far.

    A folder that cannot be read or written is no error: the comparison then has a note about it.
    """
    if found.new.path.is_file():  # of another program, which is only read
        return found
    path = found.new.path / FILE
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "baseline": _identity(found.base),
        "threshold": found.threshold,
        "restriction": found.restriction.to_json(),
        "verdicts": found.counts,
        "exit_code": int(found.exit_code),
    }
    try:
        if path.is_symlink():  # in a folder that anybody may have written
            raise OSError("it is a link")
        earlier = _lines(reading.read(path).decode()) if path.exists() else []
        with path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return replace(
            found, notes=(*found.notes, f"this check is not counted: cannot write {path}: {reason}")
        )
    attempts = 1 + sum(each.get("baseline") == line["baseline"] for each in earlier)
    note = (f"{ordinal(attempts)} check of this pair",) if attempts > 1 else ()
    return replace(found, attempts=attempts, notes=(*found.notes, *note))


def ordinal(number: int) -> str:
    """Write a number as 1st, 2nd, 3rd, 4th, …, 11th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else endings.get(number % 10, 'th')}"


def _identity(run: Run) -> dict[str, Any]:
    """Tell a run from others, wherever its folder is."""
    return {name: run.meta.get(name) for name in ("nonce", "created")}


def _lines(text: str) -> list[Mapping[str, Any]]:
    """Read the earlier checks; a line that is torn or no object is passed over."""
    found = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, Mapping):
            found.append(data)
    return found
