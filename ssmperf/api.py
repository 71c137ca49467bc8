"""The Python interface: run, load, models, backends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ssmperf import devices as devices_
from ssmperf import registry, store
from ssmperf.axes import parse_axes
from ssmperf.case import Case
from ssmperf.command import repeating
from ssmperf.errors import UsageError
from ssmperf.execute.local import Events, LocalExecutor
from ssmperf.plan import Plan, Selection, make_plan
from ssmperf.record import Record, Status
from ssmperf.recurrence import Backend, ModelEntry
from ssmperf.store import RUN_FILE, Run, Writer
from ssmperf.tuning import CURATED, META, Tuning, resumed
from ssmperf.tuning import write as write_tuning

Names = str | Sequence[str]
DEFAULT_TIMEOUT_S = 180.0
EXECUTORS = ("local",)
NAMED = {  # options that name one or several things, and the field of a selection that holds the names
    "models": "models",
    "backends": "backends",
    "dtype": "dtypes",
    "pass_": "passes",
    "regime": "regimes",
    "gate_dtype": "gate_dtypes",
    "layout": "layouts",
}
# The smoke shapes are too small to share, and threads that wait for each other show any neighbour.
SMOKE_THREADS = 1
SAMPLING_S = {"smoke": (0.01, 0.1), "standard": (0.05, 0.2), "long": (0.05, 1.0)}  # least, most


class Progress(Protocol):
    """Told how a run goes; called from several threads, one call at a time."""

    def begin(self, total: int, done: int) -> None: ...
    def start(self, case: Case, device: str) -> None: ...
    def doing(self, case: Case, what: str) -> None: ...
    def finish(self, record: Record) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to run what a selection names, and the folder to write; see `run`.

    Raises:
        UsageError: no such executor, or a timeout that is no positive number of seconds.
    """

    out: Path
    devices: tuple[str, ...] = ("cpu",)
    executor: str = "local"
    timeout_s: float = DEFAULT_TIMEOUT_S
    tag: str | None = None
    resume: bool = False
    argv: tuple[str, ...] = ()
    tuning: Tuning = CURATED

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UsageError(f"unknown executor {self.executor!r} (valid: {', '.join(EXECUTORS)})")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"the timeout must be above 0 seconds and finite, got {self.timeout_s:g}")


def select(
    *, device: str = "auto", devices: Sequence[int] | None = None, axis: Names = (), **choices: Any
) -> tuple[Selection, tuple[str, ...]]:
    """The selection of these choices, named as in `run`, and the torch devices to run it on."""
    chosen = tuple(devices) if devices is not None else None
    type_, found = devices_.resolve(device, chosen)
    for option, field in NAMED.items():
        given = names(choices.pop(option, None))
        if given is not None:
            choices[field] = given
    axes = parse_axes([axis] if isinstance(axis, str) else axis)
    return Selection(device=devices_.describe(type_, found), axes=axes, **choices), tuple(found)


def run(
    suite: Names = "throughput",
    *,
    models: Names | None = None,
    backends: Names | None = None,
    preset: str | None = None,
    axis: Names = (),
    dtype: Names | None = None,
    pass_: Names | None = None,
    device: str = "auto",
    devices: Sequence[int] | None = None,
    executor: str = "local",
    plugin: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    timeout: float = DEFAULT_TIMEOUT_S,
    regime: Names | None = None,
    gate_dtype: Names = "float32",
    layout: Names = "channels_last",
    level: str = "op",
    timing: str = "native",
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    tag: str | None = None,
    resume: bool = False,
    autotune: bool = False,
    configurations: str | os.PathLike[str] | None = None,
    write_configurations: str | os.PathLike[str] | None = None,
) -> Run:
    """Measure a selection of cases and return the run. Arguments are named as on the command line.

    Args:
        suite, models, backends, dtype, pass_, regime, gate_dtype, layout: a name, names separated by
            commas, or a sequence of names; None is the suite's default.
        preset: smoke, standard or long; by default smoke on the CPU and standard on a GPU.
        axis: sizes of dimensions, such as "T=64:1024:x2" or ["T=64,128", "B=1"].
        device: "auto", "cpu", "cuda" or "cuda:N". devices: several CUDA indices, a worker each.
        level: "op", the recurrence alone on the model's operands, or "block", the model's whole layer.
        plugin: Python files whose backends, models or suites take part. Their code is run.
            Workers load these and all files that this process has loaded so.
        timeout: longest that one case may take, in seconds.
        out: the run's folder; a new one under `runs/` if None. resume: continue that folder.
        autotune: time cases with the configurations that a search finds, and not with curated ones.
        configurations: file of those to use. write_configurations: file for what the search finds.

    Raises:
        UsageError: an unknown name, an empty selection, an unusable folder.
    """
    files = [plugin] if isinstance(plugin, (str, os.PathLike)) else list(plugin)
    for file in files:
        registry.load_plugin(file)
    suites = names(suite) or ()
    selection, found = select(
        device=device,
        devices=devices,
        axis=axis,
        models=models,
        backends=backends,
        preset=preset,
        dtype=dtype,
        pass_=pass_,
        regime=regime,
        gate_dtype=gate_dtype,
        layout=layout,
        level=level,
        timing=timing,
        seed=seed,
    )
    tuning = Tuning.of(autotune, configurations, write_configurations)
    path = folder(out, suites, resume=resume)
    options = Options(path, found, executor, timeout, tag, resume, tuning=tuning)
    return execute(selection, suites, options)


