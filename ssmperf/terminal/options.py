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
Updates = Annotated[int | None, typer.Option(help="Most updates of a training. Default: the preset's.")]
Seeds = Annotated[int | None, typer.Option(help="Trainings whose results are averaged, each with a seed.")]
Rates = Annotated[
    str | None, typer.Option(metavar="LIST", help="Learning rates to choose from: 0.001,0.005.")
]
Layers = Annotated[int | None, typer.Option(help="Blocks of a trained network. Default: 2.")]
Corpus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Text to learn, a file or a folder. Default: the standard library's sources."
    ),
]
TestBackend = Annotated[
    str | None, typer.Option(help="Backend that tests trained networks. Default: the one that trained them.")
]
SideBySide = Annotated[
    int | None, typer.Option(help="Trainings at the same time on a device. Default: 1 on a CPU, 4 on a GPU.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, also those of cases that crash.")]
Suite = Annotated[str, typer.Option(help="Suites, separated by commas.")]
Models = Annotated[
    str | None, typer.Option(help="Models, separated by commas, with options as pese_lr:n=8. Default: all.")
]
Backends = Annotated[str | None, typer.Option(help="Backends, separated by commas. Default: all.")]
Preset = Annotated[
    str | None, typer.Option(help="smoke, standard or long. Default: smoke on the CPU, standard on a GPU.")
]
Sizes = Annotated[
    list[str] | None, typer.Option(help="A dimension's sizes: T=1024:65536:x2, B=1,2,4. May be repeated.")
]
OneDevice = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Timeout = Annotated[float, typer.Option(help="Longest time that one case may take, in seconds.")]
