"""The verb `diagnose`: find a case of a run by its id, repeat it, and show its faults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from ssmperf.engine import registry
from ssmperf.engine.cases.failure import TRACEBACK
from ssmperf.engine.cases.record import Record, Status, one_line
from ssmperf.engine.machine import devices
from ssmperf.engine.plan import nonce as nonces
from ssmperf.errors import UsageError

if TYPE_CHECKING:
    from ssmperf.engine.diagnosis.examination import Condition, Examination
    from ssmperf.engine.diagnosis.findings import ObjectFault
    from ssmperf.engine.runs.store import Run

COMPARED = (Status.OK, Status.WRONG, Status.NAN)  # statuses of cases whose numbers can be compared
MOST_TESTS = 24
PROMISES = ("failed_call", "failed_property")  # fields of a record that name what did not hold


def find(run: Run, text: str) -> Record:
    """Find the record of a case by its id or the beginning of its id.

    Raises:
        UsageError: no case begins so, or several do.
    """
    found = [record for record in run.records if text and record.case.id.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(f"{record.case.id} ({record.case})" for record in found[:4])
        raise UsageError(f"{len(found)} cases of {run.path} begin with {text!r}: {several}")
    bad = [record for record in run.records if record.status in (Status.WRONG, Status.NAN)]
    hint = f"; wrong are: {', '.join(record.case.id for record in bad[:8])}" if bad else ""
    raise UsageError(f"no case of {run.path} begins with {text!r}{hint}")


def examine(run: Run, record: Record) -> Examination | None:
    """Repeat a case with the run's secret and plug-ins; None if it did not end with numbers to compare.

    Raises:
        UsageError: this machine has no such device, or a plug-in is missing.
    """
    if record.status not in COMPARED:
        return None
    from ssmperf.engine.diagnosis import examination

    for file in _plugins(run):
        registry.load_plugin(file)
    _, found = devices.resolve(record.case.device)
    own = run.meta.get(nonces.META)
    nonce = 0 if own is None else nonces.parse(own)  # runs of old had none
    return examination.examine(record.case, device=found[0], nonce=nonce)


def as_json(record: Record, found: Examination | None) -> dict[str, Any]:
    """Return the record's end and the examination as plain JSON, without infinite numbers."""
    recorded = {
        "case_id": record.case.id,
        "recorded_status": str(record.status),
        "recorded_reason": record.reason,
        "command": record.numbers.get("command"),
        "examination": None if found is None else _finite(found.to_json()),
    }
    if found is None:
        recorded[TRACEBACK] = record.numbers.get(TRACEBACK)
    return recorded


def as_text(record: Record, found: Examination | None) -> str:
    """Show a case: how it was recorded, how it ended now, each wrong object, and other conditions."""
    lines = [f"{record.case.id}  {record.case}", f"recorded: {_ended(record.status, record.reason)}"]
    command = record.numbers.get("command")
    if found is None:
        lines += [one_line(line) for line in str(record.numbers.get(TRACEBACK) or "").splitlines()]
        lines.append("its numbers were not compared, so there is nothing to diagnose")
        return "\n".join([*lines, *([f"repeat it: {command}"] if command else [])])
    lines.append(f"repeated: {_ended(found.verdict.status, found.verdict.reason)}")
    lines += _promises(record, found)
    if found.verdict.status is Status.OK and record.status is not Status.OK and not found.broken:
        if not any(record.numbers.get(field) for field in PROMISES):
            lines.append("one call is right here: the fault may lie in a later, timed call, or in chance")
        lines += [f"repeat the whole case: {command}"] if command else []
    for finding in found.findings:
        lines += ["", *_object(finding)]
    lines += ["", found.experiments] if found.experiments else []
    if found.conditions:
        lines += ["", "under other conditions", _conditions(found.conditions)]
    return "\n".join(lines)


def _promises(record: Record, found: Examination) -> Iterator[str]:
    """Say which forms of the call, and which properties, do not hold; and whether the recorded one does."""
    if found.broken:
        yield "a plain call is right; wrong are:"
    for each in found.broken:
        yield f"  {each.name}: {one_line(each.words)}"
    names = [each.name for each in found.promises]
    for field in PROMISES:
        name = record.numbers.get(field)
        if name in names and name not in (each.name for each in found.broken):
            yield f"{name}, which was wrong in the run, holds here"


def _object(finding: ObjectFault) -> Iterator[str]:
    from ssmperf.engine.diagnosis.examination import along

    yield f"{finding.label}: {finding.text}"
    yield f"  error {finding.error:.2e}, tolerance {finding.tolerance:.2e}"
    if finding.row_error is not None and finding.row_tolerance is not None:
        yield f"  by rows: error {finding.row_error:.2e}, tolerance {finding.row_tolerance:.2e}"
    if finding.profile.not_finite:
        yield f"  {finding.profile.not_finite} of {math.prod(finding.profile.shape)} values are not finite"
    for axis, rows in along(finding):
        table = [[axis, *(index for index, _ in rows)], ["error", *(_short(error) for _, error in rows)]]
        for line in tabulate(table, tablefmt="plain", disable_numparse=True).splitlines():
            yield f"  {line}"
    tests = sorted(finding.tried, key=lambda each: each[1])[:MOST_TESTS]
    if tests:
        yield "  what was tested, and the error that it leaves"
        for text, error in tests:
            yield f"    {_short(error)}  {text}"


def _conditions(conditions: list[Condition]) -> str:
    rows = [
        (
            f"  {each.name}",
            str(each.status),
            "" if each.excess is None else f"{each.excess:.2g} × tolerance",
            one_line(each.reason or "")[:120],
        )
        for each in conditions
    ]
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def _ended(status: Status, reason: str | None) -> str:
    return f"{status}: {reason}" if reason else str(status)


def _short(error: float) -> str:
    return f"{error:.1e}" if math.isfinite(error) else "not finite"


def _plugins(run: Run) -> list[Path]:
    """List the plug-in files with which a run was made.

    Raises:
        UsageError: the run says something else than files.
    """
    files = run.meta.get("plugins") or []
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise UsageError(f"{run.path} does not say with which plug-ins it was made")
    return [Path(file) for file in files]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
