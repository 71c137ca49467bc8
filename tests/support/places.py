"""Places in a file, as reasons of crashes name them."""

from __future__ import annotations

from pathlib import Path


def place(file: Path, text: str, function: str) -> str:
    """Give `at FILE:LINE (FUNCTION)` for the only line of a file that has a text."""
    lines = [number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1, f"{text!r} is on {len(lines)} lines of {file}"
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"at {shown}:{lines[0]} ({function})"
