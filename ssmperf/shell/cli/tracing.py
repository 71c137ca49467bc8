"""The verbs that look back in time: history, bisect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.shell.cli.app import app, interrupted
from ssmperf.shell.terminal.comparison_options import show_forecast
from ssmperf.shell.terminal.declared_options import with_axes, with_run_options
from ssmperf.shell.terminal.options import (
    Debug,
    DryRun,
    Json,
    Threshold,
)


@app.command(
    epilog="Examples:  ssmperf history runs  ·  ssmperf history runs --models gla --html history.html  ·  "
    "ssmperf history runs --baseline v1.0 --alarm fail"
)
def history(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Run folders, files of pytest-benchmark, or folders with these, such as its storage. "
            "Default: runs.",
        ),
    ] = None,
    threshold: Threshold = "5%",
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Folder or tag of the run from which on the cumulative alarm counts. Default: the first run "
            "after a case's last step.",
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Models to follow, separated by commas. Default: all.")
    ] = None,
    backends: Annotated[
        str | None, typer.Option(help="Backends to follow, separated by commas. Default: all.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Suites to follow, separated by commas. Default: all.")
    ] = None,
    alarm: Annotated[
        str,
        typer.Option(
            help="fail: exit 1 if the last run stands behind a fresh slow-down, or creeps; show: exit 0."
        ),
    ] = "show",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow each case over many runs: its steps with their commits, and whether it creeps.

    Runs of different devices are kept apart. Runs that cannot be read, or measured in another way, are left
    out and named. Noise between runs makes no step in 98 of 100 histories in which nothing changed; the line
    "could have found" says how large a step it can hide.
    """
    from ssmperf.shell import api
    from ssmperf.shell.terminal import display

    found = api.history(
        runs or [Path("runs")],
        threshold=threshold,
        baseline=baseline,
        models=models,
        backends=backends,
        suite=suite,
        alarm=alarm,
    )
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        display.write_report("table", found, None, of="history")
    if html:
        display.write_report("html", found, html, of="history", aside=as_json)
    raise typer.Exit(found.exit_code)


@app.command(
    epilog="Example:  ssmperf bisect --good v1.0 --bad HEAD --case 3f2a1b9c --models gla --backends mine "
    "--plugin kernels/mine.py"
)
@with_axes
@with_run_options(compared=True)
def bisect(
    good: Annotated[str, typer.Option(help="A git ref at which the case was fast.")],
    bad: Annotated[str, typer.Option(help="A later one at which it is slow.")],
    case: Annotated[str, typer.Option(help="Id of the case, or how it begins.")],
    suite: Annotated[
        str | None,
        typer.Option(help="Suites, separated by commas. Default: throughput, and correctness for an id."),
    ] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="FILE",
            help="Plug-in file, taken from the tree of each commit that is measured. Its code is run.",
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="Pairs of rounds of the ends, first and fresh: 5+7. Commits are measured in as many fresh "
            "ones, and in up to four times as many if these do not tell."
        ),
    ] = None,
    threshold: Annotated[
        str, typer.Option(help="Least slow-down between the ends that is searched for: 5% or 0.05.")
    ] = "5%",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search. Default: runs/<time>-bisect.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the search in --out.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
    **choices: Any,
) -> None:
    """Find the commit that made a case slower, or wrong, by git bisect.

    Both ends are compared first. A commit that cannot be installed, or cannot be told from the middle of the
    ends, is skipped. A commit is named only if it is slower than its parent, too. The search runs in a
    temporary worktree: files, index and HEAD stay as they are. Exits with 0 if it found the commit, and with
    4 and the commits that are left if it could not tell.
    """
    from ssmperf.engine.execute import request
    from ssmperf.shell import api
    from ssmperf.shell.terminal import display

    if dry_run:
        suites = suite or "throughput,correctness"
        show_forecast(good, bad, suites, choices, plugin, case, pairs, as_json=as_json, search=True)
        return
    folder = request.run_folder(out, ("bisect",), resume=resume)
    try:
        found = api.bisect(
            good,
            bad,
            case=case,
            suite=suite,
            plugin=plugin or (),
            pairs=pairs,
            threshold=threshold,
            out=folder,
            resume=resume,
            progress=display.progress(),
            on_step=display.bisection_step,
            on_judged=display.bisection_judged,
            **choices,
        )
    except KeyboardInterrupt:
        interrupted(folder)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print(display.shown_lines(found.conclusion))
        print(f"comparisons written to {folder}")
    raise typer.Exit(found.exit_code)
