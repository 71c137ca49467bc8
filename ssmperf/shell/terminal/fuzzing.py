"""What `ssmperf fuzz` prints: its progress on stderr, and at the end one line per distinct fault."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ssmperf.shell.terminal.display import LINE_EVERY_S, brief

if TYPE_CHECKING:
    from ssmperf.authors.fuzzing.fuzz import FuzzResult
    from ssmperf.authors.fuzzing.session import Tally

MOST_REASONS = 12  # of refusals


def progress(seed: int) -> Callable[[str, Tally], None]:
    """Make a function that prints a line every few seconds."""
    shown_s, faults = time.monotonic(), 0
    print(f"seed {seed}", file=sys.stderr, flush=True)

    def tell(text: str, tally: Tally) -> None:
        nonlocal shown_s, faults
        now_s = time.monotonic()
        if now_s - shown_s >= LINE_EVERY_S or tally.faults > faults or text.startswith("shrinking"):
            shown_s, faults = now_s, tally.faults
            print(f"[{summary(tally)}] {brief(text)}", file=sys.stderr, flush=True)

    return tell


def summary(tally: Tally) -> str:
    """Sum up how far a session is."""
    refused = sum(tally.refused.values())
    return (
        f"{tally.examples:,} examples, {tally.classes:,} classes, {tally.per_s:.1f}/s, "
        f"{tally.faults} faults, {refused:,} refused"
    )


def as_text(found: FuzzResult) -> str:
    """Give one line per fault with its command, the refusals by reason, and the totals."""
    lines = []
    for fault in found.faults:
        lines += [f"{brief(str(fault))}", f"    {fault.command}"]
    lines += [f"left out: {name} {problem}" for name, problem in found.left_out.items()]
    refused = found.tally.refused.most_common()
    lines += [f"refused {count:,}: {brief(reason)}" for reason, count in refused[:MOST_REASONS]]
    if len(refused) > MOST_REASONS:
        rest = sum(count for _, count in refused[MOST_REASONS:])
        lines.append(f"refused {rest:,}: {len(refused) - MOST_REASONS} other reasons")
    lines.append(f"{summary(found.tally)}; seed {found.seed}; {found.path}")
    return "\n".join(lines)
