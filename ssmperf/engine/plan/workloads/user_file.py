"""Read a small text file that a user names, and check the numbers in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssmperf.errors import UsageError

LARGEST_FILE = 1_000_000  # bytes
LARGEST_SIZE = 1_000_000  # of one dimension of a layer
LONGEST = 2**40  # tokens


def parsed(path: Path, parse: Callable[[str], Any], form: str) -> Any:
    """Read a small file and parse it.

    form: the name of the file's format, for messages.

    Raises:
        UsageError: the file is missing, no ordinary file, too large, not UTF-8 or not of that format.
    """
    text = read_text(path)
    try:
        return parse(text)
    except RecursionError:
        raise UsageError(f"{path}: its {form} is nested too deeply to be a configuration") from None
    except ValueError as error:
        raise UsageError(f"{path} is not {form}: {' '.join(str(error).split()):.200}") from None


def read_text(path: Path) -> str:
    """Read a small file.

    Raises:
        UsageError: the file is missing, no ordinary file, too large or not UTF-8.
    """
    if not str(path).isprintable():
        raise UsageError(f"{str(path)!r}: rename the file, so that messages can show its path in one line")
    try:
        if not path.exists():
            raise UsageError(f"{path}: no such file")
        if not path.is_file():
            raise UsageError(f"{path} is no ordinary file; name a file such as {path / 'config.json'}")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{path} has more than {LARGEST_FILE:,} bytes: it is no description of a model")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None


def whole(value: Any, name: str, most: int = LARGEST_SIZE) -> int:
    """Check a whole number from 1 to `most`.

    name: the file and the key, for messages.

    Raises:
        UsageError: it is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{name} must be a whole number from 1 to {most:,}, got {shown(value)}")
    return value


def shown(value: Any) -> str:
    """Show a value of any size in a few characters of one line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 60 else f"{text[:57]}..."
