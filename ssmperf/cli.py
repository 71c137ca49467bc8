"""The command line: one function per verb, without logic of its own.

Nothing here imports torch before a verb runs.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ssmperf.cases.failure import failure_of
from ssmperf.cases.place import place_of
from ssmperf.errors import ExitCode, SsmperfError, UsageError
from ssmperf.terminal.axis_options import with_axes
from ssmperf.terminal.options import (
    Debug,
    Force,
    Json,
    Plugins,
    Precision,
    Rounds,
    Samples,
    Threshold,
    Time,
)

if TYPE_CHECKING:
    from ssmperf.runs.comparison import RunComparison

app = typer.Typer(
    name="ssmperf",
    help="Benchmark and profile the linear recurrences inside sequence models.",
    epilog="Exit codes: 0 fine; 1 a regression; 2 wrong usage or unreadable input; "
    "3 a wrong, crashed or missing case; 4 cannot tell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Listing(StrEnum):
    """The lists of `ssmperf list`."""

    MODELS = "models"
    BACKENDS = "backends"
    SUITES = "suites"
    SHAPES = "shapes"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Benchmark and profile the linear recurrences inside sequence models."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"ssmperf {installed('ssmperf')}")
        raise typer.Exit


@app.command(
    "list",
    epilog="Examples:  ssmperf list models  ·  ssmperf list backends --json  ·  ssmperf list pese_lr",
)
def list_(
    what: Annotated[
        str, typer.Argument(help="models, backends, suites or shapes; or one model, with its options.")
    ] = Listing.MODELS,
    as_json: Json = False,
    plugin: Plugins = None,
    debug: Debug = False,
) -> None:
    """List models, backends, suites or shapes, and what of them is available here; or describe one model."""
    from ssmperf.terminal import listing

    _load_plugins(plugin)
    if what not in [each.value for each in Listing]:
        described = listing.model(what)
        typer.echo(json.dumps(described, indent=2) if as_json else listing.as_text(described))
        return
    entries = getattr(listing, what)()
    typer.echo(json.dumps(entries, indent=2) if as_json else listing.as_table(what, entries))


@app.command(
    epilog="Examples:  ssmperf run --suite throughput  ·  ssmperf run --suite correctness,throughput "
    "--models gla --axis T=1024:65536:x2 --dtype bfloat16  ·  "
    "ssmperf run --suite correctness --plugin my_kernel.py"
)
@with_axes
def run(
    suite: Annotated[str | None, typer.Option(help="Suites, separated by commas. Required.")] = None,
    models: Annotated[
        str | None,
        typer.Option(help="Models, separated by commas, with options as pese_lr:n=8. Default: all."),
    ] = None,
    backends: Annotated[str | None, typer.Option(help="Backends, separated by commas. Default: all.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="smoke, standard or long. Default: smoke on the CPU, standard on a GPU."),
    ] = None,
    axis: Annotated[
        list[str] | None, typer.Option(help="A dimension's sizes: T=1024:65536:x2, B=1,2,4. May be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    devices: Annotated[str | None, typer.Option(help="CUDA indices, one worker per device: 0,1,2,3.")] = None,
    plugin: Plugins = None,
    timeout: Annotated[float, typer.Option(help="Longest time that one case may take, in seconds.")] = 180.0,
    rounds: Rounds = None,
    time: Time = None,
    precision: Precision = None,
    samples: Samples = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and measure nothing.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 if a case is neither ok nor unsupported.")
    ] = False,
    debug: Debug = False,
    **axes: Any,
) -> None:
    """Measure the selected models and backends, and write a run folder."""
    from ssmperf.execute.request import Request
    from ssmperf.execute.run import execute
    from ssmperf.plan.plan import make_plan
    from ssmperf.terminal import display
    from ssmperf.tune import files

    _load_plugins(plugin)
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
        argv=sys.argv[1:],
        **axes,
    )
    if dry_run:
        typer.echo(display.plan(make_plan(request.selection, request.suites)))
        return
    try:
        result = execute(request, display.progress(debug=debug))
    except KeyboardInterrupt:
        path = request.out
        go_on = f"what was measured is kept; continue with --resume --out {shlex.quote(str(path))}"
        _fail(f"interrupted; {go_on}" if path.exists() else "interrupted", ExitCode.INTERRUPTED)
    display.table([result])
    for line in (*files.summary(result, write_configurations), display.closing(result)):
        typer.echo(line)
    if strict and display.bad_cases(result):
        raise typer.Exit(ExitCode.BAD_CASE)


@app.command(
    epilog="Examples:  ssmperf report runs/20260101-120000-throughput  ·  "
    "ssmperf report RUN1 RUN2 --html both.html"
)
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="markdown, csv, parquet or json. Default: a table.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for --format. Default: standard output.")] = None,
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="Write PNG and SVG figures.")] = None,
    debug: Debug = False,
) -> None:
    """Show runs as a table, or write them as HTML, Markdown, CSV, Parquet, JSON or figures."""
    from ssmperf import api
    from ssmperf.terminal import display

    loaded = [api.load(path) for path in runs]
    for warning in (warning for run in loaded for warning in run.warnings):
        typer.echo(f"warning: {warning}", err=True)
    wanted: list[tuple[str, Path | None]] = [("html", html)] if html else []
    wanted += [("figures", figures)] if figures else []
    wanted += [(format_, out)] if format_ else []
    if not wanted:
        display.table(loaded)
    for name, destination in wanted:
        display.write_report(name, loaded, destination)


@app.command(epilog="Example:  ssmperf compare runs/before runs/after --html both.html")
def compare(
    base: Annotated[Path, typer.Argument(help="Folder of the run to compare with.")],
    new: Annotated[Path, typer.Argument(help="Folder of the other run.")],
    threshold: Threshold = "5%",
    force: Force = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write both as one HTML page.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two runs, with one verdict per case. The exit codes are those of `check`."""
    from ssmperf.terminal import display

    found = _compared(base, new, threshold, force, as_json)
    if html:
        display.write_report("html", [found.base, found.new], html)
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example:  ssmperf check runs/pull-request --baseline runs/main --junit check.xml")
def check(
    new: Annotated[Path, typer.Argument(help="Folder of the run to check.")],
    baseline: Annotated[Path, typer.Option(help="Folder of the run to compare it with.")],
    threshold: Threshold = "5%",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary for a pull request.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Fail on a regression: exit 1 if slower, 3 if wrong, lost or missing, 4 if it cannot tell."""
    from ssmperf.terminal import display

    found = _compared(baseline, new, threshold, force, as_json)
    for name, destination in (("junit", junit), ("summary", summary)):
        if destination:
            display.write_report(name, found, destination, of="comparison")
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example:  ssmperf best runs/20260101-120000-throughput --json")
def best(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="Run folders. Default: all in runs/.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the fastest correct backend for each model, shape, dtype and pass of runs.

    A backend that is wrong in another pass there, or in correctness, does not compete. One that is
    approximate by declaration, or computes another function, is shown beside the others. Overlapping
    intervals are a tie.
    """
    from ssmperf import api
    from ssmperf.terminal import display

    loaded = [api.load(path) for path in runs or api.run_folders()]
    display.write_report("best_json" if as_json else "best", loaded, None)


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

    _load_plugins(plugin)
    selection, devices = select(
        device=device, models=model, backends=backend, preset=preset, axis=axis or (), **axes
    )
    found = kernels.profile(selection, devices[0], out or run_folder(None, ("profile",)))
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else kernels.as_text(found))


