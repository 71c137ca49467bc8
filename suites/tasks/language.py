"""Byte-level language: say the next byte of a text (the set-up of Longhorn, Liu et al. 2024, §5.4, in small).

Data card
- Text: `--corpus`, a file or a folder of files; by default the sources of Python's standard library.
- Of several files a tenth, drawn by the checksums of their paths, is held out, but no file that repeats 2 %
  of its windows of 32 bytes from others; of a single file, its last tenth. Results on text say which share
  of the held-out windows occurs in the text to learn.
- Training rows are windows of T bytes at random places of the text to learn. Every step has a target, the
  byte that follows it.
- Test rows are the same bytes at every T, cut anew: as many as the rows would have at the length of the
  training. No state is carried from one row to the next. So the accuracy of longer rows differs by what a
  network makes of more context, and by nothing else. They start at a place of the held-out text that follows
  from the seed. The last fifth of that text is left to the rows of validation, which are drawn likewise.
- The most frequent byte, mostly a blank, is right at about one step of five.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ssmperf import UsageError
from ssmperf.authoring import Draw, Examples, Task, split_text, task

BYTES = 256
VALIDATION_SHARE = 5  # one of so many parts of the held-out text


def sample(draw: Draw) -> Examples:
    """Draw examples as the data card says. A target's reach is the part of the row before it."""
    text = _text(draw)
    generator = np.random.default_rng(draw.seed)
    if draw.held_out:
        rows = max(1, draw.rows * draw.trained // draw.T)
        starts = int(generator.integers(len(text))) + draw.T * np.arange(rows)
    else:
        starts = generator.integers(len(text), size=draw.rows)
    # the text goes on at its beginning where it ends within a row
    places = (starts[:, None] + np.arange(draw.T + 1)) % len(text)
    read = text[torch.from_numpy(places)].long()
    reaches = torch.arange(1, draw.T + 1).expand(len(starts), -1)
    return Examples(read[:, :-1], read[:, 1:], reaches)


def _text(draw: Draw) -> Tensor:
    """Read the part of the corpus that a draw is from: to learn, for tests, or for validation."""
    try:
        learnt, unseen = split_text(draw.corpus)
    except (OSError, ValueError) as error:
        raise UsageError(f"the corpus cannot be used: {error}") from error
    if len(unseen) < VALIDATION_SHARE:
        raise UsageError(f"the corpus cannot be used: only {len(unseen)} of its bytes are held out")
    end = len(unseen) - len(unseen) // VALIDATION_SHARE
    held_out = unseen[end:] if draw.validation else unseen[:end]
    return torch.from_numpy(np.frombuffer(held_out if draw.held_out else learnt, np.uint8).copy())


@task("language")
def language() -> Task:
    """Make the task; its text is the run's corpus."""
    return Task(vocabulary=BYTES, classes=BYTES, sample=sample)
