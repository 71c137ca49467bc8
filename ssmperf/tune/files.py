"""How a run chooses kernels' configurations: curated ones, those of a file, or what a search finds.

A file of configurations is a JSON object: `schema_version`; `device` and `triton`, with which they were
found; and `rows`, the fields of each configuration by `table:key`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.cases.record import Record, Status
from ssmperf.errors import UnreadableRun, UsageError
from ssmperf.runs import store
from ssmperf.runs.store import RUN_FILE, Run
from ssmperf.tune import tables
from ssmperf.tune.search import LEAST_GAIN
from ssmperf.tune.tables import Place

SCHEMA_VERSION = 1
LARGEST_BYTES = 1 << 16  # of a file: workers get it as an argument
FIELDS = {"schema_version": int, "device": str | None, "triton": str | None, "rows": dict}
META = "tuning"  # where it lies in run.json


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a run was asked for.

    autotune: whether timed cases search. file: what a file of configurations holds, None: curated rows alone.
    source: where that file was. write_to: where to write what was found.
    """

    autotune: bool = False
    file: Mapping[str, Any] | None = None
    source: str | None = None
    write_to: Path | None = None

    @classmethod
    def of(
        cls,
        autotune: bool,
        configurations: str | os.PathLike[str] | None,
        write_configurations: str | os.PathLike[str] | None,
    ) -> Tuning:
        """As the options say.

        Raises:
            UsageError: a file that cannot be read, or one to write without a search or a folder.
        """
        write_to = None if write_configurations is None else Path(write_configurations)
        if write_to is not None and not autotune:
            raise UsageError("--write-configurations writes what --autotune finds: pass both")
        if write_to is not None and (write_to.is_dir() or not write_to.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {write_to}: it is a folder, or has none to lie in")
        if configurations is None:
            return cls(autotune, write_to=write_to)
        path = Path(configurations)
        return cls(autotune, read(path), str(path.resolve()), write_to)

    def to_json(self) -> dict[str, Any]:
        return {"autotune": self.autotune, "file": self.file, "source": self.source}

    @property
    def rows(self) -> Mapping[str, Any]:
        """Of the file, as JSON."""
        return self.file["rows"] if self.file else {}

    @property
    def options(self) -> list[str]:
        """Of the command that repeats a case."""
        words = ["--autotune"] if self.autotune else []
        return words + (["--configurations", self.source] if self.source else [])


CURATED = Tuning()


def resumed(tuning: Tuning, path: Path) -> Tuning:
    """What a run in a folder goes on with: what it began with.

    Raises:
        UsageError: something else is asked for.
        UnreadableRun: the folder holds no run that can be read.
    """
    if not (path / RUN_FILE).exists():
        return tuning
    meta = store.load(path).meta.get(META) or {}
    if not isinstance(meta, dict) or not isinstance(meta.get("source"), str | None):
        raise UsageError(f"{path / RUN_FILE} is damaged: its {META} cannot be read")
    file = None if meta.get("file") is None else checked(meta["file"], str(path / RUN_FILE))
    before = Tuning(meta.get("autotune") is True, file, meta.get("source"), tuning.write_to)
    if (tuning.autotune or tuning.file) and tuning.to_json() != before.to_json():
        began = " ".join(before.options) or "neither --autotune nor --configurations"
        raise UsageError(f"the run in {path} was begun with {began}: resume it so, or leave both out")
    return before


def read(path: Path) -> dict[str, Any]:
    """The content of a file of configurations, checked.

    Raises:
        UsageError: it cannot be read, or names what does not exist here.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path} is too large for a file of configurations")
        data = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return checked(data, str(path))


def checked(data: Any, source: str) -> dict[str, Any]:
    """What should be the content of such a file. Raises UsageError."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise UsageError(f"{source} is no file of configurations: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise UsageError(f"{source} has schema {version}, this ssmperf reads up to {SCHEMA_VERSION}")
    for name in {*data, *FIELDS}:
        if name not in FIELDS or not isinstance(data.get(name), FIELDS[name]):
            raise UsageError(f"{source}: {name!r} is not known, missing or of a wrong type")
    try:
        tables.from_json(data["rows"])
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    return dict(data)


def winners(records: Iterable[Record]) -> dict[Place, Any]:
    """Over all cases that searched, what is faster than what was in force, by the geometric mean.

    Only what was right in every case that searched there counts, and what fits beside greater gains.

    Raises:
        UnreadableRun: a record of a search is damaged.
    """
    try:
        gains = _gains(records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRun(f"what a search tried is damaged: {error!r}") from error
    rows: dict[str, Any] = {}
    for label, fields in sorted(gains, key=gains.__getitem__):
        wider = {label: json.loads(fields), **rows}
        with contextlib.suppress(UsageError):
            tables.from_json(wider)
            rows = wider
    return tables.from_json(rows)


def _gains(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    """By label and fields, as JSON: the mean logarithm of the ratio of times, where it is a gain."""
    searches = Counter[str]()
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for label, (before, *others) in (record.numbers.get("candidates") or {}).items():
            searches[label] += 1
            for each in others:
                fields = {name: value for name, value in each.items() if name not in ("latency_s", "reason")}
                if each["latency_s"] is not None:
                    ratio = math.log(each["latency_s"] / before["latency_s"])
                    ratios.setdefault((label, json.dumps(fields)), []).append(ratio)
    means = {
        place: sum(logs) / len(logs) for place, logs in ratios.items() if len(logs) == searches[place[0]]
    }
    return {place: mean for place, mean in means.items() if mean < math.log(1 - LEAST_GAIN)}


def summary(run: Run, written_to: Path | None = None) -> list[str]:
    """What there is to say of a run that had a search or a file, a line each."""
    meta = run.meta.get(META) or {}
    lines = []
    file = meta.get("file")
    if file:
        tuned = (file.get("device"), file.get("triton"))
        for other in {_found_with(run, record) for record in run.records if record.env_id} - {tuned}:
            lines.append(
                f"{meta.get('source')} was found on {_shown(tuned)}, this run was on {_shown(other)}"
            )
    if meta.get("autotune"):
        searched = [record for record in run.records if record.numbers.get("autotuned")]
        tried = sum(record.numbers.get("candidates_tried") or 0 for record in searched)
        changed = sum(record.status is Status.OK and _changed(record) for record in searched)
        lines.append(
            f"autotune: {len(searched)} cases searched, {tried} candidates tried, {changed} cases changed"
            if searched
            else "autotune: no timed case consulted a table of configurations, so there was nothing to search"
        )
    if written_to is not None:
        lines.append(f"configurations written to {written_to}")
    return lines


def _shown(found_with: tuple[str | None, str | None]) -> str:
    return f"{found_with[0] or 'a CPU'} with Triton {found_with[1]}"


def _changed(record: Record) -> bool:
    """Whether a case was timed with other configurations than were in force before its search."""
    used = record.numbers.get("configuration") or {}
    return any(
        label in used and any(before.get(name) != value for name, value in used[label].items())
        for label, (before, *_) in (record.numbers.get("candidates") or {}).items()
    )


def write_configurations(run: Run, tuning: Tuning) -> None:
    """Write the rows of the run's file, and what is better, where the options say.

    Raises:
        UsageError: the run was on several devices or versions of Triton, or the file cannot be written.
    """
    if tuning.write_to is None:
        return
    found = {_found_with(run, record) for record in run.records if record.numbers.get("autotuned")}
    if len(found) > 1:
        raise UsageError(f"{run.path} was tuned on several devices or versions of Triton: nothing is written")
    device, triton = next(iter(found), (None, None))
    rows = {**tuning.rows, **tables.as_json(winners(run.records))}
    data = {"schema_version": SCHEMA_VERSION, "device": device, "triton": triton, "rows": rows}
    temporary = tuning.write_to.with_name(f"{tuning.write_to.name}.tmp")
    try:
        temporary.write_text(json.dumps(data, indent=1) + "\n")
        temporary.replace(tuning.write_to)
    except OSError as error:
        raise UsageError(f"cannot write {tuning.write_to}: {error.strerror or error}") from error


def _found_with(run: Run, record: Record) -> tuple[str | None, str | None]:
    environment = run.environments.get(record.env_id or "", {})
    gpu = (environment.get("hardware") or {}).get("gpu") or {}
    return gpu.get("name"), (environment.get("versions") or {}).get("triton")
