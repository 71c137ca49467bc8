"""Sequences packed into one time axis: each is cut into spans by itself, so that no program meets two.

The table that says where spans lie is made on the host; in the kernels a span is a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """Spans of packed sequences, those without steps left out.

    table: (7, spans) int64: first step, end, sequence, spans of the sequence before and after, first mark,
        and how many rounds all spans before it have, those of a mark at most each.
    followed, preceded: spans that have one after, or before, in their sequence.
    marks: of all sequences, each of which begins with one. rounds: those of all spans, as in the table.
    """

    table: Tensor
    followed: Tensor
    preceded: Tensor
    marks: int
    rounds: int

    @classmethod
    def of(cls, bounds: Sequence[int], span: int, mark: int, steps: int, device: torch.device) -> Packed:
        """steps: of a round."""
        starts = torch.tensor(bounds)
        lengths = starts.diff()
        counts, marks = (-(-lengths // length) for length in (span, mark))
        sequence = torch.arange(len(lengths)).repeat_interleave(counts)
        before = torch.arange(len(sequence)) - (counts.cumsum(0) - counts)[sequence]
        after = counts[sequence] - 1 - before
        first = starts[sequence] + before * span
        end = torch.minimum(first + span, starts[sequence + 1])
        first_mark = (marks.cumsum(0) - marks)[sequence] + before * (span // mark)
        followed, preceded = (inner.nonzero().flatten().to(device) for inner in (after, before))
        rounds = (-((first - end) // steps)).clamp(max=mark // steps)
        earlier = rounds.cumsum(0) - rounds
        table = torch.stack([first, end, sequence, before, after, first_mark, earlier]).to(device)
        return cls(table, followed, preceded, int(marks.sum()), int(rounds.sum()))

    @property
    def spans(self) -> int:
        return self.table.shape[1]


@triton.jit
def span_at(rest, T, span, spans, marks, table):
    """Of a program's index without its block: its row among all spans, those before and after it in its
    sequence (a batch element, if none are packed), the sequence, the first token that steps count from, the
    first step and the end, the mark and the step that marks count from.
    """
    if table is None:
        before = rest % spans
        sequence = (rest // spans).to(tl.int64)
        first = (before * span).to(tl.int64)
        end = tl.minimum(first + span, T)
        row = sequence * spans + before
        return row, before, spans - 1 - before, sequence, sequence * T, first, end, sequence * marks, 0
    else:
        at = table + rest
        first = tl.load(at)
        end = tl.load(at + spans)
        sequence = tl.load(at + 2 * spans)
        before = tl.load(at + 3 * spans)
        after = tl.load(at + 4 * spans)
        mark = tl.load(at + 5 * spans)
        return rest.to(tl.int64), before, after, sequence, first * 0, first, end, mark, first
