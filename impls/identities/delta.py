"""The delta rule behind other names: Longhorn's exact solution, test-time training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, H, K, T, V, build, normal

SOURCE = "docs/recurrences.md#identities"


@identity(
    "exact_longhorn_is_a_delta_rule_a_channel",
    of="delta_rule",
    subjects=("longhorn_exact", "deltanet"),
    source=SOURCE,
)
def longhorn(compute: Compute) -> Iterator[Comparison]:
    """Take β = Δ and the keys as they are; or unit keys, values over |k| and β|k|²/(1 + β|k|²)."""
    model = build("longhorn_exact", H=H, K=K, V=1)
    x = normal(B, T, H)
    operands = model.operands(x)
    k, q = (operands[name].expand(B, T, H, K) for name in "kq")
    own, _ = compute("delta_rule", q=q, k=k, v=operands["v"], beta=operands["beta"])
    yield "y", model.readout(own, x), model.definition(x)
    length = k.norm(dim=-1, keepdim=True)
    beta = operands["beta"] * length.squeeze(-1).square()
    unit, _ = compute("delta_rule", q=q, k=k / length, v=operands["v"] / length, beta=beta)
    yield "y, unit keys", model.readout(unit, x), model.definition(x)


@identity(
    "longhorn_of_a_shared_step_is_deltanet",
    of="delta_rule",
    subjects=("longhorn_exact", "deltanet"),
    source=SOURCE,
)
def shared_longhorn(compute: Compute) -> Iterator[Comparison]:
    """Share one Δ among V channels: their states are columns of one matrix, which minimises the objective."""
    k, q, v = normal(B, T, 1, K), normal(B, T, 1, K, seed=1), normal(B, T, 1, V, seed=2)
    beta = torch.sigmoid(normal(B, T, 1, seed=3))
    step = beta / (1 + beta * k.square().sum(-1))
    output, _ = compute("delta_rule", q=q, k=k, v=v, beta=step)
    eye, S, outputs = torch.eye(K, dtype=torch.float64), torch.zeros(B, K, V, dtype=torch.float64), []
    for t in range(T):  # argmin ‖S − S'‖² + β‖Sᵀk − v‖², from its normal equations
        k_t, weight = k[:, t, 0], beta[:, t, 0].view(B, 1, 1)
        outer = k_t.unsqueeze(-1) * k_t.unsqueeze(-2)
        right = S + weight * k_t.unsqueeze(-1) * v[:, t, 0].unsqueeze(-2)
        S = torch.linalg.solve(eye + weight * outer, right)
        outputs.append(torch.einsum("bkv,bk->bv", S, q[:, t, 0]))
    yield "output", output.squeeze(2), torch.stack(outputs, dim=1)


@identity(
    "ttt_linear_a_step_at_a_time_is_deltanet",
    of="delta_rule",
    subjects=("ttt_linear", "deltanet"),
    source=SOURCE,
)
def ttt_linear(compute: Compute) -> Iterator[Comparison]:
    """Step along autograd's gradient of ½|Wᵀk − v|² with rate η: the delta rule with β = η."""
    q, k, v = normal(B, T, H, K), normal(B, T, H, K, seed=1), normal(B, T, H, V, seed=2)
    k = functional.normalize(k, dim=-1)
    rate = torch.sigmoid(normal(B, T, H, seed=3))
    output, _ = compute("delta_rule", q=q, k=k, v=v, beta=rate)
    W, outputs = torch.zeros(B, H, K, V, dtype=torch.float64), []
    for t in range(T):
        W = W - rate[:, t, :, None, None] * _gradient(W, k[:, t], v[:, t])
        outputs.append(torch.einsum("bhkv,bhk->bhv", W, q[:, t]))
    yield "output", output, torch.stack(outputs, dim=1)


@identity(
    "ttt_linear_of_one_batch_is_linear_attention",
    of="linear_attention",
    subjects=("ttt_linear_batch", "linear_transformer"),
    source=SOURCE,
)
def ttt_linear_batch(compute: Compute) -> Iterator[Comparison]:
    """Take all gradients at W = 0: linear attention with values scaled by the rate."""
    q, k, v = normal(B, T, H, K), normal(B, T, H, K, seed=1), normal(B, T, H, V, seed=2)
    rate = torch.sigmoid(normal(B, T, H, seed=3))
    output, _ = compute("linear_attention", q=q, k=k, v=rate.unsqueeze(-1) * v)
    zero = torch.zeros(B, H, K, V, dtype=torch.float64)
    W, outputs = zero, []
    for t in range(T):
        W = W - rate[:, t, :, None, None] * _gradient(zero, k[:, t], v[:, t])
        outputs.append(torch.einsum("bhkv,bhk->bhv", W, q[:, t]))
    yield "output", output, torch.stack(outputs, dim=1)


def _gradient(W: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Differentiate ½|Wᵀk − v|² by W (B, H, K, V)."""
    with torch.enable_grad():
        leaf = W.detach().requires_grad_()
        loss = 0.5 * (torch.einsum("bhkv,bhk->bhv", leaf, k) - v).square().sum()
        return torch.autograd.grad(loss, leaf)[0]
