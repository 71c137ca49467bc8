"""Options of the command line that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin", metavar="FILE", help="Python file with more backends, models or suites. Its code is run."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Threshold = Annotated[str, typer.Option(help="Largest change that counts as the same: 5% or 0.05.")]
Force = Annotated[
    bool, typer.Option("--force", help="Compare times even if device, driver or versions differ.")
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Measure all cases so often, each time in fresh processes and another order. Default: 1."
    ),
]
Time = Annotated[
    float | None,
    typer.Option(help="Longest time for sampling a case in a round, in seconds. Default: the preset's."),
]
Precision = Annotated[
    str | None,
    typer.Option(help="Stop sampling when the median's interval is within ± this share. Default: 1%."),
]
Samples = Annotated[int | None, typer.Option(help="Take at least so many samples of a case in a round.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, also those of cases that crash.")]
