"""Longhorn, Table 1: recurrences as steps that minimise an objective of online learning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf import compute
from ssmperf.suitekit import ClaimSetting, Estimate, Finding, agree_on_range, claim

from . import _papers as papers

K, V = 6, 5
SEEDS = 5
ROUNDING = 1e-12
STEPS = "steps"
Operands = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    objective: of a state S, from the state before and the operands of a step. step: the next state, by a
    backend. printed: the update, S being the state before. decides: whether it is a row of the table.
    """

    objective: Callable[[Tensor, Tensor, Operands], Tensor]
    step: Callable[[Tensor, Operands], Tensor]
    printed: str
    decides: bool = True


def quadratic(S: Tensor, before: Tensor, kept: Tensor | float, of: Operands) -> Tensor:
    """Weigh staying near the state before and staying small, minus twice how well the value is recalled."""
    near, small = (kept * (S - before).square()).sum(), ((1 - kept) * S.square()).sum()
    return near + small - 2 * (of["k"] @ S @ of["v"])


def associative(S: Tensor, before: Tensor, of: Operands) -> Tensor:
    """Weigh staying near the state before, and the error with which the key recalls the value."""
    return (S - before).square().sum() + of["beta"] * (of["k"] @ S - of["v"]).square().sum()


def griffin(S: Tensor, before: Tensor, of: Operands) -> Tensor:
    """The same for each channel by itself, whose input is weighed by √(1 − a²)."""
    a = of["channel"]
    near, small = (a * (S[0] - before[0]).square()).sum(), ((1 - a) * S[0].square()).sum()
    return (
        near
        + small
        - 2 * ((1 - a.square()).sqrt() * S[0] * of["v"]).sum()
        + (S[1:] - before[1:]).square().sum()
    )


def by_attention(log_a: Callable[[Operands], Tensor | None]) -> Callable[[Tensor, Operands], Tensor]:
    """Take the step of linear attention with gates."""

    def step(before: Tensor, of: Operands) -> Tensor:
        gates = log_a(of)
        more = {} if gates is None else {"log_a": gates}
        k, v = of["k"].view(1, 1, 1, K), of["v"].view(1, 1, 1, V)
        return _state(
            compute("linear_attention", "sequential", k, k, v, initial_state=before[None, None], **more)
        )

    return step


def by_delta_rule(before: Tensor, of: Operands) -> Tensor:
    """Take the step of the delta rule, at Longhorn's rate β / (1 + β k·k)."""
    rate = of["beta"] / (1 + of["beta"] * of["k"].square().sum())
    k, v = of["k"].view(1, 1, 1, K), of["v"].view(1, 1, 1, V)
    given = {"beta": rate.view(1, 1, 1), "initial_state": before[None, None]}
    return _state(compute("delta_rule", "sequential", k, k, v, **given))


def by_scan(before: Tensor, of: Operands) -> Tensor:
    """Take the step of a scan of channels, which are the first row of the state."""
    a, v = of["channel"].view(1, 1, V), of["v"].view(1, 1, V)
    _, last = compute(
        "scan", "sequential", a.log(), (1 - a.square()).sqrt() * v, initial_state=before[None, 0]
    )
    return torch.cat([last.view(1, V), before[1:]])


def by_diagonal(before: Tensor, of: Operands) -> Tensor:
    """Take the step of Longhorn's kernel, which keeps the diagonal of k kᵀ alone."""
    rate = of["beta"] / (1 + of["beta"] * of["k"].square().sum())
    k, x = of["k"].view(1, 1, K), of["v"].view(1, 1, V)
    delta = rate.expand(1, 1, V).contiguous()
    start = before.mT[None].contiguous()  # (B, D, N)
    _, last = compute(
        "selective_scan", "sequential", x=x, delta=delta, k=k, q=k, gate="implicit", initial_state=start
    )
    return torch.as_tensor(last).view(V, K).mT


ROWS = {
    "linear attention": Row(
        lambda S, before, of: quadratic(S, before, 1.0, of), by_attention(lambda of: None), "S + k vᵀ"
    ),
    "RetNet": Row(
        lambda S, before, of: quadratic(S, before, of["head"], of),
        by_attention(lambda of: of["head"].log().view(1, 1, 1)),
        "γ S + k vᵀ",
    ),
    "GLA": Row(
        lambda S, before, of: quadratic(S, before, of["key"][:, None], of),
        by_attention(lambda of: of["key"].log().view(1, 1, 1, K)),
        "diag(α) S + k vᵀ",
    ),
    "Griffin": Row(griffin, by_scan, "a ⊙ s + √(1 − a²) ⊙ x"),
    "Longhorn": Row(associative, by_delta_rule, "(I − Δ k kᵀ) S + Δ k xᵀ"),
    "Longhorn, its kernel": Row(associative, by_diagonal, "(1 − Δ k²) ⊙ S + Δ k xᵀ", decides=False),
}


@claim(
    "longhorn:table1",
    paper=papers.LONGHORN,
    place="Table 1 and Theorem 3.1",
    statement="Linear attention, RetNet, GLA, Griffin and Longhorn each take the step that minimises an "
    "objective of online learning.",
    printed="five objectives with their updates",
    runs="the minimum of each objective from a random state, by one step of Newton's method, which is "
    f"exact for a quadratic, against one step of our sequential backend, float64, {SEEDS} seeds",
    scaled=f"one head with K = {K} and V = {V}",
    rule=f"agrees: the states are equal up to rounding, {ROUNDING:g} of their size. The update of Longhorn's "
    "kernel, which keeps the diagonal of k kᵀ alone, is shown beside",
    doubts="Nobody, but on Griffin's weight of its input, which is √(1 − a²) here, as in Griffin's own paper",
    budget_s=30,
)
class Objectives:
    """One piece with all rows."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (STEPS,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        seeds = range(setting.seeds or SEEDS)
        return {name: max(distance(row, seed) for seed in seeds) for name, row in ROWS.items()}

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        distances = found.get(STEPS, {})
        for name, row in ROWS.items():
            known = distances.get(name)
            ours = None if known is None else Estimate.exact(known)
            yield Finding(
                f"distance of the step from the minimum, {name}",
                row.printed,
                {"largest over seeds": ours},
                agree_on_range(0.0, ROUNDING, ours),
                decides=row.decides,
            )


def distance(row: Row, seed: int) -> float:
    """Compare the step with the minimum of the objective, relative to the largest entry."""
    before, of = draw(seed)
    there, here = minimum(lambda S: row.objective(S, before, of), before), row.step(before, of)
    return float((here - there).abs().max() / there.abs().max())


def minimum(objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Find the minimum of a quadratic: its gradient is linear, and its Hessian the same everywhere."""
    gradient = torch.func.grad(objective)(start).flatten()
    hessian = torch.func.jacrev(torch.func.grad(objective))(start).reshape(len(gradient), -1)
    step: Tensor = torch.linalg.solve(hessian, gradient).view_as(start)
    return start - step


def draw(seed: int) -> tuple[Tensor, Operands]:
    """Draw a state, and the operands of a step: gates of the head, of key channels and of channels."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    gates = {"head": normal(), "key": normal(K), "channel": normal(V), "beta": normal()}
    return normal(K, V), {"k": normal(K), "v": normal(V), **{name: x.sigmoid() for name, x in gates.items()}}


def _state(result: Any) -> Tensor:
    found: Tensor = result[1]
    return found.view(K, V)
