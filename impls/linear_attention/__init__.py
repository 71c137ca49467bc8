"""Matrix state with separable gates S_t = (α_t β_tᵀ) ⊙ S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t (F2).

α_t = exp(log_a_t + i·phase_t) gates the key axis, β_t = exp(log_b_t) the value axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ssmperf.authoring import Cost, Shape, Spec, least_count, log_gates, phases, recurrence

from .._autocast import without_autocast
from .._states import as_state
from ..scan.common import one_by_one, shared_heads
from ._signature import check_read

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 16, "K": 128, "V": 128}],
    "long": [{"B": 1, "H": 16, "K": 128, "V": 128}],
}
OPERAND_SHAPES = {
    "v": "B T H V",
    "q": "B T G K",
    "k": "B T G K",
    "log_a": "H | H K | B T H | B T H K",
    "phase": "H | H K | B T H | B T H K",
    "log_b": "B T H V",
    "bonus": "H K",
    "cu_seqlens": "S+1",
    "initial_state": "B H K V | S H K V",
}


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the kind: `none`, `const`, `scalar`, `key`, `value` or `both`; with a phase `_complex` follows."""
    gates = [operands.get(name) for name in ("log_a", "phase")]
    present = [gate for gate in gates if gate is not None]
    if not present:
        kind = "none"
    elif all(gate.dim() <= 2 for gate in present):
        kind = "const"
    elif any(gate.dim() in (2, 4) for gate in present):
        kind = "key"
    else:
        kind = "scalar"
    if operands.get("log_b") is not None:
        kind = "value" if kind == "none" else "both"
    return kind + ("_complex" if operands.get("phase") is not None else "")


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Count a pass: forward reads operands and writes o; backward reads these and do, writes gradients.

    On short sequences attention without a state does with fewer operations: T (K + V) a token and the final
    state's 2KV, and T (3K + 2V) for backward.
    """
    tokens, K, V = shape["B"] * shape["T"] * shape["H"], shape["K"], shape["V"]
    names = [name for name in ("q", "k", "v", "log_a", "log_b", "phase", "bonus") if name in specs]
    operands = sum(specs[name].nbytes for name in names)
    complex_operands = any(specs[name].complex for name in ("q", "k", "v"))
    output = tokens * V * (max(8, specs["v"].itemsize) if complex_operands else specs["v"].itemsize)
    special = sum(specs[name].numel for name in ("log_a", "log_b", "phase") if name in specs)
    factor = 4 if "phase" in specs or complex_operands else 1
    steps, T = 5 * K * V * tokens * factor, shape["T"]
    fewest = least_count(steps, (T * (K + V) + 2 * K * V) * tokens * factor)
    forward = Cost(operands + output, steps, special, T, fewest)
    fewest = least_count(2 * steps, T * (3 * K + 2 * V) * tokens * factor)
    backward = Cost(2 * operands + output, 2 * steps, special, T, fewest)
    return Cost.of_pass(pass_, forward, backward, specs)


def sample(
    shape: Shape, *, regime: str, generator: Generator, gate_kind: str = "key"
) -> dict[str, Tensor | None]:
    """Draw float32 operands; the gates follow a regime, and q is scaled by K^-1/2."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    kind, _, field = gate_kind.partition("_")
    sizes = {"const": (H,), "scalar": (B, T, H), "key": (B, T, H, K), "both": (B, T, H, K)}
    gates = sizes.get(kind)
    if gates is None and (field or regime == "phase"):
        gates = (H, K)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=generator.device)

    return {
        "q": normal(B, T, H, K) * K**-0.5,
        "k": normal(B, T, H, K),
        "v": normal(B, T, H, V),
        "log_a": log_gates(regime, gates, generator) if gates else None,
        "log_b": log_gates(regime, (B, T, H, V), generator) if kind in ("value", "both") else None,
        "phase": phases(gates, generator) if gates and (field or regime == "phase") else None,
    }


def gate_factors(log_a: Tensor, H: int, K: int) -> Tensor:
    """View a gate of any legal shape as (B|1, T|1, H, K|1)."""
    if log_a.dim() <= 2:
        return log_a.reshape(1, 1, H, -1)
    return log_a if log_a.dim() == 4 else log_a.unsqueeze(-1)


def decay_span(operands: Mapping[str, Any]) -> float:
    """Compute the largest sum over time of an element's log gates' magnitudes; infinite ones are left out.

    Both gates of an element (k, v) of the state count.
    """
    (_, T, H, _), K = operands["v"].shape, operands["q"].shape[-1]
    spans = torch.zeros(1, H, dtype=torch.float64, device=operands["v"].device)
    for name in ("log_a", "log_b"):
        log_gate = operands.get(name)
        if log_gate is not None:
            magnitude = gate_factors(log_gate.detach().double(), H, K).neg()
            magnitude = torch.where(torch.isfinite(magnitude), magnitude, 0).expand(-1, T, -1, -1)
            spans = spans + magnitude.sum(1).amax(-1)
    return float(spans.max())


