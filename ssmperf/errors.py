"""The exception tree. Every error a user can cause is a SsmperfError with a one-line message.

SsmperfError
├── Unsupported          a backend cannot compute this; the reason is the message
└── UsageError           wrong usage or unreadable input: exit code 2
    ├── UnknownName      asked for a name nobody registered
    ├── DuplicateName    registered a name twice
    ├── PluginError      a plug-in file that cannot be loaded
    └── UnreadableRun    a run folder that is missing, damaged or of a newer schema
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SsmperfError(Exception):
    """Base of all errors that ssmperf raises on purpose."""


class Unsupported(SsmperfError):
    """A backend cannot do what it was asked; the message says why. Recorded as `unsupported`."""


class UsageError(SsmperfError):
    """The request is wrong or an input cannot be read. The command line exits with 2."""


class UnknownName(UsageError):
    """A name that is not registered; the message lists the nearest and all known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=3)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(known) or 'none'})")
        self.kind, self.name, self.known = kind, name, known


class DuplicateName(UsageError):
    """A name was registered twice."""


class PluginError(UsageError):
    """A plug-in could not be loaded."""


class UnreadableRun(UsageError):
    """A run folder is missing, damaged, or written by a newer version."""
