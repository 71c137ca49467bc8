"""The verb that puts papers to the test: reproduce."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.errors import UsageError
from ssmperf.shell.cli.app import app, interrupted, load_plugins
from ssmperf.shell.terminal.declared_options import with_run_options
from ssmperf.shell.terminal.options import Debug, Json


@app.command(
    epilog="Examples:  ssmperf reproduce  ·  ssmperf reproduce longhorn:parameters hgrn2:parameters  ·  "
    "ssmperf reproduce --all --html claims.html"
)
@with_run_options(("device", "corpus"))
def reproduce(
    claims: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Claims to run. Without any, they are listed.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Run all claims that this machine can run.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. Default: runs/<time>-reproduce.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out; what has ended there is not run again.")
    ] = False,
    preset: Annotated[
        str, typer.Option(help="standard; or smoke, tiny sizes that try the code and decide nothing.")
    ] = "standard",
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds of what is learned. Default: the claim's own.")
    ] = None,
    pieces: Annotated[
        str | None, typer.Option(help="Pieces to run now, separated by commas. Default: all that are left.")
    ] = None,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE", help="Python file with more claims. Its code is run."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Run what papers claim: the paper's number, ours with its interval, and whether they agree.

    Without ids, list the claims. A verdict is agrees, disagrees or cannot tell; whatever it is, the exit code
    is 0, unless a claim failed to run.
    """
    from ssmperf.engine.execute import request
    from ssmperf.papers.reproduction.reproduce import reproduce as reproduced
    from ssmperf.shell.terminal import display, reproduction

    load_plugins(plugin)
    if claims and all_:
        raise UsageError("name claims, or pass --all, but not both")
    if not claims and not all_:
        if html or out or resume:
            raise UsageError("name the claims to run, or pass --all")
        listed = reproduction.listed()
        print(json.dumps(listed, indent=2) if as_json else reproduction.as_table(listed))
        return
    folder = request.run_folder(out, ("reproduce",), resume=resume)
    try:
        with display.StepBar() as steps:
            found = reproduced(
                claims or None,
                out=folder,
                resume=resume,
                progress=steps.say,
                on_piece=steps.count,
                preset=preset,
                seeds=seeds,
                pieces=pieces,
                argv=sys.argv[1:],
                **options,
            )
    except KeyboardInterrupt:
        interrupted(folder)
    display.write_report("json" if as_json else "table", found, None, of="claims")
    if html:
        display.write_report("html", found, html, of="claims", aside=as_json)
    if not as_json:
        print(f"results written to {folder}")
    raise typer.Exit(found.exit_code)
