"""Place: a line of code that is named where something failed, and whose code it is."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

IMPLEMENTATIONS = "ssmperf.impls"  # a part of this package, but the code of backends
CORE = ("ssmperf", "ssmperf.suites", "ssmperf.reports")
LIBRARIES = ("torch", "functorch", "triton", "numpy", "cuda", "typer")
PACKAGES = {"site-packages", "dist-packages"}  # folders of installed packages, inside the standard library's


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, and the function or kernel around it (None if unknown)."""

    file: str
    line: int
    function: str | None = None

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{self.line}" + (f" ({self.function})" if self.function else "")

    @property
    def of_author(self) -> bool:
        """Whether the line is of a backend's author: not of the core, a library or the standard library."""
        return is_authors(self.file)


def places_of(error: BaseException) -> list[Place]:
    """List the lines through which an exception came, outermost first."""
    frames = traceback.walk_tb(error.__traceback__)
    found = [Place(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        found.append(Place(error.filename, error.lineno))
    return found


def innermost(places: Iterable[Place]) -> Place | None:
    """Choose the last place in a backend author's code, or else the last of all; None if there is none."""
    listed = list(places)
    chosen = [place for place in listed if place.of_author] or listed
    return chosen[-1] if chosen else None


def place_of(error: BaseException) -> Place | None:
    """Find the line that an exception should name.

    A library may wrap the exception of a callback, as Triton's interpreter wraps those of a kernel. Then the
    callback's line is closer to the fault than the line that called the library.
    """
    found = innermost(places_of(error))
    for each in causes(error):
        places = places_of(each)
        if any(place.of_author for place in places):
            found = innermost(places)
        if places and places[-1].of_author:
            break
    return found


def causes(error: BaseException) -> Iterator[BaseException]:
    """List an exception, that from which it was raised, and so on; a circle ends where it began."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__


def authors_files(error: BaseException) -> Iterator[str]:
    """List the files of authors' code: those of an exception's lines first, then those of loaded modules."""
    seen: set[str] = set()
    for each in causes(error):
        for place in reversed(places_of(each)):
            if place.of_author and place.file not in seen:
                seen.add(place.file)
                yield place.file
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in seen and is_authors(file):
            seen.add(file)
            yield file


def is_authors(file: str) -> bool:
    """Tell whether a file is neither of the core, nor of a library or the standard library."""
    path = Path(file)
    if not path.is_file():  # generated code, or compiled code that names its source
        return False
    own, others = _folders()
    if any(path.is_relative_to(folder) for folder in own):
        return True
    if any(path.is_relative_to(folder) for folder in others):
        return False
    standard = next((folder for folder in _standard_library() if path.is_relative_to(folder)), None)
    return standard is None or not PACKAGES.isdisjoint(path.relative_to(standard).parts)


@functools.cache
def _folders() -> tuple[list[Path], list[Path]]:
    """List the folders of the implementations, and those of the core and of libraries."""
    others = [folder for name in (*CORE, *LIBRARIES) for folder in _of_package(name)]
    return _of_package(IMPLEMENTATIONS), others


def _of_package(name: str) -> list[Path]:
    """Find the folders of a package without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # no parent package; a module without a spec
        return []
    return [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]


@functools.cache
def _standard_library() -> list[Path]:
    return [Path(path) for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))]