def names(given: Names | None) -> tuple[str, ...] | None:
    """A name, comma-separated names or a sequence of names as a tuple without repetitions.

    Raises:
        UsageError: no name in it.
    """
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"expected names, got {given!r}")
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise UsageError(f"expected names separated by commas, got {given!r}")
    return found


def folder(out: str | os.PathLike[str] | None, suites: Sequence[str], *, resume: bool = False) -> Path:
    """The folder of a run: `out`, or a new one under `runs/` named after the time and the suites.

    Raises:
        UsageError: a run to resume must be named.
    """
    if out is not None:
        return Path(out)
    if resume:
        raise UsageError("--resume needs --out, the folder of the run to continue")
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{'-'.join(suites)}"
    candidates = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))]
    return next(path for path in candidates if not path.exists())


def run_folders(parent: str | os.PathLike[str] = "runs") -> list[Path]:
    """The run folders in a folder, oldest first.

    Raises:
        UsageError: there is none.
    """
    found = sorted(file.parent for file in Path(parent).glob(f"*/{RUN_FILE}"))
    if not found:
        raise UsageError(f"no run folder in {parent}/: name one, or make one with `ssmperf run`")
    return found


def execute(
    selection: Selection, suites: Sequence[str], options: Options, progress: Progress | None = None
) -> Run:
    """Plan, run and store: what `run` and the command line share."""
    if registry.loading():
        raise UsageError('a plug-in must not start a run when it is loaded (use if __name__ == "__main__")')
    planned = make_plan(selection, suites)
    path = options.out
    if options.resume:
        options = replace(options, tuning=resumed(options.tuning, path))
    meta = _meta(planned, suites, options)
    earlier: list[Record] = []
    if options.resume:
        writer, before = Writer.resume(path, meta)
        earlier = before.records
    else:
        writer = Writer.create(path, meta)
    try:
        _run_plan(planned, selection, options, writer, {record.case.id for record in earlier}, progress)
    finally:
        writer.close()
    result = store.load(path)
    write_tuning(result, options.tuning)
    return result


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run folder. Raises UnreadableRun."""
    return store.load(path)


def models() -> list[ModelEntry]:
    """All registered models, in alphabetical order."""
    return list(registry.models().values())


def backends(model_or_recurrence: str) -> list[Backend]:
    """All backends of a model or recurrence that this machine can import, by name.

    Raises:
        UnknownName: neither a model nor a recurrence.
    """
    return registry.backends(model_or_recurrence)


def _run_plan(
    plan: Plan,
    selection: Selection,
    options: Options,
    writer: Writer,
    done: set[str],
    progress: Progress | None,
) -> None:
    lock = threading.Lock()

    def finish(record: Record) -> None:
        with lock:
            writer.append(record)
            if progress:
                progress.finish(record)

    def start(case: Case, device: str) -> None:
        if progress:
            with lock:
                progress.start(case, device)

    def doing(case: Case, what: str) -> None:
        if progress:
            with lock:
                progress.doing(case, what)

    def note(env_id: str, environment: Mapping[str, Any]) -> None:
        with lock:
            writer.add_environment(env_id, environment)

    plugins = registry.plugins()
    least, most = SAMPLING_S[selection.preset_name]
    executor = LocalExecutor(
        devices=options.devices,
        log_dir=writer.path / "logs",
        timeout_s=options.timeout_s,
        min_time_s=least,
        max_time_s=most,
        plugins=plugins,
        threads=SMOKE_THREADS if selection.preset_name == "smoke" else None,
        tuning=options.tuning,
    )
    if progress:
        progress.begin(len(plan.cases), sum(item.case.id in done for item in plan.cases))
    try:
        for item in plan.refused:
            if item.case.id not in done:
                command = repeating(item.case, plugins, selection.preset, options.tuning.options)
                finish(Record(item.case, Status.UNSUPPORTED, item.refusal, None, {"command": command}))
        todo = [case for case in plan.to_run if case.id not in done]
        executor.run(todo, Events(note, start, finish, doing))
    finally:
        if progress:
            progress.end()


def _meta(plan: Plan, suites: Sequence[str], options: Options) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tag": options.tag,
        "argv": list(options.argv),
        META: options.tuning.to_json(),
        "suites": {name: registry.suite(name).section.to_json() for name in suites},
        "plan": {"cases": len(plan.cases), "case_ids": [item.case.id for item in plan.cases]},
    }
