"""Matrix state shared by channels, gate not separable: S_t = G_t ⊙ S_{t-1} + (Δ_t ⊙ x_t) k_tᵀ, o_t = S_t q_t.

S is D × N; k and q are the same for all D channels; G_t is formed element by element
(docs/recurrences.md#selective_scan). A layer's parts around it (step sizes by softplus, a skip, an output
gate, packed sequences) are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Cost, Shape, Spec, recurrence

from .._autocast import without_autocast
from .._states import as_state
from ._sampler import GATE_KINDS, decay_span, sample, sample_optional
from ._signature import HUGE, Arguments, bounds_of, check, gate_kind, outer, present, working_dtype

PRESETS = {
    "smoke": [{"B": 1, "D": 32, "N": 8}],
    "standard": [{"B": 8, "D": 1536, "N": 16}],
    "long": [{"B": 1, "D": 1536, "N": 16}],
}
OPERAND_SHAPES = {
    "x": "B T D",
    "k": "B T N",
    "q": "B T N",
    "delta": "B T D",
    "A": "D N",
    "g": "B T D | B T N | B T D 1 | B T 1 N",
    "skip": "D",
    "output_gate": "B T D",
    "delta_bias": "D",
    "cu_seqlens": "S+1",
    "initial_state": "B D N | S D N",
}
OPERANDS = ("x", "delta", "k", "q", "A", "g", "skip", "output_gate", "delta_bias", "cu_seqlens")
# by kind of gate, per element: floating-point operations forwards, backwards; special functions
GATE_WORK = {"exp": (1, 4, 1), "implicit": (2, 5, 0), "sigmoid": (3, 6, 3), "const": (0, 1, 0)}


def cost(shape: Shape, specs: Mapping[str, Spec], pass_: str) -> Cost:
    """Compute the least cost: forward reads every operand once and writes the output once.

    Backward reads the operands and do, and writes gradients. An element (d, n) of a step takes a write, a
    gated sum and a read. Backward forms the states once more and runs their adjoint. The operands present
    tell how the gate is formed.
    """
    tokens = shape["B"] * shape["T"]
    elements = tokens * shape["D"] * shape["N"]
    operands = sum(spec.nbytes for name, spec in specs.items() if name in OPERANDS)
    output = specs["x"].nbytes
    if "g" in specs:
        kind = "sigmoid"
    elif "A" not in specs:
        kind = "implicit"
    else:
        kind = "exp" if "delta" in specs else "const"
    forwards, backwards, special = GATE_WORK[kind]
    complex_state = "A" in specs and specs["A"].complex
    factor, special = (4, 3 * special) if complex_state else (1, special)
    forward = Cost(operands + output, (5 + forwards) * elements * factor, special * elements, shape["T"])
    backward = Cost(
        2 * operands + output, (15 + forwards + backwards) * elements * factor, special * elements, shape["T"]
    )
    return Cost.of_pass(pass_, forward, backward, specs)


@recurrence(
    "selective_scan",
    family="F3 low-rank operands, inseparable gate",
    cost=cost,
    presets=PRESETS,
    operand_shapes=OPERAND_SHAPES,
    gates=("delta", "A", "g", "delta_bias"),
    gate_kind=gate_kind,
    gate_kinds=GATE_KINDS,
    sample=sample,
    state_shape=lambda shape: (shape["B"], shape["D"], shape["N"]),
    decay_span=decay_span,
    decay_operands={"exp": ("A",), "const": ("A",)},
    linear=("x", "initial_state"),
    joint=("delta", "k"),
    optional=("skip", "output_gate", "delta_bias"),
    sample_optional=sample_optional,
    calls=(
        "skip",
        "output_gate",
        "delta_bias delta_softplus",
        "skip output_gate delta_bias delta_softplus",
    ),
)
@without_autocast
def selective_scan(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    gate: str = "exp",
    g: Tensor | None = None,
    tau: float = 1.0,
    discretization: str = "euler",
    skip: Tensor | None = None,
    output_gate: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """S_t = G_t ⊙ S_{t-1} + (Δ_t ⊙ x_t) k_tᵀ, o_t = S_t q_t, one step after another.

    Args:
        x: (B, T, D), real.
        delta: step size Δ (B, T, D), ≥ 0. None stands for ones where the gate does not need it.
        k, q: (B, T, N), shared by the channels; complex only with a complex A.
        A: (D, N); see `gate`. With a complex A the state is complex and o_t = 2·Re(S_t q_t), the sum over the
            stored half of conjugate pairs.
        initial_state: S_0 (B, D, N), zeros if None.
        gate: "exp": exp(Δ_t ⊗ A), Re A ≤ 0 (S6). "implicit": 1 − Δ_t ⊗ k_t², legal where it lies in [0, 1]
            (Longhorn). "sigmoid": σ(g_t ⊙ A)^(1/tau) (LCSM o_codes 6-9). "const": exp(A), Re A ≤ 0.
        g: (B, T, D) or (B, T, N) for gate="sigmoid"; if D = N, (B, T, D, 1) or (B, T, 1, N).
        tau: temperature of gate="sigmoid".
        discretization: "euler" writes Δ_t k_t; "zoh", with gate="exp", writes expm1(Δ_t ⊗ A) / A ⊙ k_t, which
            is Δ_t k_t at A = 0.
        skip: (D,), real; o_t gains skip ⊙ x_t (Mamba's D).
        output_gate: z (B, T, D), real; o_t, skip included, is multiplied by silu(z_t).
        delta_bias: (D,), real, and delta_softplus: Δ = softplus(delta + delta_bias), or without either.
        cu_seqlens: (n + 1,), int32 or int64, from 0 to T without decreasing: bounds of sequences that lie one
            after another in the one batch element. Each starts from its own state, and may be empty.
            initial_state and S_T then are (n, D, N). Checking its values waits for the GPU. The backend
            `triton` does so once per T and n: later calls of that kind do not wait, and have no meaning if
            the values are wrong. Bounds on the CPU it checks and copies; it refuses them while a CUDA graph
            is being captured, which would keep the copy.

    Re A = -inf, a log gate of -inf and a gate of 0 are resets. Δ = 0 keeps the state, whatever A.

    Returns:
        o (B, T, D) in the dtype of x and S_T (B, D, N), float32/complex64 or wider.

    Raises:
        UsageError: the operands contradict one another, or their shapes that do not fit.
    """
    given = Arguments(
        x, delta, k, q, A, initial_state, gate=gate, g=g, tau=tau, discretization=discretization, skip=skip,
        output_gate=output_gate, delta_bias=delta_bias, delta_softplus=delta_softplus, cu_seqlens=cu_seqlens,
    )  # fmt: skip
    check(given)
    bounds = bounds_of(given)
    B, T, D = x.shape
    N = k.shape[2]
    wide = working_dtype(x, delta, k, q, A, g, skip, output_gate, delta_bias)
    if bounds is not None:
        starts = x.new_zeros(len(bounds) - 1, D, N, dtype=wide) if initial_state is None else initial_state
        outputs, states = [], []
        for start, (first, end) in zip(starts.to(wide).split(1), pairwise(bounds), strict=True):
            states.append(start)
            if first < end:
                x_i, k_i, q_i = (each[:, first:end] for each in (x, k, q))
                delta_i, g_i, z_i = (
                    None if each is None else each[:, first:end] for each in (delta, g, output_gate)
                )
                output, states[-1] = selective_scan(
                    x_i, delta_i, k_i, q_i, A, start, gate=gate, g=g_i, tau=tau,
                    discretization=discretization, skip=skip, output_gate=z_i, delta_bias=delta_bias,
                    delta_softplus=delta_softplus,
                )  # fmt: skip
                outputs.append(output)
        return torch.cat(outputs, dim=1), torch.cat(states)
    real = wide.to_real()
    absent = [None] * T
    if delta is not None:
        delta = delta.to(real) if delta_bias is None else delta.to(real) + delta_bias.to(real)
        delta = torch.logaddexp(delta, torch.zeros_like(delta)) if delta_softplus else delta  # log(1 + exp Δ)
    steps = absent if delta is None else delta.unsqueeze(-1).unbind(1)  # (B, D, 1)
    factors = absent if g is None else outer(g.to(real), D, N).clamp(-HUGE, HUGE).unbind(1)
    inputs, keys, queries = x.to(wide).unsqueeze(-1), k.to(wide).unsqueeze(-2), q.to(wide).unsqueeze(-2)
    rate, turn = None, None
    if A is not None:
        rate = A.real.to(real).clamp(-HUGE, HUGE)
        turn = A.imag.to(real) if A.is_complex() else None

    state = x.new_zeros(B, D, N, dtype=wide)
    state = state if initial_state is None else as_state(initial_state, wide)
    outputs = []
    for x_t, delta_t, k_t, q_t, g_t in zip(
        inputs.unbind(1), steps, keys.unbind(1), queries.unbind(1), factors, strict=True
    ):
        written = x_t * k_t if delta_t is None else delta_t * x_t * k_t
        if gate == "implicit":
            gate_t = 1 - present(delta_t) * k_t.square()
        elif gate == "sigmoid":
            gate_t = torch.exp(functional.logsigmoid(present(g_t) * present(rate)) / tau)
        else:
            size = present(delta_t).clamp(max=HUGE) if gate == "exp" else 1
            exponent = size * present(rate)
            exponent = exponent if turn is None else torch.complex(exponent, size * turn)
            gate_t = torch.exp(exponent)
            if discretization == "zoh":
                written = size * mean_exponential(exponent) * x_t * k_t
        state = gate_t * state + written
        outputs.append((state * q_t).sum(-1))
    output = torch.stack(outputs, dim=1)
    output = 2 * output.real if wide.is_complex else output
    if skip is not None:
        output = output + skip.to(real) * x.to(real)
    if output_gate is not None:
        output = output * functional.silu(output_gate.to(real))
    return output.to(x.dtype), state


def mean_exponential(z: Tensor) -> Tensor:
    """Compute (exp(z) − 1) / z, 1 at z = 0; near 0 by a Taylor series, as rounding spoils the slope."""
    near = z.abs() < 0.5
    ones, small = torch.ones_like(z), z.masked_fill(~near, 0)
    tail = ones
    for n in range(17, 1, -1):
        tail = torch.addcmul(ones, small, tail, value=1 / n)
    away = z.masked_fill(near, 1)
    return torch.where(near, tail, torch.expm1(away) / away)
