"""Failure: what a record says of an exception, or of a process that died.

Its author must find the line at fault from the reason alone. The traceback is for the rest.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from ssmperf.engine.cases.compilers import complaint_of
from ssmperf.engine.cases.place import Place, causes, innermost, place_of
from ssmperf.engine.cases.record import LONGEST_REASON, one_line
from ssmperf.errors import JudgeFailed

REFUSED_VALUES = "refused_values"  # the name of the note that another draw of the case may be taken
TRACEBACK = "traceback"  # the name of a record's traceback, among its numbers
LONGEST_TRACEBACK = 8000
KEPT_HEAD = 1500  # characters of the beginning of a longer one
FATAL = "Fatal Python error"
# faulthandler's words for a signal; the signal's own name says the same
SIGNALS = {
    f"{FATAL}: {name}"
    for name in (
        "Segmentation fault",
        "Aborted",
        "Bus error",
        "Floating-point exception",
        "Floating point exception",
        "Illegal instruction",
    )
}
STACK = re.compile(r"(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a failed case as one line that ends in the place, and its traceback as text."""

    reason: str
    traceback: str


def failure_of(error: BaseException, *, message: str | None = None) -> Failure:
    """Describe an exception: `TypeError: ... at FILE:LINE (function)`.

    The place is the innermost line of a backend author's own code: outside of the core, torch, Triton and
    the standard library. A compiler's error names the kernel's line and quotes it.

    message: stands for the exception's own message.
    """
    kind, words = type(error).__name__, message_of(error) if message is None else message
    if isinstance(error, JudgeFailed) and error.traceback:  # of another process, and with its place
        return Failure(at_place(_with_kind(kind, words), None), bounded(error.traceback))
    place = None
    try:
        complaint = complaint_of(error)
        if complaint is not None:
            kind, words, place = complaint.kind, complaint.text, complaint.place
        else:
            error_named, place = _unwrapped(error), place_of(error)
            if error_named is not error:
                kind, words = type(error_named).__name__, message_of(error_named)
        text = bounded("".join(traceback.format_exception(error)))
    except MemoryError:  # the failure may be that there is no memory, not even for its description
        text = ""
    return Failure(at_place(_with_kind(kind, words), place), text)


def _unwrapped(error: BaseException) -> BaseException:
    """Get a kernel's exception, which Triton's interpreter wraps in one of its own per function."""
    named = (each for each in causes(error) if type(each).__name__ != "InterpreterError")
    return next(named, error) if type(error).__name__ == "InterpreterError" else error


def message_of(error: BaseException) -> str:
    """Get an exception's message with its notes as one line, even if its `__str__` raises."""
    try:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        return one_line(f"{error}{notes}")
    except Exception as second:
        return f"(its message raises {type(second).__name__})"


def at_place(text: str, place: Place | None) -> str:
    """Add a place to a text. The text is shortened if both are longer than a reason may be."""
    end = one_line(f" at {place}" if place else "")
    end = f" {end}" if end else ""
    return one_line(text)[: max(0, LONGEST_REASON - len(end))] + end


def bounded(text: str) -> str:
    """Make text of several lines printable, and leave out the middle if it is too long."""
    shown = "\n".join(
        "".join(letter if letter.isprintable() or letter == "\t" else "\ufffd" for letter in line)
        for line in text.rstrip().splitlines()
    )
    if len(shown) <= LONGEST_TRACEBACK:
        return shown
    middle = "\n  [...]\n"
    return shown[:KEPT_HEAD] + middle + shown[len(shown) - LONGEST_TRACEBACK + KEPT_HEAD + len(middle) :]


def fatal_failure(how: str, log: str) -> Failure | None:
    """Describe a process that a fatal error has ended, from the stacks that faulthandler has logged.

    how: how it ended, such as "the worker was killed by SIGSEGV".

    Returns:
        None if the log has no fatal error.
    """
    start = log.rfind(FATAL)
    if start < 0:
        return None
    dumped = log[start:].partition("\nExtension modules:")[0]
    title = dumped.partition("\n")[0].strip()
    place = _last_place(dumped)
    text = how if place and title in SIGNALS else f"{how}: {title[: LONGEST_REASON // 2]}"
    return Failure(at_place(text, place), bounded(dumped))


def _last_place(dumped: str) -> Place | None:
    """Find the innermost line of an author's code in the stacks of a fatal error.

    The thread that failed may run no Python, as one of autograd's or of a library; then another thread waits
    for it, in the call that started it.
    """
    stacks: list[tuple[bool, list[Place]]] = []
    for line in dumped.splitlines():
        if match := STACK.match(line):
            stacks.append((match["current"] == "Current thread", []))
        elif stacks and (match := FRAME.match(line)):
            stacks[-1][1].insert(0, Place(match["file"], int(match["line"]), match["function"]))
    stacks.sort(key=lambda stack: not stack[0])  # the failing thread first
    found = [place for _, places in stacks if (place := innermost(places)) is not None]
    return next((place for place in found if place.of_author), found[0] if found else None)


def _with_kind(kind: str, message: str) -> str:
    return f"{kind}: {message}" if message else f"{kind} (no message)"
