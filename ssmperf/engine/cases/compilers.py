"""Compilers' errors: the line of the kernel that Triton, NVRTC or another compiler complains about.

Triton's exceptions hold the kernel's source and the node at fault. Other compilers are read off their log,
which is part of the exception's message: `FILE(LINE): error: ...` (NVRTC, nvcc) or
`FILE:LINE:COLUMN: error: ...`.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.place import Place, authors_files, causes, place_of

LOGGED = re.compile(
    r"^(?P<file>[^\s():\"'][^():\n]*?)(?:\((?P<line>\d+)\)|:(?P<row>\d+)(?::\d+)?): (?:fatal |catastrophic )?"
    r"error(?: [#\w-]+)?: (?P<text>[^\n]+)(?P<rest>(?:\n[^\n]*)?)",
    re.MULTILINE,
)
KERNEL = re.compile(r"\bdef\s+(\w+)")
# the head of a function in C++: a type or the line's beginning, the name, no semicolon behind the parameters
HEAD = re.compile(r"(?:^|[\w>&*\]]\s+[*&]*)(?P<name>[A-Za-z_]\w*)\s*\([^;]*$")
ATTRIBUTES = re.compile(r"\b(?:__launch_bounds__|__cluster_dims__|__align__|template)\s*[(<][^()<>]*[)>]")
CONTROL = re.compile(r"\b(?:if|else|for|while|switch|return|do|case|sizeof|static_assert)\b")


@dataclass(frozen=True, slots=True)
class Complaint:
    """A compiler's error: its kind, the message with the line of source, and the place."""

    kind: str
    text: str
    place: Place | None


def complaint_of(error: BaseException) -> Complaint | None:
    """Read a compiler's error; None if the exception is no such error."""
    if _is_tritons(error):
        return _of_triton(error)
    return _of_log(error)


def _is_tritons(error: BaseException) -> bool:
    """Tell whether an exception is a CompilationError of Triton or derives from it."""
    named = any(
        each.__name__ == "CompilationError" and each.__module__.partition(".")[0] == "triton"
        for each in type(error).__mro__
    )
    return named and hasattr(error, "src") and hasattr(error, "node")


def _of_triton(error: BaseException) -> Complaint:
    """Read the innermost of Triton's errors; the kernel's own names only the call of the faulty function."""
    inner: Any
    *_, inner = itertools.takewhile(_is_tritons, causes(error))
    words = str(getattr(inner, "error_message", None) or inner.__cause__ or inner)
    row, source = getattr(inner.node, "lineno", None), inner.src
    if not (isinstance(row, int) and isinstance(source, str)):
        return Complaint(type(inner).__name__, words, place_of(error))
    lines = source.splitlines()
    line = lines[row - 1].strip() if 0 < row <= len(lines) else ""
    place = _kernels_place(lines, row, error) or place_of(error)
    return Complaint(type(inner).__name__, _quoting(words, line), place)


def _kernels_place(lines: Sequence[str], row: int, error: BaseException) -> Place | None:
    """Find a row of a kernel in the file that has its source; the exception does not say which."""
    wanted = [line.strip() for line in lines]
    name = next((match[1] for line in wanted if (match := KERNEL.search(line))), None)
    for file in authors_files(error):
        present = [line.strip() for line in linecache.getlines(file)]
        for start in range(len(present) - len(wanted) + 1) if wanted else ():
            if present[start] == wanted[0] and present[start : start + len(wanted)] == wanted:
                return Place(file, start + row, name)
    return None


def _of_log(error: BaseException) -> Complaint | None:
    """Read the first error in a compiler's log, if the exception's message has one."""
    try:
        match = LOGGED.search(str(error))
    except Exception:  # an exception whose message cannot be had
        return None
    if match is None:
        return None
    name, row, words = match["file"], int(match["line"] or match["row"]), match["text"].strip()
    quoted = match["rest"].strip("\n")
    line = quoted.strip() if quoted[:1].isspace() else ""
    file = next((str(path) for path in _candidates(Path(name), error) if path.is_file()), None)
    kind = type(error).__name__
    if file is None:  # source without a file: the line that compiled it is a place, too
        return Complaint(kind, _quoting(f"{words}, line {row} of {name}", line), place_of(error))
    source = [each.rstrip("\n") for each in linecache.getlines(file)]
    line = line or (source[row - 1].strip() if 0 < row <= len(source) else "")
    return Complaint(kind, _quoting(words, line), Place(file, row, _function_around(source, row)))


def _candidates(name: Path, error: BaseException) -> Iterator[Path]:
    """List the paths that a log may mean: NVRTC names its program without a folder."""
    yield from (Path(file).parent / name for file in authors_files(error))
    yield Path.cwd() / name


def _function_around(lines: Sequence[str], row: int) -> str | None:
    """Name the C++ function whose head stands above a line, or on it; None if none is found."""
    for line in reversed(lines[:row]):
        bare = ATTRIBUTES.sub(" ", line.partition("//")[0]).partition("{")[0]
        if (match := HEAD.search(bare)) and not CONTROL.search(bare) and "=" not in bare:
            return match["name"]
    return None


def _quoting(words: str, line: str) -> str:
    return f"{words}: `{line}`" if line and line not in words else words
