"""The verbs that look over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ssmperf.cli.app import app
from ssmperf.terminal.options import Debug, Json, Threshold


@app.command(
    epilog="Examples:  ssmperf history runs  ·  ssmperf history runs --models gla --html history.html  ·  "
    "ssmperf history runs --baseline v1.0 --alarm fail"
)
def history(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...", help="Run folders, or folders with run folders in them. Default: runs."
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
    out and named. Noise between runs makes no step in 98 of 100 histories in which nothing changed.
    """
    from ssmperf import api
    from ssmperf.terminal import display

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
        display.write_report("html", found, html, of="history")
    raise typer.Exit(found.exit_code)
