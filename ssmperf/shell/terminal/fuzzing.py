"""The progress of `ssmperf fuzz`, with its rate, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ssmperf.shell.terminal.display import LINE_EVERY_S, brief

if TYPE_CHECKING:
    from ssmperf.authors.fuzzing.session import Tally


def progress(seed: int) -> Callable[[str, Tally], None]:
    """Make a function that prints a line every few seconds."""
    shown_s, faults = time.monotonic(), 0
    print(f"seed {seed}", file=sys.stderr, flush=True)

    def tell(text: str, tally: Tally) -> None:
        nonlocal shown_s, faults
        now_s = time.monotonic()
        if now_s - shown_s >= LINE_EVERY_S or tally.faults > faults or text.startswith("shrinking"):
            shown_s, faults = now_s, tally.faults
            print(f"[{tally}] {brief(text)}", file=sys.stderr, flush=True)

    return tell
