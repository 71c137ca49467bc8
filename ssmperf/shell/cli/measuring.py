"""The verbs that measure: run, profile, diagnose, calibrate, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmperf.engine.plan.run_options import RAY, Choices, RunOptions
from ssmperf.errors import ExitCode, UsageError
from ssmperf.shell.cli.app import app, fail, interrupted, load_plugins, loaded
from ssmperf.shell.terminal.declared_options import with_axes, with_run_options
from ssmperf.shell.terminal.options import Debug, Json, Plugins

if TYPE_CHECKING:
    from ssmperf.engine.plan import Selection
    from ssmperf.engine.processes.spares import Spares


@app.command(
    epilog="Examples:  ssmperf run --suite throughput  ·  ssmperf run --suite correctness,throughput "
    "--models gla --axis T=1024:65536:x2 --dtype bfloat16  ·  "
    "ssmperf run --suite correctness --plugin my_kernel.py"
)
@with_axes
@with_run_options()
def run(
    suite: Annotated[str | None, typer.Option(help="Suites, separated by commas, or all. Required.")] = None,
    plugin: Plugins = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/<time>-<suite>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan and its time, and measure nothing. Plans for a GPU without one."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 if a case is neither ok nor unsupported.")
    ] = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Measure the selected models and backends, and write a run folder."""
    with _spares(plugin, options, planning=dry_run) as spares:  # before anything here imports torch
        from ssmperf.engine.execute.request import Request
        from ssmperf.engine.execute.run import execute
        from ssmperf.engine.plan.parts.apart import planned_apart
        from ssmperf.engine.tune import files
        from ssmperf.shell.terminal import display
        from ssmperf.shell.terminal.expectation import say_if_long

        asked: dict[str, Any] = {"out": out, "resume": resume, "argv": sys.argv[1:], "planning": dry_run}
        ask = partial(Request.of, suite, **asked, **options)
        if dry_run:
            load_plugins(plugin)
            print(display.plan(ask()))
            return
        request, plan = planned_apart(plugin or (), ask)
        try:
            progress = display.progress(debug=debug)
            result = execute(request, progress, partial(say_if_long, request), plan, spares)
        except KeyboardInterrupt:
            display.measured(request.out)
            interrupted(request.out)
    display.table([result])
    notes = (*files.summary(result, options["write_configurations"]), *display.warnings(result))
    for line in (*notes, display.closing(result)):
        print(line)
    if strict and display.bad_cases(result):
        raise typer.Exit(ExitCode.BAD_CASE)


def _spares(plugins: list[Path] | None, options: Mapping[str, Any], *, planning: bool) -> Spares:
    """Start the nurseries of a run on this machine's devices, unless plug-ins have to be asked in a child.

    planning: whether nothing will run.
    """
    from ssmperf.engine import registry
    from ssmperf.engine.processes.spares import Spares, likely_devices

    if planning or plugins or registry.has_installed() or options["executor"] == RAY:
        return Spares(())
    try:
        chosen = Choices.taken_from({**options})
    except UsageError:  # the request says it, after what is wrong before
        return Spares(())
    return Spares(likely_devices(chosen.device, chosen.devices))


