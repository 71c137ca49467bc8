"""Write a report where it is wanted: into a file, or back to the caller."""

from __future__ import annotations

from pathlib import Path

from ssmperf import UsageError


def deliver(text: str, destination: Path | None) -> str | None:
    """Write text to the destination, or give it back if there is none."""
    if destination is None:
        return text
    write(destination, text.encode(errors="replace"))
    return None


def write(destination: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        UsageError: the file cannot be written.
    """
    path = Path(destination)
    try:
        path.write_bytes(content)
    except FileNotFoundError as error:
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
