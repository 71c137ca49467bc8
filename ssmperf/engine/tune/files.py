"""The configurations of a run's kernels: curated ones, those of a file, or those that a search finds.

A file of configurations is a JSON object with these members: `schema_version`; `device` and `triton`, the
device and the version of Triton with which they were found; and `rows`, the fields of each configuration by
`table:key`.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.plan.parts.apart import with_plugins
from ssmperf.engine.plan.run_options import Configurations
from ssmperf.engine.runs import store
from ssmperf.engine.runs.store import RUN_FILE, Run
from ssmperf.engine.tune import tables
from ssmperf.engine.tune.search import LEAST_GAIN
from ssmperf.engine.tune.tables import Place
from ssmperf.errors import UnreadableRun, UsageError

SCHEMA_VERSION = 1
LARGEST_BYTES = 1 << 16  # of a file, since workers get its rows as a command-line argument
FIELDS = {"schema_version": int, "device": str | None, "triton": str | None, "rows": dict}
META = "tuning"  # key in run.json


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a run chooses its configurations.

    options: as asked for. file: contents of the file that they name; None means curated rows only.
    """

    options: Configurations = Configurations()
    file: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, options: Configurations) -> Tuning:
        """Read the file that the options name.

        Raises:
            UsageError: a file cannot be read, or the file to write has no search or no folder.
        """
        write_to = options.write_configurations
        if write_to is not None and not options.autotune:
            raise UsageError(
                "--write-configurations writes the configurations that --autotune finds: pass both"
            )
        if write_to is not None and (write_to.is_dir() or not write_to.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {write_to}: it is a folder, or its folder does not exist")
        return cls(options, None if options.configurations is None else read(options.configurations))

    def to_json(self) -> dict[str, Any]:
        source = self.options.configurations
        return {
            "autotune": self.options.autotune,
            "file": self.file,
            "source": None if source is None else str(source),
        }

    @property
    def rows(self) -> Mapping[str, Any]:
        """The rows of the file, as JSON."""
        return self.file["rows"] if self.file else {}

    @property
    def words(self) -> tuple[str, ...]:
        """The options for a command that repeats a case."""
        return self.options.words


CURATED = Tuning()


def resumed(tuning: Tuning, path: Path) -> Tuning:
    """Get the tuning with which a run in a folder began, to continue with it.

    Raises:
        UsageError: the requested tuning is another one.
        UnreadableRun: the folder holds no run that can be read.
    """
    if not (path / RUN_FILE).exists():
        return tuning
    meta = store.load(path).meta.get(META) or {}
    if not isinstance(meta, dict) or not isinstance(meta.get("source"), str | None):
        raise UsageError(f"{path / RUN_FILE} is damaged: its {META} cannot be read")
    file = None if meta.get("file") is None else validate(meta["file"], str(path / RUN_FILE))
    asked = replace(tuning.options, autotune=meta.get("autotune") is True, configurations=meta.get("source"))
    before = Tuning(asked, file)
    if (tuning.options.autotune or tuning.file) and tuning.to_json() != before.to_json():
        began = " ".join(before.words) or "neither --autotune nor --configurations"
        raise UsageError(f"the run in {path} was begun with {began}: pass the same, or leave both out")
    return before


def read(path: Path) -> dict[str, Any]:
    """Read and validate a file of configurations.

    Raises:
        UsageError: the file cannot be read, or names something that does not exist here.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(
                f"{path} is too large for a file of configurations (at most {LARGEST_BYTES} bytes)"
            )
        data = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return validate(data, str(path))


def validate(data: Any, source: str) -> dict[str, Any]:
    """Return the contents of a file of configurations if they are valid; raise UsageError otherwise."""
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise UsageError(f"{source} is no file of configurations: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{source} has schema {version}; this ssmperf reads up to {SCHEMA_VERSION}: upgrade ssmperf"
        )
    for name in {*data, *FIELDS}:
        if name not in FIELDS or not isinstance(data.get(name), FIELDS[name]):
            raise UsageError(f"{source}: {name!r} is unknown, missing or of the wrong type")
    try:
        tables.from_json(data["rows"])
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    return dict(data)


def winners(records: Iterable[Record]) -> dict[Place, Any]:
    """Choose the configurations that are faster over all cases that searched, by the geometric mean.

    A configuration counts only if it gave the right answer in every case that searched its key. The largest
    gains are taken first; a configuration that cannot run beside these is skipped.

    Raises:
        UnreadableRun: a record of a search is damaged.
    """
    try:
        gains = _gains(records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRun(f"the candidates in a record are damaged: {error!r}") from error
    rows: dict[str, Any] = {}
    for label, fields in sorted(gains, key=gains.__getitem__):
        wider = {label: json.loads(fields), **rows}
        with contextlib.suppress(UsageError):
            tables.from_json(wider)
            rows = wider
    return tables.from_json(rows)


def _gains(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    """Compute the mean logarithm of the ratio of times by label and fields (as JSON), if it is a gain."""
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
    """Sum up the search and the file of configurations of a run, if any, one line each."""
    meta = run.meta.get(META) or {}
    lines = []
    file = meta.get("file")
    if file:
        tuned = (file.get("device"), file.get("triton"))
        for other in {_found_with(run, record) for record in run.records if record.env_id} - {tuned}:
            lines.append(
                f"{meta.get('source')} was found on {_describe(tuned)}, this run was on {_describe(other)}"
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


def _describe(found_with: tuple[str | None, str | None]) -> str:
    return f"{found_with[0] or 'a CPU'} with Triton {found_with[1]}"


def _changed(record: Record) -> bool:
    """Tell whether a case was timed with other configurations than those in force before its search."""
    used = record.numbers.get("configuration") or {}
    return any(
        label in used and any(before.get(name) != value for name, value in used[label].items())
        for label, (before, *_) in (record.numbers.get("candidates") or {}).items()
    )


def write_configurations(run: Run, tuning: Tuning) -> None:
    """Write the rows of the run's file, updated by the winners of its searches, to the requested file.

    Raises:
        UsageError: the run was on several devices or versions of Triton, or the file cannot be written.
    """
    write_to = tuning.options.write_configurations
    if write_to is None:
        return
    found = {_found_with(run, record) for record in run.records if record.numbers.get("autotuned")}
    if len(found) > 1:
        raise UsageError(
            f"{run.path} was tuned on several devices or versions of Triton: no configurations are written"
        )
    device, triton = next(iter(found), (None, None))
    rows = {**tuning.rows, **with_plugins(lambda: tables.as_json(winners(run.records)))}
    data = {"schema_version": SCHEMA_VERSION, "device": device, "triton": triton, "rows": rows}
    temporary = write_to.with_name(f"{write_to.name}.tmp")
    try:
        temporary.write_text(json.dumps(data, indent=1) + "\n")
        temporary.replace(write_to)
    except OSError as error:
        raise UsageError(f"cannot write {write_to}: {error.strerror or error}") from error


def _found_with(run: Run, record: Record) -> tuple[str | None, str | None]:
    """Get the device and the version of Triton of a record's environment."""
    environment = run.environments.get(record.env_id or "", {})
    gpu = (environment.get("hardware") or {}).get("gpu") or {}
    return gpu.get("name"), (environment.get("versions") or {}).get("triton")
