"""The options that every command has that compares two runs, and how it shows what it found."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.runs.outcome import RunComparison
from ssmperf.terminal.axis_options import with_options
from ssmperf.terminal.display import write_report

ONLY = "{} to compare, of both runs, separated by commas. Default: all."
OPTIONS: dict[str, tuple[Any, Any, Any]] = {  # by keyword of `ssmperf.compare`: type, default, option
    "threshold": (str, "5%", typer.Option(help="Largest change that counts as the same: 5% or 0.05.")),
    "models": (str | None, None, typer.Option(help=ONLY.format("Models"))),
    "backends": (str | None, None, typer.Option(help=ONLY.format("Backends"))),
    "suite": (str | None, None, typer.Option(help=ONLY.format("Suites"))),
    "force": (
        bool,
        False,
        typer.Option("--force", help="Compare times even if device, driver or versions differ."),
    ),
    "unsure": (
        str,
        "fail",
        typer.Option(help="fail: exit 4 if nothing worse than ambiguity was found; pass: exit 0."),
    ),
    "calibration": (
        Path | None,
        None,
        typer.Option(
            metavar="FILE",
            help="The machine's noise. Default: as the runs say, or as stored here for their device.",
        ),
    ),
}


def with_comparison(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes `**options` those of a comparison, by keyword of `ssmperf.compare`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return with_options(
        verb,
        (
            inspect.Parameter(name, kind, default=default, annotation=Annotated[type_, option])
            for name, (type_, default, option) in OPTIONS.items()
        ),
    )


def show(found: RunComparison, as_json: bool, **files: Path | None) -> None:
    """Print a comparison, and write it to files, by name of report."""
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        write_report("table", found, None, of="comparison")
    for name, destination in files.items():
        if destination:
            write_report(name, found, destination, of="comparison")
