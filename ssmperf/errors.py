"""The tree of exceptions, and the exit codes of the command line.

Every error that a user can cause is a SsmperfError with a one-line message:

SsmperfError
├── Unsupported          a backend cannot compute this; the message is the reason
│   └── UnsupportedValues  it takes other values of the same case
├── WorkerFailed         a worker process could not be started: no case could be run
│   └── VersionEnded     the process of one of two compared versions ended
├── PlanFailed           the process that loads plug-ins to make a plan died, or raised another error
├── JudgeFailed          the process that judges answers ended, or could not make a reference
├── CannotMeasure        this machine lacks a tool or permission that a measurement needs
├── BrokenContract       a backend returned something that the contract does not allow
└── UsageError           wrong usage or unreadable input
    ├── UnknownName      a name that is not registered
    ├── DuplicateName    a name that was registered twice
    ├── PluginError      a plug-in file that cannot be loaded
    ├── UnreadableRun    a run folder that is missing, damaged or of a newer schema
    ├── VersionFailed    one of two compared versions cannot be installed, or refuses the request
    └── OutputFailed     standard output that cannot be written, such as a full device
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command line. If several apply: USAGE, then BAD_CASE, REGRESSION, UNSURE.

    BAD_CASE also stands for failures without wrong usage: a worker that cannot start, or a lack of memory.
    """

    OK = 0
    REGRESSION = 1
    USAGE = 2
    BAD_CASE = 3
    UNSURE = 4
    INTERRUPTED = 130


class SsmperfError(Exception):
    """Base class of all errors that ssmperf raises on purpose. The command line exits with `exit_code`."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class Unsupported(SsmperfError):
    """A backend cannot compute a case; the message says why. The case is recorded as `unsupported`."""


class UnsupportedValues(Unsupported):
    """A backend refuses these values of a case, and may take others: too much decay for its range, say.

    Another run draws other values. `check` does not call a case lost that is refused for its values.
    """


class WorkerFailed(SsmperfError):
    """A worker process could not be started."""

    exit_code = ExitCode.BAD_CASE


class VersionEnded(WorkerFailed):
    """The process of one of two compared versions ended. side: "base" or "new"."""

    def __init__(self, message: str, side: str) -> None:
        super().__init__(message)
        self.side = side


class PlanFailed(SsmperfError):
    """The process that loads plug-ins to make a plan died, or raised something else than a SsmperfError."""

    exit_code = ExitCode.BAD_CASE


class JudgeFailed(SsmperfError):
    """The judge's process ended, or could not make a reference. The case is recorded as `crash`.

    traceback: that of the exception in the judge's process, whose place the message names; None if it ended.
    """

    exit_code = ExitCode.BAD_CASE

    def __init__(self, message: str, traceback: str | None = None) -> None:
        super().__init__(message)
        self.traceback = traceback


class CannotMeasure(SsmperfError):
    """This machine lacks a tool or permission that a measurement needs; the message says what to do."""

    exit_code = ExitCode.UNSURE


class BrokenContract(SsmperfError):
    """A backend returned something that the contract does not allow. The case is recorded as `wrong`."""

    exit_code = ExitCode.BAD_CASE


class UsageError(SsmperfError):
    """The request is wrong or an input cannot be read."""


class UnknownName(UsageError):
    """A name is not registered; the message suggests similar names and lists all known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(str(name), known, n=3)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(known) or 'none'})")
        self.kind, self.name, self.known = kind, name, known


class DuplicateName(UsageError):
    """A name was registered twice."""


class PluginError(UsageError):
    """A plug-in could not be loaded."""


class UnreadableRun(UsageError):
    """A run folder is missing, damaged, or written by a newer version."""


class VersionFailed(UsageError):
    """One of two compared versions cannot be installed, or refuses the request. side: "base" or "new"."""

    def __init__(self, message: str, side: str) -> None:
        super().__init__(message)
        self.side = side


class OutputFailed(UsageError):
    """Standard output cannot be written, though somebody may still want to read it."""
