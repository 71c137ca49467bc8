"""Matrix state with a rank-one correction, the delta rule and diagonal plus low rank.

See docs/recurrences.md#delta_rule.

delta: S̄_t = diag(α_t) S_{t-1}, S_t = S̄_t + β_t k_t (v_t − S̄_tᵀ k_t)ᵀ.
dplr:  S_t = (diag(α_t) + p_t r_tᵀ) S_{t-1} + β_t k_t v_tᵀ.
Both: o_t = S_tᵀ q_t, α_t = exp(log_a_t).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ssmperf.authoring import Cost, Shape, Spec, UsageError, least_count, log_gates, recurrence

from .._autocast import without_autocast
from ..scan.common import one_by_one, shared_heads

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128}],
    "long": [{"B": 1, "H": 16, "K": 128, "V": 128}],
}
OPERAND_SHAPES = {
    "v": "B T H V",
    "q": "B T G K",
    "k": "B T G K",
    "beta": "B T H",
    "log_a": "H | B T H | B T H K",
    "p": "B T H K",
    "r": "B T H K",
    "cu_seqlens": "S+1",
    "initial_state": "B H K V | S H K V",
}
GATE_KINDS = ("key", "none", "const", "scalar", "dplr", "dplr_const", "dplr_scalar", "dplr_key")


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the kind: `none`, `const`, `scalar` or `key`; with p and r `dplr`, or `dplr_` before the kind."""
    log_a = operands.get("log_a")
    kind = "none" if log_a is None else {1: "const", 3: "scalar", 4: "key"}[log_a.dim()]
    if operands.get("p") is None:
        return kind
    return "dplr" if kind == "none" else f"dplr_{kind}"


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads operands and writes o; backward reads these and do, and writes gradients.

    A token costs three products of vector and state (2KV each): the read with k or r, a rank-one write, and
    the read with q. The gate costs KV, p and r 2KV more. Backward costs about twice that. On short sequences
    the WY form without a state does with fewer: 2T (K + V) a token and the state's 2KV; backward 4T (K + V).
    """
    tokens, K, V = shape["B"] * shape["T"] * shape["H"], shape["K"], shape["V"]
    names = [name for name in ("q", "k", "v", "beta", "log_a", "p", "r") if name in specs]
    operands = sum(specs[name].nbytes for name in names)
    output = tokens * V * specs["v"].itemsize
    gated, special = ("log_a" in specs), (specs["log_a"].numel if "log_a" in specs else 0)
    step = (6 + gated + 2 * ("p" in specs)) * K * V * tokens
    T, pairs = shape["T"], shape["T"] * (K + V) * tokens
    forward = Cost(operands + output, step, special, T, least_count(step, 2 * pairs + 2 * K * V * tokens))
    backward = Cost(2 * operands + output, 2 * step, special, T, least_count(2 * step, 4 * pairs))
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "key"
) -> dict[str, Tensor | None]:
    """Draw float32 operands; the gates follow a regime (they are real: `phase` is `ones`), and |k| = 1.

    β is in (0, 2), the whole stable range. With p and r it is in (0, 1), r is a unit vector near k and
    p = −β s ⊙ r with s in [½, 1] constant in time: diag(α) + p rᵀ is a contraction in the norm that
    diag(s)^(−½) gives, whatever the gates: states stay bounded at any length.
    """
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    form, _, kind = gate_kind.partition("_") if gate_kind.startswith("dplr") else ("", "", gate_kind)
    gates = {"const": (H,), "scalar": (B, T, H), "key": (B, T, H, K)}.get(kind)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=generator.device)

    k = functional.normalize(normal(B, T, H, K), dim=-1)
    beta = torch.sigmoid(normal(B, T, H))
    operands: dict[str, Tensor | None] = {
        "q": normal(B, T, H, K) * K**-0.5,
        "k": k,
        "v": normal(B, T, H, V),
        "beta": beta if form else 2 * beta,
        "log_a": log_gates(regime, gates, generator) if gates else None,
    }
    if form:
        r = functional.normalize(k + 0.5 * K**-0.5 * normal(B, T, H, K), dim=-1)
        share = 0.5 + 0.5 * torch.rand(H, K, generator=generator, device=generator.device)
        operands |= {"p": -beta.unsqueeze(-1) * share * r, "r": r}
    return operands


def check(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_a: Tensor | None, p: Any, r: Any) -> None:
    """Refuse operands that do not belong together.

    Raises:
        UsageError: only one of p and r, neither these nor beta, a gate of an illegal shape, a complex
            operand, or beta, log_a, p or r with other heads than v.
    """
    if (p is None) != (r is None):
        raise UsageError("p and r come together: give both (dplr) or neither (delta rule)")
    if beta is None and p is None:
        raise UsageError("the delta rule needs beta (B, T, H)")
    if log_a is not None and log_a.dim() not in (1, 3, 4):
        raise UsageError(f"log_a must be (H,), (B, T, H) or (B, T, H, K), got {tuple(log_a.shape)}")
    for operand in (q, k, v, beta, log_a, p, r):
        if operand is not None and operand.is_complex():
            raise UsageError("delta_rule is real: it takes no complex operands")
    H = v.shape[2]
    for name, x in (("beta", beta), ("log_a", log_a), ("p", p), ("r", r)):
        if x is not None and x.shape[:3][-1:] != (H,):
            raise UsageError(f"{name} must have as many heads as v, {H}, got {tuple(x.shape)}")


def gate_factors(log_a: Tensor) -> Tensor:
    """View a gate of any legal shape as (B|1, T|1, H, K|1)."""
    if log_a.dim() == 4:
        return log_a
    return log_a.unsqueeze(-1) if log_a.dim() == 3 else log_a.view(1, 1, -1, 1)


@recurrence(
    "delta_rule",
    family="F4 rank-1 corrected",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("log_a",),
    gate_kind=gate_kind,
    gate_kinds=GATE_KINDS,
    sample=sample,
    state_shape=lambda shape: (shape["B"], shape["H"], shape["K"], shape["V"]),
    linear=("v", "initial_state"),
    stepwise=True,
)
@without_autocast
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    p: Tensor | None = None,
    r: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = S̄_t + β_t k_t (v_t − S̄_tᵀ k_t)ᵀ with S̄_t = diag(α_t) S_{t-1}, o_t = S_tᵀ q_t, step after step.

    With p and r: S_t = (diag(α_t) + p_t r_tᵀ) S_{t-1} + β_t k_t v_tᵀ, where r reads the ungated state.

    Args:
        q, k: (B, T, H, K). The scale of q is the model's. Both may have fewer heads Hk, a divisor of H:
            head h reads key head h·Hk // H. All other operands have one head per head of v.
        v: (B, T, H, V).
        beta: (B, T, H). States are stable for 0 ≤ β|k|² ≤ 2. With p and r, beta only scales the write, and
            None means 1.
        log_a: log of the key gate α, ≤ 0: None (1), (H,), (B, T, H) or (B, T, H, K). −inf is a reset.
        initial_state: S_0 (B, H, K, V), zeros if None.
        p, r: (B, T, H, K), the low-rank term. The caller sees to it that the transitions are stable.
        cu_seqlens: (n + 1,), int32 or int64, from 0 to T without decreasing: bounds of sequences that lie one
            after another in the one batch element. Each starts from its own state, and may be empty.
            initial_state and S_T then are (n, H, K, V). Checking its values waits for the GPU.

    Returns:
        o (B, T, H, V) in the dtype of v, and S_T (B, H, K, V) in float32 (float64 if an operand is).

    Raises:
        UsageError: operands that do not belong together (see `check`), heads of q and k that do not divide H,
            or no legal bounds.
    """
    check(q, k, v, beta, log_a, p, r)
    if cu_seqlens is not None:
        packed = {"q": q, "k": k, "v": v, "beta": beta, "log_a": log_a, "p": p, "r": r}
        return one_by_one(delta_rule, cu_seqlens, packed, initial_state)
    B, T, H, V = v.shape
    given = [x for x in (q, k, v, beta, log_a, p, r) if x is not None]
    wide = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    K = q.shape[-1]
    values = v.to(wide)
    queries, keys = shared_heads(q.to(wide), k.to(wide), values)
    rates = values.new_ones(B, T, H) if beta is None else beta.to(wide)
    gates = values.new_ones(1, 1, 1, 1) if log_a is None else torch.exp(gate_factors(log_a.to(wide)))
    gates = gates.expand(B, T, H, K)
    state = values.new_zeros(B, H, K, V) if initial_state is None else initial_state.to(wide)
    operands = (queries, keys, values, rates.unsqueeze(-1) * keys, gates.unsqueeze(-1))
    absent = [None] * T
    low_rank = (absent if x is None else x.to(wide).unbind(1) for x in (p, r))
    outputs = []
    for q_t, k_t, v_t, write, gate, p_t, r_t in zip(*(x.unbind(1) for x in operands), *low_rank, strict=True):
        kept = gate * state
        if p_t is None or r_t is None:
            recalled = torch.einsum("bhkv,bhk->bhv", kept, k_t)
            state = torch.addcmul(kept, write.unsqueeze(-1), (v_t - recalled).unsqueeze(-2))
        else:
            recalled = torch.einsum("bhkv,bhk->bhv", state, r_t)
            corrected = torch.addcmul(kept, p_t.unsqueeze(-1), recalled.unsqueeze(-2))
            state = torch.addcmul(corrected, write.unsqueeze(-1), v_t.unsqueeze(-2))
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q_t))
    return torch.stack(outputs, dim=1).to(v.dtype), state