@recurrence(
    "linear_attention",
    family="F2 outer product, separable gate",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("log_a", "log_b", "phase"),
    gate_kind=gate_kind,
    gate_kinds=(
        "key",
        "none",
        "const",
        "scalar",
        "value",
        "both",
        "const_complex",
        "scalar_complex",
        "key_complex",
        "both_complex",
    ),
    sample=sample,
    decay_span=decay_span,
    state_shape=lambda shape: (shape["B"], shape["H"], shape["K"], shape["V"]),
    linear=("v", "initial_state"),
    optional=("bonus",),
    calls=("read=pre", "read=pre bonus", "k:complex64 v:complex64", "q:complex64 k:complex64"),
)
@without_autocast
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = (α_t β_tᵀ) ⊙ S_{t-1} + k_t v_tᵀ, o_t = S_tᵀ q_t, one step after another.

    Args:
        q, k: (B, T, H, K), real or complex. The scale of q is the model's. Both may have fewer heads Hk, a
            divisor of H: head h reads key head h·Hk // H.
        v: (B, T, H, V).
        log_a: log magnitude of the key gate, ≤ 0: None (1), (H,), (H, K), (B, T, H) or (B, T, H, K).
        log_b: log of the value gate, ≤ 0: None or (B, T, H, V).
        initial_state: S_0 (B, H, K, V), zeros if None.
        phase: phase of the key gate in radians, in any of log_a's shapes; makes the state complex.
        bonus: u (H, K); reads S_{t-1} + diag(u) k_t v_tᵀ. Needs read="pre".
        read: "post" reads S_t; "pre" reads S_{t-1}.
        cu_seqlens: (n + 1,), int32 or int64, from 0 to T without decreasing: bounds of sequences that lie one
            after another in the one batch element. Each starts from its own state, and may be empty.
            initial_state and S_T then are (n, H, K, V). Checking its values waits for the GPU. The backend
            `triton` does so once per T and n: later calls of that kind do not wait, and have no meaning if
            the values are wrong. Bounds on the CPU it checks and copies; it refuses them while a CUDA graph
            is being captured, which would keep the copy.

    Returns:
        o (B, T, H, V), complex if q, k or v is complex, else real in the dtype of v (under a phase, the real
        part); and S_T (B, H, K, V), float32/complex64 or wider.
    """
    check_read(read, bonus)
    q, k = shared_heads(q, k, v)
    if cu_seqlens is not None:
        given = {"q": q, "k": k, "v": v, "log_a": log_a, "log_b": log_b, "phase": phase, "bonus": bonus}
        return one_by_one(partial(linear_attention, read=read), cu_seqlens, given, initial_state)
    B, T, H, K = q.shape
    operands = [t for t in (q, k, v, log_a, log_b, phase) if t is not None]
    wide = torch.float32
    for operand in operands:
        wide = torch.promote_types(wide, operand.dtype)
    real_operands = not (q.is_complex() or k.is_complex() or v.is_complex())
    if phase is not None:
        wide = torch.promote_types(wide, torch.complex64)
    real = wide.to_real()

    gate = None
    if log_a is not None:
        gate = torch.exp(gate_factors(log_a.to(real), H, K)).to(wide)
    if phase is not None:
        angle = gate_factors(phase.to(real), H, K)
        turn = torch.polar(torch.ones_like(angle), angle)
        gate = turn if gate is None else gate * turn
    gates = [None] * T if gate is None else gate.expand(-1, T, -1, -1).unbind(1)
    value_gates = [None] * T if log_b is None else torch.exp(log_b.to(real)).unbind(1)

    state = q.new_zeros(B, H, K, v.shape[-1], dtype=wide)
    state = state if initial_state is None else as_state(initial_state, wide)
    outputs = []
    steps = zip(
        q.to(wide).unbind(1), k.to(wide).unbind(1), v.to(wide).unbind(1), gates, value_gates, strict=True
    )
    for q_t, k_t, v_t, a_t, b_t in steps:
        key, value = k_t.unsqueeze(-1), v_t.unsqueeze(-2)
        before = state
        if a_t is not None:
            state = a_t.unsqueeze(-1) * state
        if b_t is not None:
            state = b_t.unsqueeze(-2) * state
        state = torch.addcmul(state, key, value)
        seen = state if read == "post" else before
        if bonus is not None:
            seen = torch.addcmul(seen, bonus.to(wide).unsqueeze(-1) * key, value)
        outputs.append((q_t.unsqueeze(-2) @ seen).squeeze(-2))
    output = torch.stack(outputs, dim=1)
    if not wide.is_complex:
        return output.to(v.dtype), state
    return (output.real.to(v.dtype) if real_operands else output), state
