"""The application to which the verbs belong, and what several of them do."""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ssmperf.errors import ExitCode

if TYPE_CHECKING:
    from ssmperf.engine.runs.store import Run

app = typer.Typer(
    name="ssmperf",
    help="Benchmark and profile the linear recurrences inside sequence models.",
    epilog="Exit codes: 0 fine; 1 a regression; 2 wrong usage or unreadable input; "
    "3 a wrong, crashed or missing case (of run: with --strict); 4 cannot tell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Benchmark and profile the linear recurrences inside sequence models."""
    if version:
        from importlib.metadata import version as installed

        print(f"ssmperf {installed('ssmperf')}")
        raise typer.Exit


def fail(message: str, code: int) -> NoReturn:
    """Exit with one line on stderr; with --debug, print the traceback of the current exception first."""
    if "--debug" in sys.argv and sys.exc_info()[0]:
        traceback.print_exc()
    shown = "".join(each if each.isprintable() or each.isspace() else "\ufffd" for each in message)
    print(f"ssmperf: {' '.join(shown.split())}", file=sys.stderr)
    sys.exit(code)


def interrupted(folder: Path) -> NoReturn:
    """Exit after Ctrl-C, and say how to go on."""
    go_on = f"; what was measured is kept; continue with --resume --out {shlex.quote(str(folder))}"
    fail(f"interrupted{go_on if folder.exists() else ''}", ExitCode.INTERRUPTED)


def loaded(*folders: Path, force: bool = False, together: bool = False) -> list[Run]:
    """Load runs, or folders with the shards of one; faults that were tolerated go to stderr.

    together: whether the folders may be shards of one run.
    """
    from ssmperf.engine.runs.foreign import benchmark_json
    from ssmperf.engine.runs.shards import joined
    from ssmperf.shell import api

    runs = [api.load(path, force=force) for path in folders]
    runs = joined(runs, force=force) if together else runs
    for run in runs:
        for warning in (*run.warnings, *benchmark_json.remarks(run.path, run.records)):
            print(f"warning: {warning}", file=sys.stderr)
    return runs


def load_plugins(paths: list[Path] | None) -> None:
    from ssmperf.engine import registry

    for path in paths or ():
        registry.load_plugin_apart(path)
