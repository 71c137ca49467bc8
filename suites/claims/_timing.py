"""Times of cases for claims: a run of the throughput suite, or of `training`, and its numbers as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ssmperf
from ssmperf import Record, Status
from ssmperf.suitekit import ClaimSetting, Estimate, Finding, agree_on_order, agree_on_range

ROUNDS = 5  # fresh processes, the fewest that have an interval
TIMEOUT_S = 300.0


def timed(
    setting: ClaimSetting, name: str, *, suite: str = "throughput", rounds: int = ROUNDS, **choices: Any
) -> dict[str, Any]:
    """Run a suite that times in the piece's folder, or continue the run that is there.

    name: the run's folder. rounds: each in fresh processes. choices: other keywords of `ssmperf.run`.

    Returns:
        `{"cases": [...]}`: each case with its status and reason, and with its numbers if it is ok.
    """
    setting.on_progress(f"timing {name}")
    run = ssmperf.run(
        suite,
        out=setting.folder / name,
        resume=True,
        device=setting.device,
        preset="standard" if setting.on_gpu and not setting.smoke else "smoke",
        rounds=1 if setting.smoke else rounds,
        timeout=TIMEOUT_S,
        **choices,
    )
    return {"cases": [case_of(record) for record in run.records]}


def case_of(record: Record) -> dict[str, Any]:
    """Give a record's case, how it ended, and its numbers with their intervals."""
    case = record.case
    found: dict[str, Any] = {
        **dict(case.shape),
        "model": case.model or case.recurrence,
        "backend": case.backend,
        "pass": case.pass_,
        "level": case.level,
        "dtype": case.dtype,
        "status": str(record.status),
        "reason": record.reason,
    }
    if record.status is Status.OK:
        found["latency_s"] = _json(Estimate.of_record(record))
        peak = record.numbers.get("peak_bytes")
        found["peak_bytes"] = _json(None if peak is None else Estimate.exact(peak, "B"))
    return found


def latency(numbers: Mapping[str, Any], **wanted: Any) -> Estimate | None:
    """Find the time of the case with these properties; None if there is none, or it has no time."""
    return number(numbers, "latency_s", **wanted)


def number(numbers: Mapping[str, Any], field: str, **wanted: Any) -> Estimate | None:
    """Find a number of the first case with these properties that is ok."""
    for case in _matching(numbers, wanted):
        if case.get(field) is not None:
            return Estimate.from_json(case[field])
    return None


def why(numbers: Mapping[str, Any], **wanted: Any) -> str:
    """Say why the case with these properties has no time; empty if it has one."""
    matching = _matching(numbers, wanted)
    label = " ".join(str(value) for value in wanted.values())
    if any(case["status"] == "ok" for case in matching):
        return ""
    return (
        f"{label}: {matching[0]['reason'] or matching[0]['status']}" if matching else f"{label}: not measured"
    )


def faster(
    what: str,
    printed: str,
    numbers: Mapping[str, Any],
    slow: Mapping[str, Any],
    fast: Mapping[str, Any],
    *,
    times: tuple[float, float] | None = None,
    decides: bool = True,
    note: str = "",
) -> list[Finding]:
    """Compare two cases that are said to be a slow and a fast one.

    times: the factor that the paper states, shown beside the order: our device is not the paper's.
    """
    slower, quicker = latency(numbers, **slow), latency(numbers, **fast)
    reason = "; ".join(filter(None, (why(numbers, **fast), why(numbers, **slow))))
    ours = {_label(slow): slower, _label(fast): quicker}
    judged = agree_on_order(slower, quicker, reason)
    found = [Finding(what, printed, ours, judged, decides, note)]
    if times is not None:
        ratio = None if slower is None or quicker is None else slower.over(quicker)
        judged = agree_on_range(*times, ratio, full_size=False, why=reason)
        found.append(Finding(f"factor of {what}", printed, {"factor": ratio}, judged, decides=False))
    return found


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Join the cases of several runs."""
    return {"cases": [case for part in parts for case in part.get("cases", ())]}


def _label(wanted: Mapping[str, Any]) -> str:
    return " ".join(str(wanted[name]) for name in ("model", "backend", "piece") if name in wanted)


def _matching(numbers: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cases = numbers.get("cases", ())
    return [case for case in cases if all(case.get(name) == value for name, value in wanted.items())]


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()
