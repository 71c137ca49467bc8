"""The verb that looks for configurations at which a kernel is wrong: fuzz."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ssmperf.authors.fuzzing.call import check_installed
from ssmperf.errors import ExitCode
from ssmperf.shell.cli.app import app, interrupted, load_plugins
from ssmperf.shell.terminal.options import Debug, Json, Plugins


@app.command(
    epilog="Examples:  ssmperf fuzz scan --backends triton --minutes 10  ·  "
    "ssmperf fuzz linear_attention --plugin my_kernel.py --examples 500"
)
def fuzz(
    of: Annotated[
        list[str] | None, typer.Argument(metavar="[RECURRENCE|MODEL]...", help="Default: all recurrences.")
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(help="Backends, separated by commas. Default: those of the plug-ins, or else all."),
    ] = None,
    plugin: Plugins = None,
    minutes: Annotated[float | None, typer.Option(help="For how long. Default: 5.")] = None,
    examples: Annotated[int | None, typer.Option(help="How many examples at most.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds draw equal configurations.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/<time>-fuzz.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge backends at random configurations, and shrink each fault to the smallest that shows it."""
    check_installed()
    from ssmperf.authors.fuzzing import fuzz as work
    from ssmperf.shell.terminal import fuzzing

    load_plugins(plugin)
    asked = work.FuzzRequest.of(
        of or None, backends=backends, minutes=minutes, examples=examples, seed=seed, device=device, out=out,
        resume=resume, argv=sys.argv[1:],
    )  # fmt: skip
    try:
        with fuzzing.progress(asked.seed, asked.goal) as tell:
            found = work.fuzz(asked, tell)
    except KeyboardInterrupt:
        interrupted(asked.request.out)
    print(json.dumps(found.to_json(), indent=2) if as_json else found)
    if not found:
        raise typer.Exit(ExitCode.BAD_CASE)
