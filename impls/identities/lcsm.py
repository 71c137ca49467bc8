"""Rows of the LCSM grid that are other models: oscillation 1, 10 and 11."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, K, T, V, build, normal, segment_sums

SOURCE = "docs/recurrences.md#identities"


@identity(
    "lcsm_oscillation_1_is_attention_gated_on_both_axes",
    of="linear_attention",
    subjects=("lcsm:1-1-1-0",),
    source=SOURCE,
)
def both_axes(compute: Compute) -> Iterator[Comparison]:
    """Weigh each key and value channel by the exponentials of the segment sums of log σ(·)/16."""
    model = build("lcsm:1-1-1-0", H=1, K=K, V=V)
    x = normal(B, T, V)
    log_a, log_b = (functional.logsigmoid(part(x)) / 16 for part in (model.key_factor, model.value_factor))
    keys, values = (torch.exp(segment_sums(gate.transpose(0, 1))) for gate in (log_a, log_b))
    o, _ = compute("linear_attention", **model.operands(x))
    y = torch.einsum(
        "bnk,bmk,nmbk,nmbv,bmv->bnv", model.shrink(x), model.expand(x), keys, values, model.input(x)
    )
    yield "y", model.readout(o, x), y


@identity(
    "lcsm_oscillation_10_is_ungated_attention",
    of="linear_attention",
    subjects=("lcsm:1-10-1-0",),
    source=SOURCE,
)
def ungated(compute: Compute) -> Iterator[Comparison]:
    """Use causal scores e·s, not normalised."""
    model = build("lcsm:1-10-1-0", H=1, K=K, V=V)
    x = normal(B, T, V)
    o, _ = compute("linear_attention", **model.operands(x))
    scores = (model.shrink(x) @ model.expand(x).mT).tril()
    yield "y", model.readout(o, x), scores @ model.input(x)


@identity(
    "lcsm_oscillation_11_is_lrpe", of="linear_attention", subjects=("lcsm:1-11-1-0", "lrpe"), source=SOURCE
)
def rotations(compute: Compute) -> Iterator[Comparison]:
    """Give both models the same parameters and one head."""
    grid, lrpe = build("lcsm:1-11-1-0", H=1, K=K, V=V), build("lrpe", H=1, K=K, V=V)
    weights = {"query": grid.shrink, "key": grid.expand, "value": grid.input}
    lrpe.load_state_dict({f"{name}.weight": part.weight for name, part in weights.items()})
    x = normal(B, T, V)
    o, _ = compute("linear_attention", **grid.operands(x))
    yield "y", grid.readout(o, x), lrpe.definition(x)
