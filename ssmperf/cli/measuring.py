"""The verbs that measure: run, profile, diagnose, calibrate, doctor."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.cli.app import app, interrupted, load_plugins, loaded
from ssmperf.errors import ExitCode, UsageError
from ssmperf.plan.selection import NAMED
from ssmperf.terminal.axis_options import with_axes
from ssmperf.terminal.options import (
    Backends,
    Corpus,
    Debug,
    Json,
    Layers,
    Models,
    OneDevice,
    Plugins,
    Precision,
    Preset,
    Rates,
    Rounds,
    Samples,
    Seeds,
    SideBySide,
    Sizes,
    TestBackend,
    Time,
    Timeout,
    Updates,
)


@app.command(
    epilog="Examples:  ssmperf run --suite throughput  ·  ssmperf run --suite correctness,throughput "
    "--models gla --axis T=1024:65536:x2 --dtype bfloat16  ·  "
    "ssmperf run --suite correctness --plugin my_kernel.py"
)
@with_axes
def run(
    suite: Annotated[str | None, typer.Option(help="Suites, separated by commas, or all. Required.")] = None,
    models: Models = None,
    backends: Backends = None,
    preset: Preset = None,
    axis: Sizes = None,
    device: OneDevice = "auto",
    devices: Annotated[str | None, typer.Option(help="CUDA indices, one worker per device: 0,1,2,3.")] = None,
    plugin: Plugins = None,
    timeout: Timeout = 180.0,
    rounds: Rounds = None,
    time: Time = None,
    precision: Precision = None,
    samples: Samples = None,
    updates: Updates = None,
    seeds: Seeds = None,
    rates: Rates = None,
    layers: Layers = None,
    corpus: Corpus = None,
    test_backend: TestBackend = None,
    side_by_side: SideBySide = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/<time>-<suite>.")] = None,
    tag: Annotated[str | None, typer.Option(help="A name for the run, shown in reports.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    autotune: Annotated[
        bool, typer.Option("--autotune", help="Search for kernels' configurations before timing a case.")
    ] = False,
    configurations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kernels' configurations to use.")
    ] = None,
    write_configurations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the configurations that --autotune finds.")
    ] = None,
    nonce: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="Secret on which all values depend, to repeat a run's case."),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Measure other people's kernels, too. Naming one does as well.")
    ] = False,
    judged_at: Annotated[
        str,
        typer.Option(
            metavar="ANSWER",
            help="Where --axis names T, suites that rank nothing judge at the T that is named, at their own, "
            "or at both: named, own, both.",
        ),
    ] = NAMED,
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
    **axes: Any,
) -> None:
    """Measure the selected models and backends, and write a run folder."""
    from ssmperf.execute.request import Request
    from ssmperf.execute.run import execute
    from ssmperf.terminal import display
    from ssmperf.tune import files

    load_plugins(plugin)
    request = Request.of(
        suite,
        models=models,
        backends=backends,
        preset=preset,
        axis=axis or (),
        device=device,
        devices=_indices(devices),
        timeout=timeout,
        out=out,
        tag=tag,
        resume=resume,
        autotune=autotune,
        configurations=configurations,
        write_configurations=write_configurations,
        nonce=nonce,
        rounds=rounds,
        time=time,
        precision=precision,
        samples=samples,
        updates=updates,
        seeds=seeds,
        rates=rates,
        layers=layers,
        corpus=corpus,
        test_backend=test_backend,
        side_by_side=side_by_side,
        argv=sys.argv[1:],
        peers=peers,
        judged_at=judged_at,
        planning=dry_run,
        **axes,
    )
    if dry_run:
        print(display.plan(request))
        return
    try:
        result = execute(request, display.progress(debug=debug))
    except KeyboardInterrupt:
        interrupted(request.out)
    display.table([result])
    notes = (*files.summary(result, write_configurations), *display.warnings(result))
    for line in (*notes, display.closing(result)):
        print(line)
    if strict and display.bad_cases(result):
        raise typer.Exit(ExitCode.BAD_CASE)


@app.command(epilog="Example:  ssmperf profile gla chunkwise --axis T=4096 --pass backward --out traces")
@with_axes
def profile(
    model: Annotated[str, typer.Argument(help="A model or recurrence.")],
    backend: Annotated[str, typer.Argument(help="One of its backends.")],
    preset: Annotated[str | None, typer.Option(help="smoke, standard or long.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="A dimension's size: T=4096.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for trace.json and profile.json.")] = None,
    plugin: Plugins = None,
    as_json: Json = False,
    debug: Debug = False,
    **axes: Any,
) -> None:
    """Show the kernels of one call: time, launches, registers and spills; write a trace for Perfetto."""
    from ssmperf.execute.request import run_folder, select
    from ssmperf.measure import kernels

    load_plugins(plugin)
    selection, devices = select(
        device=device, models=model, backends=backend, preset=preset, axis=axis or (), **axes
    )
    found = kernels.profile(selection, devices[0], out or run_folder(None, ("profile",)))
    print(json.dumps(found.to_json(), indent=2) if as_json else kernels.as_text(found))


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
    from ssmperf.terminal import examination

    load_plugins(plugin)
    (given,) = loaded(run)
    record = examination.find(given, case)
    found = examination.examine(given, record)
    if as_json:
        typer.echo(json.dumps(examination.as_json(record, found), indent=2, allow_nan=False))
    else:
        typer.echo(examination.as_text(record, found))


@app.command(epilog="Examples:  ssmperf calibrate  ·  ssmperf calibrate --rounds 20 --models gla")
def calibrate(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    rounds: Annotated[int, typer.Option(help="Number of rounds, each in fresh processes.")] = 10,
    models: Annotated[str | None, typer.Option(help="Models, separated by commas.")] = None,
    backends: Annotated[str | None, typer.Option(help="Backends, separated by commas.")] = None,
    preset: Annotated[str | None, typer.Option(help="smoke, standard or long.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="A dimension's sizes: T=1024,4096.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtypes: float64, float32, bfloat16, float16.")] = None,
    time: Time = None,
    out: Annotated[Path | None, typer.Option(help="The rounds' folder. Default: in runs/.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure how much equal processes differ on this machine, and keep it for `check` and `compare`.

    Without models, backends and axis, a few cases of each kind are chosen.
    """
    from ssmperf.terminal import calibration, display
    from ssmperf.versions import calibrate as work

    done = work.calibrate(
        rounds=rounds,
        device=device,
        models=models,
        backends=backends,
        preset=preset,
        axis=axis or (),
        dtype=dtype,
        time=time,
        out=out,
        argv=sys.argv[1:],
        progress=display.progress(),
    )
    print(json.dumps(calibration.as_json(done), indent=2) if as_json else calibration.as_text(done))


@app.command(epilog="Example:  ssmperf doctor --json")
def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show installed packages, backends that can run here, this machine's measured ceilings, its noise."""
    from ssmperf.terminal import doctor as diagnosis

    found = diagnosis.examine(device)
    print(json.dumps(found, indent=2) if as_json else diagnosis.as_text(found))


def _indices(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise UsageError(f"--devices takes CUDA indices such as 0,1,2, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))
