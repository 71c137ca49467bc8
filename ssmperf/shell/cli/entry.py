"""The entry point: it knows all verbs, and turns every error into one line and an exit code."""

from __future__ import annotations

import errno
import functools
import os
import sys

from typer.core import TyperGroup
from typer.main import get_command

from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.cases.place import place_of
from ssmperf.errors import ExitCode, SsmperfError
from ssmperf.shell.cli import comparing as comparing
from ssmperf.shell.cli import fuzzing as fuzzing
from ssmperf.shell.cli import measuring as measuring
from ssmperf.shell.cli import reading as reading
from ssmperf.shell.cli import reproducing as reproducing
from ssmperf.shell.cli import starting as starting
from ssmperf.shell.cli import tracing as tracing
from ssmperf.shell.cli.app import app, fail
from ssmperf.shell.cli.streams import lasting_streams

NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)  # of a name that no file can have, or that leads in a circle


def main() -> None:
    """Run the command line. An error is one line on stderr; --debug adds its traceback."""
    with lasting_streams():
        if _completing():
            app()
            return
        try:
            code = _command()(standalone_mode=False)
            sys.stdout.flush()  # where standard output is full, this is the last moment to say so
        except SsmperfError as error:
            fail(str(error), error.exit_code)
        except Exception as error:
            if hasattr(error, "format_message"):  # typer's own usage errors
                fail(error.format_message(), ExitCode.USAGE)
            if isinstance(error, OSError) and error.errno in NO_NAMES and error.filename:
                fail(f"cannot use {error.filename!s:.200}: {error.strerror}", ExitCode.USAGE)
            reason = failure_of(error).reason
            fail(f"{_kind(error)}{reason} (--debug shows the traceback)", ExitCode.BAD_CASE)
        if code == ExitCode.INTERRUPTED:  # typer's answer to Ctrl-C
            fail("interrupted", ExitCode.INTERRUPTED)
        sys.exit(int(code) if isinstance(code, int) else ExitCode.OK)


@functools.cache
def _command() -> TyperGroup:
    """Make the command of all verbs and their options, once for a process that runs several."""
    found = get_command(app)
    assert isinstance(found, TyperGroup)
    return found


def _kind(error: Exception) -> str:
    """Begin the message of an exception that no verb expects, unless its place is in a plug-in."""
    from ssmperf.engine.execute.worker import is_out_of_memory

    if is_out_of_memory(error) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out of memory: "
    place = place_of(error)
    return "" if place and place.of_author else "internal error: "


def _completing() -> bool:
    return "_SSMPERF_COMPLETE" in os.environ
