"""The progress of `ssmperf fuzz`, with its rate, on stderr."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ssmperf.shell.terminal.display import LINE_EVERY_S, StepBar

if TYPE_CHECKING:
    from ssmperf.authors.fuzzing.session import Goal, Tally


@contextlib.contextmanager
def progress(seed: int, goal: Goal) -> Iterator[Callable[[str, Tally], None]]:
    """Show the progress until the end of the block: a bar on a terminal, a line every few seconds elsewhere.

    A bar is full when the goal is reached: after so many examples, or else seconds.
    """
    begun_s = shown_s = time.monotonic()
    faults = 0

    def tell(text: str, tally: Tally) -> None:
        nonlocal shown_s, faults
        now_s = time.monotonic()
        of_examples = goal.examples is not None
        steps.count(tally.examples if of_examples else now_s - begun_s, goal.examples or goal.seconds)
        notable = tally.faults > faults or text.startswith("shrinking")
        if steps.is_bar:
            steps.say(f"{tally.faults} faults; {text}")
        if notable or (not steps.is_bar and now_s - shown_s >= LINE_EVERY_S):
            shown_s, faults = now_s, tally.faults
            steps.say(f"[{tally}] {text}", lasting=True)

    with StepBar(counts=goal.examples is not None) as steps:
        steps.say(f"seed {seed}", lasting=True)
        yield tell
