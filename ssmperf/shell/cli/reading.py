"""The verbs that show what is known: list, report, best."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmperf.engine import registry
from ssmperf.errors import UsageError
from ssmperf.shell.cli.app import app, load_plugins, loaded
from ssmperf.shell.terminal.declared_options import with_run_options
from ssmperf.shell.terminal.options import Debug, Force, Json, Plugins

if TYPE_CHECKING:
    from ssmperf.engine.runs.store import Run


class Listing(StrEnum):
    """The lists of `ssmperf list`."""

    MODELS = "models"
    BACKENDS = "backends"
    SUITES = "suites"
    SHAPES = "shapes"
    WORKLOADS = "workloads"


@app.command(
    "list",
    epilog="Examples:  ssmperf list models  ·  ssmperf list backends --json  ·  ssmperf list pese_lr",
)
def list_(
    what: Annotated[
        str, typer.Argument(help="models, backends, suites, shapes or workloads; or one model or workload.")
    ] = Listing.MODELS,
    wide: Annotated[
        bool, typer.Option("--wide", help="Models with a column per backend, and papers.")
    ] = False,
    as_json: Json = False,
    plugin: Plugins = None,
    debug: Debug = False,
) -> None:
    """List models, backends, suites, shapes or workloads; or describe one model or workload."""
    if _lists_workloads(what, as_json=as_json):
        return
    from ssmperf.shell.terminal.lists import listing, summary

    load_plugins(plugin)
    lists = [each.value for each in Listing]
    if f"{what}s" in lists:
        raise UsageError(f"there is no list {what!r}; did you mean {what}s?")
    if what in registry.recurrences():
        raise UsageError(f"{what} is a recurrence, and list describes models: `list models` names theirs")
    if summary.is_family(what) and not as_json:
        print(summary.table(what))
        return
    if what not in lists:
        described = listing.model(what)
        print(json.dumps(listing.with_costs(described), indent=2) if as_json else listing.as_text(described))
        return
    if what == Listing.MODELS and not (wide or as_json):
        print(summary.table())
        return
    entries = getattr(listing, what)()
    if not as_json:
        print(listing.as_table(what, entries))
        return
    if what == Listing.MODELS:
        entries = list(map(listing.with_costs, entries))
    print(json.dumps(entries, indent=2))


def _lists_workloads(what: str, *, as_json: bool) -> bool:
    """List the workloads, or one of them, without importing torch; False if something else is asked for."""
    from ssmperf.engine.plan.workloads import phases, reading
    from ssmperf.shell.terminal.lists import workloads

    if what == Listing.WORKLOADS:
        layers = [reading.of_name(name) for name in reading.names()]
        if as_json:
            print(json.dumps([workloads.described(layer) for layer in layers], indent=2))
        else:
            print(workloads.as_table(layers))
        return True
    if what not in reading.names() and not what.endswith((".json", ".toml")):
        return False
    layer = phases.workload(what)
    print(json.dumps(workloads.described(layer), indent=2) if as_json else workloads.as_text(layer))
    return True


@app.command(
    epilog="Examples:  ssmperf report runs/20260101-120000-throughput  ·  "
    "ssmperf report RUN1 RUN2 --html both.html"
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders, files of pytest-benchmark, or folders of `reproduce`."
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="markdown, latex, csv, parquet, json or a plug-in's. Default: a table."
        ),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="With --format markdown: times alone, in at most 80 columns.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File for --format. Default: standard output.")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write PNG, SVG and PDF figures.")
    ] = None,
    force: Force = False,
    plugin: Plugins = None,
    debug: Debug = False,
) -> None:
    """Show runs as a table, or write them as HTML, Markdown, LaTeX, CSV, Parquet, JSON or figures.

    Several runs are shown beside one another without a judgement; `compare` judges. Of a folder that
    `reproduce` has filled, here or elsewhere, the claims are judged and shown: as a table, Markdown, HTML or
    JSON.
    """
    from ssmperf.papers.reproduction.keeping import is_folder
    from ssmperf.papers.reproduction.reproduce import load_reproduction
    from ssmperf.shell.terminal import display

    if out and not format_:
        raise UsageError(f"--out needs --format, which says what to write into {out}")
    if short and format_ != "markdown":
        raise UsageError("--short is a form of --format markdown: pass both")
    load_plugins(plugin)
    others = [path for path in runs if not is_folder(path)]
    of = "claims" if len(others) < len(runs) else None
    if of and others:
        raise UsageError(f"{others[0]} is no folder of `reproduce`: show claims and runs apart")
    shown = [] if of else _to_show(*runs, force=force)
    given = load_reproduction(*runs) if of else shown
    wanted: list[tuple[str, Path | None]] = [("html", html)] if html else []
    wanted += [("figures", figures)] if figures else []
    wanted += [(f"{format_}_short" if short else format_, out)] if format_ else []
    if of and not wanted:
        wanted = [("table", None)]
    if not wanted:
        display.table(shown)
    for name, destination in wanted:
        display.write_report(name, given, destination, of=of, aside=bool(format_ and not out))


def _to_show(*folders: Path, force: bool) -> list[Run]:
    """Load runs, those of one plan's shards as one, and say on stderr which of them are unfinished."""
    from ssmperf.shell.terminal import display

    runs = loaded(*folders, force=force, together=True)
    for warning in display.unfinished(runs):
        print(warning, file=sys.stderr)
    return runs


@app.command(
    epilog="Examples:  ssmperf best runs/20260101-120000-throughput --json  ·  "
    "ssmperf best --models gla --axis T=4096 --dtype bf16  ·  ssmperf best --workload qwen3-next-80b"
)
@with_run_options(("models", "workload", "axis"))
def best(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Run folders, or folders with runs. Default: runs/."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtypes, such as bf16.")] = None,
    pass_: Annotated[
        str | None,
        typer.Option(
            "--pass", help="training (forward and backward), prefill, decode; or forward, backward alone."
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
    debug: Debug = False,
    **chosen: Any,
) -> None:
    """Show the fastest correct backend: in a sentence if models, sizes, dtypes or passes are named.

    Of several runs, the newest one counts, and older ones are marked. A backend that is wrong in another pass
    there, or in correctness, does not compete. One that is approximate by declaration, or computes another
    function, is shown beside the others. Overlapping intervals are a tie. With --workload: the answer for a
    layer in use, in a line for each phase.
    """
    from ssmperf.engine.runs.question import BestQuestion
    from ssmperf.shell.terminal import display

    question = BestQuestion.of(
        _found(runs or [Path("runs")], force=force), dtype=dtype, pass_=pass_, **chosen
    )
    display.write_report("json" if as_json else "table", question, None, of="best")


def _found(paths: list[Path], *, force: bool) -> list[Run]:
    """Load the runs in folders, and say on stderr what is left out, unfinished or torn."""
    from ssmperf.engine.runs.folders import load_all
    from ssmperf.engine.runs.store import some
    from ssmperf.shell.terminal import display

    runs, left_out = load_all(paths, force=force)
    faults = [f"warning: {text}" for run in runs for text in run.warnings]
    omissions = [f"left out: {some(left_out)}"] if left_out else []
    for line in (*faults, *display.unfinished(runs), *omissions):
        print(line, file=sys.stderr)
    return runs
