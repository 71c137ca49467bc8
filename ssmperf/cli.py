"""The command line: one function a verb, no logic of its own.

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
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ssmperf.errors import SsmperfError, UsageError

if TYPE_CHECKING:
    from ssmperf.comparison import Comparison

EXIT_OK, EXIT_USAGE, EXIT_BAD_CASE, EXIT_INTERRUPTED = 0, 2, 3, 130

app = typer.Typer(
    name="ssmperf",
    help="Benchmarks and profiles the linear recurrences inside sequence models.",
    epilog="Exit codes: 0 fine; 1 a regression; 2 wrong usage or unreadable input; "
    "3 a wrong, crashed or missing case; 4 cannot tell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="Python file with more backends, models or suites. Runs its code."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Threshold = Annotated[str, typer.Option(help="Largest change that counts as none, such as 5% or 0.05.")]
Force = Annotated[
    bool, typer.Option("--force", help="Compare times although device, driver or versions differ.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


class Listing(StrEnum):
    """What `ssmperf list` can list."""

    MODELS = "models"
    BACKENDS = "backends"
    SUITES = "suites"
    SHAPES = "shapes"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Benchmarks and profiles the linear recurrences inside sequence models."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"ssmperf {installed('ssmperf')}")
        raise typer.Exit


@app.command("list", epilog="Examples:  ssmperf list models  ·  ssmperf list backends --json")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.MODELS,
    as_json: Json = False,
    plugin: Plugins = None,
    debug: Debug = False,
) -> None:
    """List models, backends, suites or shapes, and what of them is available here."""
    from ssmperf import listing

    _load_plugins(plugin)
    entries = getattr(listing, what.value)()
    typer.echo(json.dumps(entries, indent=2) if as_json else listing.as_table(what.value, entries))


@app.command(
    epilog="Examples:  ssmperf run --suite throughput  ·  ssmperf run --suite correctness,throughput "
    "--models gla --axis T=1024:65536:x2 --dtype bfloat16  ·  "
    "ssmperf run --suite correctness --plugin my_kernel.py"
)
def run(
    suite: Annotated[str | None, typer.Option(help="Suites, separated by commas. Required.")] = None,
    models: Annotated[str | None, typer.Option(help="Models, separated by commas. Default: all.")] = None,
    backends: Annotated[str | None, typer.Option(help="Backends, separated by commas. Default: all.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="smoke, standard or long. Default: smoke on the CPU, standard on a GPU."),
    ] = None,
    axis: Annotated[
        list[str] | None, typer.Option(help="A dimension's sizes: T=1024:65536:x2, B=1,2,4. May be repeated.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtypes: float64, float32, bfloat16, float16.")] = None,
    passes: Annotated[
        str | None, typer.Option("--pass", help="Passes: forward, backward, forward_backward, decode.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    devices: Annotated[str | None, typer.Option(help="CUDA indices for a worker each: 0,1,2,3.")] = None,
    executor: Annotated[str, typer.Option(help="local.")] = "local",
    plugin: Plugins = None,
    timeout: Annotated[float, typer.Option(help="Longest that one case may take, in seconds.")] = 180.0,
    regime: Annotated[
        str | None,
        typer.Option(help="Gate regimes instead of the models' own operands, separated by commas."),
    ] = None,
    gate_dtype: Annotated[str, typer.Option(help="Dtypes of the log gates.")] = "float32",
    layout: Annotated[str, typer.Option(help="Layouts: channels_last, time_last.")] = "channels_last",
    level: Annotated[
        str, typer.Option(help="op, the recurrence alone, or block, the model's whole layer around it.")
    ] = "op",
    timing: Annotated[
        str, typer.Option(help="native, or end-to-end: with the layout changes that a peer's kernel needs.")
    ] = "native",
    seed: Annotated[int, typer.Option(help="Seed of parameters, text and states; not negative.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/<time>-<suite>.")] = None,
    tag: Annotated[str | None, typer.Option(help="A name for the run, shown in reports.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    autotune: Annotated[
        bool, typer.Option("--autotune", help="Search kernels' configurations before a case is timed.")
    ] = False,
    configurations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kernels' configurations to use.")
    ] = None,
    write_configurations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write what --autotune finds.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and measure nothing.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 if a case is neither ok nor unsupported.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Measure the selected models and backends, and write a run folder."""
    from ssmperf import api, display, tuning
    from ssmperf.plan import make_plan

    _load_plugins(plugin)
    chosen = tuning.Tuning.of(autotune, configurations, write_configurations)
    suites = api.names(suite) or ()
    selection, found = api.select(
        device=device,
        devices=_indices(devices),
        axis=axis or (),
        models=models,
        backends=backends,
        preset=preset,
        dtype=dtype,
        pass_=passes,
        regime=regime,
        gate_dtype=gate_dtype,
        layout=layout,
        level=level,
        timing=timing,
        seed=seed,
    )
    path = api.folder(out, suites, resume=resume)
    options = api.Options(path, found, executor, timeout, tag, resume, tuple(sys.argv[1:]), chosen)
    if dry_run:
        typer.echo(display.plan(make_plan(selection, suites)))
        return
    try:
        result = api.execute(selection, suites, options, display.progress())
    except KeyboardInterrupt:
        go_on = f"what was measured is kept; continue with --resume --out {shlex.quote(str(path))}"
        _fail(f"interrupted; {go_on}" if path.exists() else "interrupted", EXIT_INTERRUPTED)
    display.table([result])
    for line in (*tuning.summary(result, write_configurations), display.closing(result)):
        typer.echo(line)
    if strict and display.bad_cases(result):
        raise typer.Exit(EXIT_BAD_CASE)


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
    from ssmperf import api, display

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
    """Two runs side by side, with a verdict for each case. Exit codes as those of `check`."""
    from ssmperf import display

    found = _compared(base, new, threshold, force, as_json)
    if html:
        display.write_report("html", [found.base, found.new], html)
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example:  ssmperf check runs/pull-request --baseline runs/main --junit check.xml")
def check(
    new: Annotated[Path, typer.Argument(help="Folder of the run to check.")],
    baseline: Annotated[Path, typer.Option(help="Folder of the run that it is held to.")],
    threshold: Threshold = "5%",
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary for a pull request.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Fail on a regression: exit 1 if slower, 3 if wrong, lost or missing, 4 if one cannot tell."""
    from ssmperf import display

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
    """Show the fastest backend that is right, for each model, shape, dtype and pass of runs."""
    from ssmperf import api, display

    loaded = [api.load(path) for path in runs or api.run_folders()]
    display.write_report("best_json" if as_json else "best", loaded, None)


@app.command(epilog="Example:  ssmperf profile gla chunkwise --axis T=4096 --pass backward --out traces")
def profile(
    model: Annotated[str, typer.Argument(help="A model or recurrence.")],
    backend: Annotated[str, typer.Argument(help="One of its backends.")],
    preset: Annotated[str | None, typer.Option(help="smoke, standard or long.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="A dimension's size: T=4096.")] = None,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    pass_: Annotated[
        str, typer.Option("--pass", help="forward, backward, forward_backward or decode.")
    ] = "forward_backward",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    regime: Annotated[str | None, typer.Option(help="A gate regime instead of the model's operands.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for trace.json and profile.json.")] = None,
    plugin: Plugins = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the kernels of one call: time, launches, registers and spills; write a trace for Perfetto."""
    from ssmperf import api, profiling

    _load_plugins(plugin)
    selection, devices = api.select(
        device=device,
        models=model,
        backends=backend,
        preset=preset,
        axis=axis or (),
        dtype=dtype,
        pass_=pass_,
        regime=regime,
    )
    found = profiling.profile(selection, devices[0], out or api.folder(None, ("profile",), resume=False))
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else profiling.as_text(found))


