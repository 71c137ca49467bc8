"""The options of all commands that compare two runs, and the display of their outcome."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.comparison.outcome import RunComparison
from ssmperf.engine import registry
from ssmperf.shell.terminal.declared_options import with_options
from ssmperf.shell.terminal.display import write_report
from ssmperf.shell.terminal.options import Threshold, Unsure

PAGE_ADDRESS = "SSMPERF_PAGE_URL"
IN_GITHUB = "GITHUB_ACTIONS"  # "true" in a job of GitHub
ONLY = "{} to compare, of both runs, separated by commas. Default: all."
OPTIONS: dict[str, tuple[Any, Any]] = {  # annotation and default, by keyword of `ssmperf.compare`
    "threshold": (Threshold, "5%"),
    "models": (Annotated[str | None, typer.Option(help=ONLY.format("Models"))], None),
    "backends": (Annotated[str | None, typer.Option(help=ONLY.format("Backends"))], None),
    "suite": (Annotated[str | None, typer.Option(help=ONLY.format("Suites"))], None),
    "force": (
        Annotated[
            bool, typer.Option("--force", help="Compare times even if device, driver or versions differ.")
        ],
        False,
    ),
    "unsure": (Unsure, "fail"),
    "calibration": (
        Annotated[
            Path | None,
            typer.Option(
                metavar="FILE",
                help="The machine's noise. Default: as the runs say, or as stored here for their device.",
            ),
        ],
        None,
    ),
}


def with_comparison(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes `**options` those of a comparison, by keyword of `ssmperf.compare`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return with_options(
        verb,
        (
            inspect.Parameter(name, kind, default=default, annotation=annotation)
            for name, (annotation, default) in OPTIONS.items()
        ),
    )


def show(found: RunComparison, as_json: bool, **files: Path | None) -> None:
    """Print a comparison, and write it to files, by name of report.

    Where a page is written, the others name it: by the address in $SSMPERF_PAGE_URL, at which readers will
    find it, or else by its path. In a job of GitHub, what is not fine becomes an annotation, too.
    """
    if page := files.get("html"):
        found = replace(found, page=os.environ.get(PAGE_ADDRESS) or str(page))
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        write_report("table", found, None, of="comparison")
    in_github = os.environ.get(IN_GITHUB) == "true"
    if in_github and (lines := registry.report("annotations", "comparison")(found, None)):
        print(lines, file=sys.stderr if as_json else None)
    for name, destination in files.items():
        if destination:
            write_report(name, found, destination, of="comparison", aside=as_json)


def show_forecast(
    base: str,
    new: str,
    suite: str,
    choices: Mapping[str, Any],
    plugins: Sequence[str] | None,
    cases: str | None,
    pairs: str | None,
    *,
    as_json: bool,
    search: bool = False,
) -> None:
    """Print what a comparison of two versions would measure, or a search between them."""
    from ssmperf.comparison.comparison import THRESHOLD
    from ssmperf.comparison.versions.procedure import Versions
    from ssmperf.shell.terminal.forecast import forecast, forecast_search

    wanted = Versions.of(base, new, suite, choices, plugins or (), cases or (), pairs, THRESHOLD)
    found = (forecast_search if search else forecast)(wanted)
    print(json.dumps(found.to_json(), indent=2) if as_json else found.text)