@app.command(
    epilog="Examples:  ssmperf profile gla chunkwise --axis T=4096 --pass backward --out traces  ·  "
    "ssmperf profile qwen3-next-80b:decode fla_recurrent  ·  "
    "ssmperf profile scan,selective_scan triton --host  ·  ssmperf profile gla triton,fla_triton --first-call"
)
@with_axes
@with_run_options(("preset", "axis", "device", "timeout"), timeout=None)
def profile(
    model: Annotated[
        str,
        typer.Argument(
            help="A model, recurrence or workload; several, separated by commas, for the options below."
        ),
    ],
    backend: Annotated[str, typer.Argument(help="One of its backends, or several.")],
    host: Annotated[
        bool,
        typer.Option("--host", help="Measure how long the host takes to issue a call to a GPU, instead."),
    ] = False,
    first_call: Annotated[
        bool,
        typer.Option(
            "--first-call",
            help="Time the first call in a fresh process with empty caches of compilers, and a later one, "
            "instead.",
        ),
    ] = False,
    counters: Annotated[
        bool,
        typer.Option("--counters", help="Read the GPU's counters of each kernel by Nsight Compute, instead."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files. Default: runs/<time>-profile.")
    ] = None,
    plugin: Plugins = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Show the kernels of one call: time, launches, registers and spills; write a trace for Perfetto.

    With --host, --first-call or --counters, measure each selected case so. Nothing is judged.
    """
    from ssmperf.authors.profiling import kinds
    from ssmperf.engine.execute.request import run_folder, select
    from ssmperf.engine.plan.workloads.phases import are_workloads
    from ssmperf.shell.terminal import display

    load_plugins(plugin)
    asked = {"host": host, "first-call": first_call, "counters": counters}
    kind = kinds.the_kind([name for name, wanted in asked.items() if wanted], options["timeout"])
    timeout_s = RunOptions.taken_from(options).timeout
    options["workload" if are_workloads(model) else "models"] = model
    selection, devices = select(backends=backend, **options)
    folder = out or run_folder(None, ("profile",))
    if kind is None:
        _trace(selection, devices[0], folder, as_json=as_json)
        return
    found = kinds.Measurement(kind, devices[0], folder)
    try:
        # a bar's thread would take part in what the host does
        kinds.measure(found, selection, timeout_s, display.LineProgress(debug))
    except KeyboardInterrupt:
        kept = f"; what was measured is in {found.file}" if found.records else ""
        fail(f"interrupted{kept}", ExitCode.INTERRUPTED)
    print(json.dumps(found.to_json(), indent=2, allow_nan=False) if as_json else kinds.as_text(found))
    if any(record.status not in display.FINE for record in found.records):
        raise typer.Exit(ExitCode.BAD_CASE)


def _trace(selection: Selection, device: str, folder: Path, *, as_json: bool) -> None:
    from ssmperf.authors.profiling import trace

    found = trace.profile(selection, device, folder)
    print(json.dumps(found.to_json(), indent=2) if as_json else trace.as_text(found))


@app.command(epilog="Example:  ssmperf diagnose runs/20260101-120000-correctness 3f2a1b9c")
def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    case: Annotated[str, typer.Argument(help="Id of one of its cases, or how it begins.")],
    plugin: Plugins = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Repeat one wrong case of a run, and say where its results are wrong and what explains it.

    The case runs in this process, on the values of its run, with the plug-ins of its run: their code is run.
    """
    from ssmperf.shell.terminal import examination

    load_plugins(plugin)
    (given,) = loaded(run)
    record = examination.find(given, case)
    found = examination.examine(given, record)
    if as_json:
        typer.echo(json.dumps(examination.as_json(record, found), indent=2, allow_nan=False))
    else:
        typer.echo(examination.as_text(record, found))


@app.command(epilog="Examples:  ssmperf calibrate  ·  ssmperf calibrate --rounds 20 --models gla")
@with_run_options(("models", "backends", "preset", "axis", "device", "rounds", "time"), rounds=10)
def calibrate(
    dtype: Annotated[str | None, typer.Option(help="Dtypes: float64, float32, bfloat16, float16.")] = None,
    out: Annotated[Path | None, typer.Option(help="The rounds' folder. Default: in runs/.")] = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Measure how much equal processes differ on this machine, and keep it for `check` and `compare`.

    Without models, backends and axis, a few cases of each kind are chosen.
    """
    from ssmperf.comparison.versions import calibrate as work
    from ssmperf.shell.terminal import calibration, display

    done = work.calibrate(dtype=dtype, out=out, argv=sys.argv[1:], progress=display.progress(), **options)
    print(json.dumps(calibration.as_json(done), indent=2) if as_json else calibration.as_text(done))


@app.command(epilog="Example:  ssmperf doctor --json")
@with_run_options(("device",))
def doctor(as_json: Json = False, debug: Debug = False, **options: Any) -> None:
    """Show installed packages, backends that can run here, this machine's measured ceilings, its noise."""
    from ssmperf.shell.terminal import doctor as diagnosis

    found = diagnosis.examine(options["device"])
    print(json.dumps(found, indent=2) if as_json else diagnosis.as_text(found))
