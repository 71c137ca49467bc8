"""The verbs that judge one version by another: compare, check, ab, pr."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ssmperf.comparison.versions.sides import FORMS
from ssmperf.shell.cli.app import app, interrupted, loaded
from ssmperf.shell.terminal.comparison_options import show, show_forecast, with_comparison
from ssmperf.shell.terminal.declared_options import with_axes, with_run_options
from ssmperf.shell.terminal.options import (
    ComparisonPage,
    Debug,
    DryRun,
    Json,
    Junit,
    Summary,
    Threshold,
    Unsure,
    VersionPlugins,
)


@app.command(
    epilog="Examples:  ssmperf compare runs/before runs/after --html both.html  ·  "
    "ssmperf compare runs/before runs/after --models gla,mamba --suite throughput"
)
@with_comparison
def compare(
    base: Annotated[Path, typer.Argument(help="Folder of the run to compare with.")],
    new: Annotated[Path, typer.Argument(help="Folder of the other run.")],
    html: ComparisonPage = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Compare two runs, with one verdict per case. The exit codes are those of `check`.

    Cases that the new run was not asked to measure are named, not judged.
    """
    from ssmperf.shell import api

    found = api.compare(*loaded(base, new, force=bool(options.get("force"))), **options)
    show(found, as_json, html=html)
    raise typer.Exit(found.exit_code)


@app.command(
    epilog="Examples:  ssmperf check runs/pull-request --baseline runs/main --junit check.xml  ·  "
    "ssmperf check runs/new --baseline runs/main --backends triton --unsure pass"
)
@with_comparison
def check(
    new: Annotated[Path, typer.Argument(help="Folder of the run to check.")],
    baseline: Annotated[Path, typer.Option(help="Folder of the run to compare it with.")],
    remeasure: Annotated[
        bool,
        typer.Option("--remeasure", help="Measure slower and ambiguous cases again, by `ab`, and decide."),
    ] = False,
    base_version: Annotated[
        str | None,
        typer.Option(help="Version behind the baseline. Default: the commit in its run."),
    ] = None,
    new_version: Annotated[
        str | None, typer.Option(help="Version behind the new run. Default: the commit in its run.")
    ] = None,
    plugin: VersionPlugins = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of what --remeasure measures. Default: runs/<time>-check.")
    ] = None,
    junit: Junit = None,
    summary: Summary = None,
    html: ComparisonPage = None,
    as_json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Fail on a regression: exit 1 if slower, 3 if wrong, lost or missing, 4 if it cannot tell.

    Cases that the new run was not asked to measure are named, not judged. The new run's folder counts how
    often two runs were checked.
    """
    from ssmperf.shell import api
    from ssmperf.shell.terminal import display

    base, run = loaded(baseline, new, force=bool(options.get("force")))
    found = api.check(
        run,
        baseline=base,
        remeasure=remeasure,
        base_version=base_version,
        new_version=new_version,
        plugin=plugin or (),
        out=out,
        progress=display.progress() if remeasure else None,
        **options,
    )
    show(found, as_json, junit=junit, summary=summary, html=html)
    raise typer.Exit(found.exit_code)


@app.command(
    epilog="Examples:  ssmperf ab --base main --new HEAD --suite throughput --models gla  ·  "
    "ssmperf ab --base old.py --new new.py --suite throughput --models scan --backends mine"
)
@with_axes
@with_run_options(compared=True)
def ab(
    base: Annotated[str, typer.Option(help=f"The version to compare with: {FORMS}.")],
    new: Annotated[str, typer.Option(help="The other version.")],
    suite: Annotated[str, typer.Option(help="Suites, separated by commas.")] = "throughput",
    plugin: VersionPlugins = None,
    cases: Annotated[
        str | None, typer.Option(help="Ids of cases, or how they begin, separated by commas. Default: all.")
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(help="Pairs of rounds of all cases, and fresh ones of those that stand out: 5+7."),
    ] = None,
    threshold: Threshold = "5%",
    unsure: Unsure = "fail",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison. Default: runs/<time>-ab.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in --out.")] = False,
    dry_run: DryRun = False,
    html: ComparisonPage = None,
    junit: Junit = None,
    summary: Summary = None,
    as_json: Json = False,
    debug: Debug = False,
    **choices: Any,
) -> None:
    """Measure two versions in turn, in fresh processes, and say which cases became slower.

    All cases are measured in pairs of rounds, one round of each version in random order. Those that stand out
    are measured again, and the verdict comes from the fresh pairs alone, so that noise between processes
    raises no alarm. The exit codes are those of `check`.
    """
    from ssmperf.engine.execute import request
    from ssmperf.shell import api
    from ssmperf.shell.terminal import display

    if dry_run:
        show_forecast(base, new, suite, choices, plugin, cases, pairs, as_json=as_json)
        return
    folder = request.run_folder(out, ("ab",), resume=resume)
    try:
        found = api.ab(
            base,
            new,
            suite=suite,
            plugin=plugin or (),
            cases=cases or (),
            pairs=pairs,
            threshold=threshold,
            unsure=unsure,
            out=folder,
            resume=resume,
            progress=display.progress(),
            **choices,
        )
    except KeyboardInterrupt:
        interrupted(folder)
    show(found, as_json, junit=junit, summary=summary, html=html)
    if not as_json:
        print(f"runs written to {folder}; for a pull request: ssmperf pr {shlex.quote(str(folder))}")
    raise typer.Exit(found.exit_code)


@app.command(epilog="Example:  ssmperf pr runs/20260101-120000-ab --out comment.md")
def pr(
    folder: Annotated[Path, typer.Argument(help="Folder of `ssmperf ab`.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
    debug: Debug = False,
) -> None:
    """Write what `ab` has found for a pull request: Markdown in 80 columns. Nothing is measured.

    It has the conclusion, times before and after with intervals, kernels that ran, errors, versions, the
    device and its state, and the command that repeats it.
    """
    from ssmperf.comparison.versions.measured import load_comparison
    from ssmperf.shell.terminal.display import write_report

    write_report("pr", load_comparison(folder), out, of="comparison")
