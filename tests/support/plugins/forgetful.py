"""A plug-in with a task that asks for the first token of a row, and a backend that forgets old steps."""

from __future__ import annotations

import torch
from torch import Tensor

import ssmperf
from ssmperf.authoring import IGNORED, Draw, Examples, Task

WINDOW = 16  # steps that the backend remembers


@ssmperf.backend("scan", name="forgets", gates=("const", "data"))
def forgets(log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None):
    """Compute the scan without inputs older than WINDOW steps: right up to that length."""
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(log_a.expand(b.shape).exp().unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    output, sums = torch.stack(states, 1), log_a.expand(b.shape).cumsum(1)
    old = (sums[:, WINDOW:] - sums[:, :-WINDOW]).exp() * output[:, :-WINDOW]
    output = torch.cat([output[:, :WINDOW], output[:, WINDOW:] - old], 1)
    return output, output[:, -1]


def sample(draw: Draw, *, filler: int) -> Examples:
    generator = torch.Generator().manual_seed(draw.seed % 2**63)
    tokens = torch.full((draw.rows, draw.T), filler)
    tokens[:, 0] = torch.randint(filler, (draw.rows,), generator=generator)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = tokens[:, 0]
    return Examples(tokens, targets, torch.full_like(tokens, draw.T))


@ssmperf.task("first_token")
def first_token(*, words: int = 2) -> Task:
    """Name the first token, after nothing but filler.

    words: number of different first tokens.
    """
    return Task(words + 1, words, lambda draw: sample(draw, filler=words))
