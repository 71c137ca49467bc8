"""Runs on disk: a folder with `run.json` (environments, plan) and `records.jsonl` (one record per line).

A run folder is data: reading it executes nothing. `Writer` writes a new or resumed run, one process per
folder at a time. `load` reads a run, also one whose files were packed by `gzip`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases import reading
from ssmperf.engine.cases.origin import Origin, hardware
from ssmperf.engine.cases.reading import parse
from ssmperf.engine.cases.record import SCHEMA_VERSION, Record, Status, one_line
from ssmperf.engine.machine.environment import places
from ssmperf.engine.plan.run_options import Names
from ssmperf.engine.runs.foreign import benchmark_json
from ssmperf.engine.runs.question import Best, BestQuestion
from ssmperf.engine.runs.rounds import Rounds, by_case, fault, fold, noted, watched
from ssmperf.engine.runs.standings import believed, declared_ranks, rank_fields, standings, with_native_parts
from ssmperf.errors import UnreadableRun, UsageError

if TYPE_CHECKING:
    import pandas

RUN_FILE = "run.json"
RECORDS_FILE = "records.jsonl"
MOST_NAMED = 3  # cases in one line
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # from file systems that have no locks


@dataclass(frozen=True)
class Run:
    """The contents of a run folder, with times as they are ranked (see `with_native_parts`).

    records: one per case. If the same round of a case has several records, only the last one is kept; if a
        case has several rounds, its record is folded from them (see `ssmperf.engine.runs.rounds.fold`).
    warnings: faults that were tolerated while reading, such as a torn last line.
    rounds: the records of each case by its id, in the order of their rounds.
    """

    path: Path
    meta: Mapping[str, Any]
    records: list[Record]
    warnings: list[str] = field(default_factory=list)
    rounds: Rounds = field(default_factory=dict)

    def __post_init__(self) -> None:
        rounds = self.rounds or by_case(self.records)
        rounds = {id_: tuple(map(with_native_parts, records)) for id_, records in rounds.items()}
        object.__setattr__(self, "rounds", rounds)
        object.__setattr__(self, "records", [*map(with_native_parts, self.records)])

    @property
    def environments(self) -> Mapping[str, Any]:
        """Environments by id, as the workers captured them."""
        return found if isinstance(found := self.meta.get("environments"), Mapping) else {}

    @cached_property
    def places(self) -> Mapping[str, str]:
        """The first of the environments that compare with each, by id; see `environment.places`."""
        return places(self.environments)

    def __repr__(self) -> str:
        """Describe the run in a few lines, since people print runs in notebooks."""
        suites = Counter(record.case.suite for record in self.records)
        found = Counter(record.status for record in self.records)
        statuses = {status.value: found[status] for status in Status if status in found}
        devices = hardware(self) or list(dict.fromkeys(record.case.device for record in self.records))
        facts = {"suites": _counted(suites), "statuses": _counted(statuses), "device": ", ".join(devices)}
        lines = (f"\n  {name}: {one_line(text)}" for name, text in facts.items() if text)
        return f"<Run {one_line(self.path.name)}: {counted(self.records)}{''.join(lines)}>"

    def _repr_html_(self) -> str:
        """Give the run as HTML, for a notebook."""
        return str(registry.report("cell")([self], None))

    def best(self, models: Names | None = None, **asked: Any) -> Best:
        """Name the fastest backends, as in run.best("gla", T=4096). asked: keywords of `ssmperf.best`."""
        return Best(BestQuestion.of([self], models=models, **asked))

    def frame(self) -> pandas.DataFrame:
        """Make a tidy DataFrame with one row per record and one column per dimension of the shape.

        `standing`, `mark` and `standing_reason` say whether the record's backend competes in its comparison;
        see `Standing`. The least time of a column is not the fastest backend: `ssmperf.best` names that.
        `date`, `tag`, `commit` and `plugin` with its kin say when and of which code it is; see `Origin`.
        """
        import pandas

        rows = []
        for record, standing in zip(believed(self), standings(self), strict=True):
            row = record.to_json()
            shape = row.pop("shape")
            stands = {"standing": standing.name, "mark": standing.mark, "standing_reason": standing.reason}
            text = str(record.case.shape)
            origin = Origin.of(self, record).to_json()
            rows.append({"run": self.path.name, **row, "shape": text, **shape, **stands, **origin})
        return pandas.DataFrame(rows)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


class Writer:
    """Appends to a run folder. Each record is on disk before `append` returns."""

    def __init__(self, path: Path, meta: dict[str, Any], descriptor: int) -> None:
        self.path, self.meta, self._descriptor = path, meta, descriptor
        self._planned = dict.fromkeys(planned(meta))
        self._stored = len(self._planned)

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, Any]) -> Writer:
        """Start a run in a folder that does not exist or is empty.

        Raises:
            UsageError: the folder is not empty, or cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UsageError(f"{path} already exists and is not empty: pass --resume or another --out")
            full = {"schema_version": SCHEMA_VERSION, "environments": {}, **meta}
            with _closed_on_failure(_open(path)) as descriptor:
                _write_atomically(path / RUN_FILE, full)
                return cls(path, full, descriptor)
        except OSError as error:
            raise UsageError(f"cannot write the run folder {path}: {error.strerror or error}") from error

    @classmethod
    def resume(cls, path: Path, meta: Mapping[str, Any]) -> tuple[Writer, Run]:
        """Continue a run, or start it if its folder is missing or has no `run.json` yet.

        A torn last line is cut off. The environments of the earlier part are kept.

        Raises:
            UnreadableRun: the folder holds something other than a run.
            UsageError: the folder cannot be written, or another process is writing to it.
        """
        try:
            if not (path / RUN_FILE).exists():
                present = [p.name for p in path.iterdir()] if path.is_dir() else []
                if set(present) - {RECORDS_FILE, f"{RUN_FILE}.tmp", "logs"}:
                    raise UnreadableRun(f"{path} holds no {RUN_FILE} but other files: not a run folder")
                path.mkdir(parents=True, exist_ok=True)
            with _closed_on_failure(_open(path)) as descriptor:
                if not (path / RUN_FILE).exists():
                    fresh = {"schema_version": SCHEMA_VERSION, "environments": {}, **meta}
                    _write_atomically(path / RUN_FILE, fresh)
                run = load(path)
                _repair_last_line(path / RECORDS_FILE)
                kept = {"environments": dict(run.environments)}
                if "suites" in meta:  # the sections of suites that were run before stay
                    kept["suites"] = {**run.meta.get("suites", {}), **meta["suites"]}
                if run.meta.get("created"):
                    kept["created"] = run.meta["created"]
                counts = [each["rounds"] for each in (run.meta, meta) if isinstance(each.get("rounds"), int)]
                if counts:  # rounds that were measured before stay
                    kept["rounds"] = max(counts)
                merged = {**run.meta, **meta, **kept}
                if "plan" in merged:  # what is left of an earlier command's cases stays missing
                    merged["plan"] = _plan([*dict.fromkeys((*planned(run.meta), *planned(merged)))])
                _write_atomically(path / RUN_FILE, merged)
                return cls(path, merged, descriptor), run
        except OSError as error:
            raise UsageError(f"cannot write the run folder {path}: {error.strerror or error}") from error

    def add_environment(self, env_id: str, environment: Mapping[str, Any]) -> None:
        """Store an environment under its id, if it is not stored yet."""
        if env_id not in self.meta["environments"]:
            self.meta["environments"][env_id] = dict(environment)
            self._store()

    def note(self, more: Mapping[str, Any]) -> None:
        """Store further keys in `run.json`."""
        self.meta.update(more)
        self._store()

    def add_to_plan(self, case_ids: Iterable[str], *, growth: float = 0.0) -> None:
        """Store that the run is to have more cases, where that is not known from the beginning.

        growth: by which share of what is stored the plan has to grow before it is stored again, since the
            whole plan is written. `close` stores the rest.
        """
        self._planned.update(dict.fromkeys(case_ids))
        if len(self._planned) > self._stored * (1 + growth):
            self._store()

    def _store(self) -> None:
        if len(self._planned) > self._stored:
            self._stored = len(self._planned)
            self.meta["plan"] = _plan([*self._planned])
        self._guarded(lambda: _write_atomically(self.path / RUN_FILE, self.meta))

    def append(self, record: Record) -> None:
        """Write one record.

        Raises:
            UsageError: the disk is full or the folder is gone; earlier records stay intact.
        """
        self._guarded(lambda: self._append((record.to_line() + "\n").encode()))

    def close(self) -> None:
        try:
            self.add_to_plan(())
        finally:
            os.close(self._descriptor)

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except OSError as error:
            raise UsageError(
                f"cannot write to {self.path}: {error.strerror or error}; earlier records are kept"
            ) from error


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run folder, of this or an older schema, or a file that `pytest --benchmark-json` wrote.

    Raises:
        UnreadableRun: the folder holds no run, or one that is damaged or written by a newer version; or the
            file is none of pytest-benchmark's.
    """
    folder = Path(path)
    if os.path.isfile(folder):  # noqa: PTH113 (Path's raises for odd names)
        if folder.suffix != ".json" or folder.name == RUN_FILE:
            raise UnreadableRun(f"{folder} is a file: a run is the folder that holds its {RUN_FILE}")
        return Run(folder, *benchmark_json.read(folder))
    try:
        meta = parse(reading.read(folder / RUN_FILE))
    except FileNotFoundError:
        raise UnreadableRun(f"{folder} is not a run folder (it has no {RUN_FILE}){_inside(folder)}") from None
    except OSError as error:
        raise UnreadableRun(f"cannot read {folder / RUN_FILE}: {error.strerror or error}") from error
    except ValueError as error:
        raise UnreadableRun(f"{folder / RUN_FILE} is damaged: {error}") from error
    if not isinstance(meta, dict) or not isinstance(meta.get("schema_version"), int):
        raise UnreadableRun(f"{folder / RUN_FILE} is not a run of ssmperf")
    if meta["schema_version"] > SCHEMA_VERSION:
        raise UnreadableRun(
            f"{folder} has schema {meta['schema_version']}; this ssmperf reads up to "
            f"{SCHEMA_VERSION}: upgrade ssmperf"
        )
    for name in ("environments", "suites", "plan"):
        if not isinstance(meta.get(name, {}), dict):
            raise UnreadableRun(f"{folder / RUN_FILE} is damaged: {name} is no object")
    for name in ("environments", "suites"):
        for key, value in meta.get(name, {}).items():
            if not isinstance(value, dict):
                raise UnreadableRun(f"{folder / RUN_FILE} is damaged: {name}/{key} is no object")
    warnings: list[str] = []
    rounds = by_case(watched(_read_records(folder / RECORDS_FILE, warnings), meta))
    several = any(len(each) > 1 for each in rounds.values())
    fields = rank_fields(meta) if several else declared_ranks(meta)  # the first imports the suites
    ranks = {id_: fields.get(each[0].case.suite) for id_, each in rounds.items()}
    records = [fold(each, ranks[id_]) for id_, each in rounds.items()]
    faults = [(record, why) for record in records if (why := fault(record, ranks[record.case.id]))]
    if faults:
        said = some([f"{one_line(str(record.case))}: {why}" for record, why in faults])
        warnings.append(f"{folder}: what it says of {counted(faults)} contradicts itself: {said}")
    return Run(folder, meta, records, warnings, rounds)


def counted(cases: Sequence[Any]) -> str:
    """Say how many cases there are."""
    return f"{len(cases):,} case{'s' if len(cases) != 1 else ''}"


def some(texts: Sequence[str]) -> str:
    """List the first three of several texts, and say how many there are besides."""
    more = f"; and {len(texts) - MOST_NAMED:,} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more


def _plan(case_ids: Sequence[str]) -> dict[str, Any]:
    return {"cases": len(case_ids), "case_ids": case_ids}


def planned(meta: Mapping[str, Any]) -> list[str]:
    """List the ids of the cases that a run is to have; none if its `run.json` does not say."""
    plan = meta.get("plan")
    found = plan.get("case_ids") if isinstance(plan, Mapping) else None
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _read_records(path: Path, warnings: list[str]) -> Iterator[Record]:
    """Read records one by one. A torn last line is a warning."""
    lines = reading.lines(path)
    try:
        for number, line in enumerate(lines, start=1):
            odd: set[str] = set()
            try:
                data = parse(line, odd=odd)
            except ValueError as error:
                if next(lines, None) is None:
                    warnings.append(f"{path}: the last line was torn and is left out")
                    return
                raise UnreadableRun(f"{path}, line {number}: not JSON: the file is damaged") from error
            try:
                record = Record.from_json(data)
            except UnreadableRun as error:
                raise UnreadableRun(f"{path}, line {number}: {error}") from error
            odd = {name for name in odd if name.endswith("_s")}
            yield noted(record, f"its {min(odd)} is no finite number") if odd else record
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnreadableRun(f"cannot read {path}: {error.strerror or error}") from error


def _inside(folder: Path) -> str:
    """Say which runs lie in a folder that is none; empty if there are none."""
    try:
        runs = sorted(each.name for each in folder.iterdir() if (each / RUN_FILE).is_file())
    except OSError:
        return ""
    named = ", ".join(map(one_line, runs[-3:]))
    return f"; {len(runs)} are inside, such as {named}: name one" if runs else ""


def _repair_last_line(path: Path) -> None:
    """Cut off a torn last line, or end a complete one, so that the next record starts on a new line."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content:
        return
    start = content.removesuffix(b"\n").rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:
        os.truncate(path, start)
    else:
        if not content.endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")


def _open(path: Path) -> int:
    """Open the records file for appending; it stays locked until the descriptor is closed.

    Raises:
        UsageError: another process holds the lock.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK  # no pipe is waited for
    descriptor = os.open(path / RECORDS_FILE, flags, 0o644)
    with _closed_on_failure(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another run is writing to {path}") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    return descriptor


@contextlib.contextmanager
def _closed_on_failure(descriptor: int) -> Iterator[int]:
    """Keep a descriptor open beyond the block, unless the block raises."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def _write_atomically(path: Path, data: Mapping[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
