"""The elementwise work that selective_scan does around its recurrence can as well be done outside."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, D, N, T, normal

SOURCE = "the definition of selective_scan"
BOUNDS = (0, 6, 6, 7, T)  # one sequence is empty, one has a single step


def _operands(batch: int, gate: str) -> dict[str, Any]:
    x, k = normal(batch, T, D), normal(batch, T, N, seed=1)
    given: dict[str, Any] = {"x": x, "k": k, "q": normal(batch, T, N, seed=2), "gate": gate}
    if gate == "exp":
        step = functional.softplus(normal(batch, T, D, seed=3))
        return {**given, "delta": step, "A": -torch.exp(normal(D, N, seed=4))}
    beta = torch.sigmoid(normal(batch, T, D, seed=3))
    return {**given, "delta": beta / (1 + beta * k.square().sum(-1, keepdim=True))}


@identity("packed_sequences_are_separate_calls", of="selective_scan", subjects=(), source=SOURCE)
def packed_sequences(compute: Compute) -> Iterator[Comparison]:
    """Pack an empty sequence, one of a single step and others; from states and from none, with both gates."""
    starts = normal(len(BOUNDS) - 1, D, N, seed=5)
    for gate, state in (("exp", starts), ("exp", None), ("implicit", starts)):
        given = _operands(1, gate)
        output, final = compute(
            "selective_scan", **given, cu_seqlens=torch.tensor(BOUNDS), initial_state=state
        )
        outputs, finals = [], list((torch.zeros_like(starts) if state is None else starts).split(1))
        for i, (first, end) in enumerate(pairwise(BOUNDS)):
            if first == end:
                continue
            part = {
                name: value[:, first:end] if name in ("x", "delta", "k", "q") else value
                for name, value in given.items()
            }
            part["initial_state"] = None if state is None else state[i : i + 1]
            result, finals[i] = compute("selective_scan", **part)
            outputs.append(result)
        label = gate if state is not None else f"{gate}, from none"
        yield f"output, {label}", output, torch.cat(outputs, dim=1)
        yield f"final_state, {label}", final, torch.cat(finals)


@identity(
    "step_sizes_skip_and_output_gate_are_elementwise",
    of="selective_scan",
    subjects=("mamba",),
    source=SOURCE,
)
def around(compute: Compute) -> Iterator[Comparison]:
    """Apply Δ = softplus(delta + bias) before, and (o + skip ⊙ x) ⊙ silu(z) after the recurrence."""
    given = _operands(B, "exp")
    raw, bias = normal(B, T, D, seed=6) - 2, normal(D, seed=7)
    skip, z = normal(D, seed=8), normal(B, T, D, seed=9)
    output, final = compute(
        "selective_scan",
        **{**given, "delta": raw},
        delta_bias=bias,
        delta_softplus=True,
        skip=skip,
        output_gate=z,
    )
    plain, state = compute("selective_scan", **{**given, "delta": functional.softplus(raw + bias)})
    yield "output", output, (plain + skip * given["x"]) * functional.silu(z)
    yield "final_state", final, state