@app.command(epilog="Example:  ssmperf doctor --json")
def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is installed, what can run here, and this machine's measured ceilings."""
    from ssmperf import diagnosis

    found = diagnosis.examine(device)
    typer.echo(json.dumps(found, indent=2) if as_json else diagnosis.as_text(found))


def main() -> None:
    """Run the command line; errors are one line on stderr, unless --debug."""
    if _completing():
        app()
        return
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_OK
    except SsmperfError as error:
        _fail(str(error), EXIT_USAGE)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own usage errors
            _fail(error.format_message(), EXIT_USAGE)
        _fail(f"internal error: {type(error).__name__}: {error} (--debug shows where)", EXIT_BAD_CASE)
    if code == EXIT_INTERRUPTED:  # typer's answer to Ctrl-C
        _fail("interrupted", EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else EXIT_OK)


def _completing() -> bool:
    return "_SSMPERF_COMPLETE" in os.environ


def _fail(message: str, code: int) -> NoReturn:
    """Exit with one line on stderr, after the traceback of what is being handled if --debug is given."""
    if "--debug" in sys.argv and sys.exc_info()[0]:
        traceback.print_exc()
    typer.echo(f"ssmperf: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _compared(base: Path, new: Path, threshold: str, force: bool, as_json: bool) -> Comparison:
    """Compare two run folders and show the result."""
    from ssmperf import api, comparison, display

    loaded = [api.load(path) for path in (base, new)]
    for warning in (warning for run in loaded for warning in run.warnings):
        typer.echo(f"warning: {warning}", err=True)
    found = comparison.compare(*loaded, threshold=comparison.parse_threshold(threshold), force=force)
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
