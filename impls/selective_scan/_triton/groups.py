"""How the kernels' parameters are grouped.

Triton takes a NamedTuple of tensors as one argument, and drops its fields that are None. Run-time counts stay
parameters of their own: within a tuple Triton would compile anew for counts of 1 and for multiples of 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import triton.language as tl

from ..._triton.arithmetic import COMPILED

COUNTS = ("T", "length", "segments", "checkpoints", "blocks", "stretches")  # not to be specialised


class Operands(NamedTuple):
    """x, delta: (B, T, D). k, q: (B, T, N), N filled up to whole words of 8 bytes. A: (D, N) or None."""

    x: Any
    delta: Any
    k: Any
    q: Any
    A: Any


class Fused(NamedTuple):
    """Options, None where absent: skip and the bias of delta (D,), the output gate z (B, T, D)."""

    skip: Any = None
    z: Any = None
    bias: Any = None


class Summaries(NamedTuple):
    """Final states of segments (B, segments, G·M, D), and products of their gates of the same shape.

    For exp gates, ΣΔ (B, segments, D) stands for the product.
    """

    states: Any
    decays: Any


class Arriving(NamedTuple):
    """Gradients that backward is given: of o (B, T, D) and of the final states (B, D, N)."""

    o: Any
    final: Any


class Gradients(NamedTuple):
    """Results of backward; sums over channels, batches or segments are left to the host.

    x, delta, z: (B, T, D). kq: (B, blocks of channels, T, G, 2, M). A: (B, segments, G·M, D).
    state: (B, D, N). skip, bias: (B, segments, D).
    """

    x: Any
    delta: Any
    kq: Any
    A: Any
    state: Any
    skip: Any
    z: Any
    bias: Any


class Task(NamedTuple):
    """Constants of a call: sizes, gate, fused.

    SPREAD: step sizes are formed in the kernel, each by one lane. PACKED: time holds several sequences.
    """

    D: Any
    N: Any
    GATE: Any
    ZOH: Any
    SOFTPLUS: Any
    SPREAD: Any
    PACKED: Any


class Tile(NamedTuple):
    """Constants of a pass: what a program has in registers, and how many step blocks lie between checkpoints.

    A program has CHANNELS × GROUPS × STATES states: a thread holds STATES of each of ADJACENT channels.
    EVEN: CHANNELS divide D. WHOLE: segments are whole, and step blocks too. STAGES: of the pipeline.
    """

    STEPS: Any
    CHANNELS: Any
    GROUPS: Any
    STATES: Any
    ADJACENT: Any
    BLOCKS: Any
    EVEN: Any
    WHOLE: Any
    STAGES: Any


Group = TypeVar("Group", Task, Tile)


def constants(group: Group) -> Group:
    """The group as a kernel's parameter: every field a constant of its own."""
    return type(group)(*map(tl.constexpr, group)) if COMPILED.value else group