@app.command(epilog="Example:  ssmperf doctor --json")
def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show installed packages, backends that can run here, and this machine's measured ceilings."""
    from ssmperf.terminal import doctor as diagnosis

    found = diagnosis.examine(device)
    typer.echo(json.dumps(found, indent=2) if as_json else diagnosis.as_text(found))


def main() -> None:
    """Run the command line. An error is one line on stderr; --debug adds its traceback."""
    if _completing():
        app()
        return
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    except SsmperfError as error:
        _fail(str(error), error.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own usage errors
            _fail(error.format_message(), ExitCode.USAGE)
        place = place_of(error)
        whose = "" if place and place.of_author else "internal error: "
        _fail(f"{whose}{failure_of(error).reason} (--debug shows the traceback)", ExitCode.BAD_CASE)
    if code == ExitCode.INTERRUPTED:  # typer's answer to Ctrl-C
        _fail("interrupted", ExitCode.INTERRUPTED)
    sys.exit(int(code) if isinstance(code, int) else ExitCode.OK)


def _completing() -> bool:
    return "_SSMPERF_COMPLETE" in os.environ


def _fail(message: str, code: int) -> NoReturn:
    """Exit with one line on stderr; with --debug, print the traceback of the current exception first."""
    if "--debug" in sys.argv and sys.exc_info()[0]:
        traceback.print_exc()
    typer.echo(f"ssmperf: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _compared(base: Path, new: Path, threshold: str, force: bool, as_json: bool) -> RunComparison:
    """Compare two run folders and show the result."""
    from ssmperf import api
    from ssmperf.runs import comparison
    from ssmperf.terminal import display

    loaded = [api.load(path) for path in (base, new)]
    for warning in (warning for run in loaded for warning in run.warnings):
        typer.echo(f"warning: {warning}", err=True)
    found = comparison.compare_runs(*loaded, threshold=comparison.parse_threshold(threshold), force=force)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        display.write_report("table", found, None, of="comparison")
    return found


def _load_plugins(paths: list[Path] | None) -> None:
    from ssmperf import registry

    for path in paths or ():
        registry.load_plugin(path)


def _indices(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--devices takes CUDA indices such as 0,1,2, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


if __name__ == "__main__":
    main()
