"""The entry point: it knows all verbs, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys

from ssmperf.cases.failure import failure_of
from ssmperf.cases.place import place_of
from ssmperf.cli import comparing as comparing
from ssmperf.cli import measuring as measuring
from ssmperf.cli import reading as reading
from ssmperf.cli.app import app, fail
from ssmperf.errors import ExitCode, SsmperfError


def main() -> None:
    """Run the command line. An error is one line on stderr; --debug adds its traceback."""
    if _completing():
        app()
        return
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    except SsmperfError as error:
        fail(str(error), error.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own usage errors
            fail(error.format_message(), ExitCode.USAGE)
        place = place_of(error)
        whose = "" if place and place.of_author else "internal error: "
        fail(f"{whose}{failure_of(error).reason} (--debug shows the traceback)", ExitCode.BAD_CASE)
    if code == ExitCode.INTERRUPTED:  # typer's answer to Ctrl-C
        fail("interrupted", ExitCode.INTERRUPTED)
    sys.exit(int(code) if isinstance(code, int) else ExitCode.OK)


def _completing() -> bool:
    return "_SSMPERF_COMPLETE" in os.environ
