"""The verb that begins a repository: new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ssmperf.shell.cli.app import app
from ssmperf.shell.terminal.options import Debug


@app.command(
    epilog="Examples:  ssmperf new scan my_kernel  ·  ssmperf new scan my_kernel --triton --dir mine  ·  "
    "ssmperf new delta_rule my_rule --package"
)
def new(
    recurrence: Annotated[str, typer.Argument(help="What it computes: scan, linear_attention, …")],
    name: Annotated[str, typer.Argument(help="Name of the kernel, its file and its backend.")],
    folder: Annotated[
        Path, typer.Option("--dir", metavar="FOLDER", help="Where to write. Default: the current folder.")
    ] = Path(),
    triton: Annotated[
        bool, typer.Option("--triton", help="Begin with a kernel in Triton. For scan.")
    ] = False,
    package: Annotated[
        bool,
        typer.Option("--package", help="Add a pyproject.toml: installed, the backend registers by itself."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    debug: Debug = False,
) -> None:
    """Begin a kernel: a plug-in that works, with its contract, its tests, a CI workflow and a gate.

    The gate installs ssmperf from where this one came, or from what $SSMPERF_INSTALL says. Nothing is
    overwritten without --force.
    """
    from ssmperf.authors.starter.repository import StarterRepository, create
    from ssmperf.authors.starter.source import find_source

    starter = StarterRepository(recurrence, name, triton=triton, package=package)
    source = find_source()
    written = create(starter, folder, force=force, install=source.words)
    for file in written:
        print(f"wrote {file}")
    for remark in source.remarks:
        print(f"note: {remark}", file=sys.stderr)
    print(f"\n{starter.next_steps(folder)}")
