"""Check that a model's operands and readout, around the recurrence's definition, compute the model's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.judge.oracle import evaluate
from ssmperf.engine.judge.tolerance import perturb, relative_error, tolerance
from ssmperf.engine.operands.build import build_model, embed_text

LONGEST = 67  # steps; a definition is a literal loop, and some loop over all pairs of steps


@dataclass(frozen=True, slots=True)
class Lowering:
    """How far a model's lowering is from its definition in float64, and how far it may be."""

    error: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.error <= self.limit

    @property
    def reason(self) -> str:
        return (
            f"lowering: its operands and readout give another y than its definition, relative error "
            f"{self.error:.2e} above the tolerance {self.limit:.2e}"
        )


def judge_lowering(case: Case, device: str) -> Lowering:
    """Compare the model's definition with its lowering to the recurrence's definition, in float64 on text."""
    assert case.model is not None
    T = min(case.shape["T"], LONGEST)
    definition = registry.recurrence(case.recurrence).definition
    layer = build_model(case.model, case.shape.with_(B=1, T=1), case.seed).to(device).double()
    x = embed_text(1, T, layer.width, seed=case.seed, device=device).double()
    with torch.no_grad():
        operands = layer.operands(x)
        exact, moved = (
            layer.readout(evaluate(definition, values, length=T * layer.steps_per_token).output, x)
            for values in (operands, perturb(operands, torch.float64))
        )
        expected = layer.definition(x)
    if expected.shape != exact.shape:
        return Lowering(float("nan"), 0.0)
    limit = tolerance(relative_error(moved, exact), torch.float64, gradient=True)
    return Lowering(relative_error(exact, expected), limit)
