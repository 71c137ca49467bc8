"""Options of the command line that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with more backends, models, suites or reports. Its code is run.",
    ),
]
VersionPlugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Plug-in file for both versions; with git refs, a path in the tree. Its code is run.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say which versions and how many cases would be measured, and how long it takes."
    ),
]
Threshold = Annotated[str, typer.Option(help="Largest change that counts as the same: 5% or 0.05.")]
Unsure = Annotated[
    str, typer.Option(help="fail: exit 4 if nothing worse than ambiguity was found; pass: exit 0.")
]
ComparisonPage = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the comparison as one self-contained HTML page."),
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")]
Summary = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a Markdown summary for a pull request.")
]
Force = Annotated[bool, typer.Option("--force", help="Read shards of different devices as one run, too.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, also those of cases that crash.")]
