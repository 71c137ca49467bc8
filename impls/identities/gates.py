"""One gate in several forms (constant or per step, scalar or by key), and models that differ only there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, C, D, H, K, N, T, V, build, heads, normal

SOURCE = "docs/recurrences.md#identities"
PROPERTY = "docs/recurrences.md#identities"


@identity("a_const_gate_is_the_same_gate_at_every_step", of="scan", subjects=(), source=PROPERTY)
def const_scan(compute: Compute) -> Iterator[Comparison]:
    """Compare a constant gate with the same gate at every step, from h_0, real and complex."""
    b, h_0 = normal(B, T, C), normal(B, C, seed=1)
    log_a, phase = functional.logsigmoid(normal(1, 1, C, seed=2)), normal(1, 1, C, seed=3)
    for label, angle in (("real", None), ("complex", phase)):
        const = compute("scan", log_a=log_a, b=b, initial_state=h_0, phase=angle)
        spread = compute(
            "scan",
            log_a=log_a.expand(B, T, C),
            b=b,
            initial_state=h_0,
            phase=None if angle is None else angle.expand(B, T, C),
        )
        yield f"output, {label}", spread[0], const[0]
        yield f"final_state, {label}", spread[1], const[1]


def _matrices() -> dict[str, Tensor]:
    return {
        "q": normal(B, T, H, K, seed=1),
        "k": normal(B, T, H, K, seed=2),
        "v": normal(B, T, H, V, seed=3),
        "initial_state": normal(B, H, K, V, seed=4),
    }


@identity("a_scalar_gate_is_a_key_gate_of_equal_entries", of="linear_attention", subjects=(), source=PROPERTY)
def scalar_attention(compute: Compute) -> Iterator[Comparison]:
    """Compare one gate per head, at every step or constant, in all shapes that mean the same."""
    given = _matrices()
    scalar = functional.logsigmoid(normal(B, T, H, seed=5))
    const = functional.logsigmoid(normal(H, seed=6))
    narrow = compute("linear_attention", **given, log_a=scalar)
    wide = compute("linear_attention", **given, log_a=scalar.unsqueeze(-1).expand(B, T, H, K))
    yield "output, scalar", wide[0], narrow[0]
    yield "final_state, scalar", wide[1], narrow[1]
    narrow = compute("linear_attention", **given, log_a=const)
    for label, gate in (
        ("(H, K)", const.unsqueeze(-1).expand(H, K)),
        ("(B, T, H)", const.expand(B, T, H)),
        ("(B, T, H, K)", const.unsqueeze(-1).expand(B, T, H, K)),
    ):
        wide = compute("linear_attention", **given, log_a=gate)
        yield f"output, const as {label}", wide[0], narrow[0]
        yield f"final_state, const as {label}", wide[1], narrow[1]


@identity("a_gated_delta_rule_with_equal_key_gates_is_scalar", of="delta_rule", subjects=(), source=PROPERTY)
def scalar_delta(compute: Compute) -> Iterator[Comparison]:
    """Compare one gate per head with equal gates of all its keys."""
    given = _matrices()
    given["k"] = functional.normalize(given["k"], dim=-1)
    given["beta"] = torch.sigmoid(normal(B, T, H, seed=7))
    scalar = functional.logsigmoid(normal(B, T, H, seed=5))
    narrow = compute("delta_rule", **given, log_a=scalar)
    wide = compute("delta_rule", **given, log_a=scalar.unsqueeze(-1).expand(B, T, H, K))
    yield "output", wide[0], narrow[0]
    yield "final_state", wide[1], narrow[1]


@identity("heads_are_interchangeable", of="linear_attention", subjects=(), source=PROPERTY)
def swapped_heads(compute: Compute) -> Iterator[Comparison]:
    """Permute the heads: the results are permuted in the same way."""
    given = _matrices()
    given["log_a"] = functional.logsigmoid(normal(B, T, H, K, seed=5))
    swapped = {name: x.flip(1 if name == "initial_state" else 2) for name, x in given.items()}
    output, state = compute("linear_attention", **given)
    other, last = compute("linear_attention", **swapped)
    yield "output", other.flip(2), output
    yield "final_state", last.flip(1), state


@identity("retnet_is_gla_with_a_const_gate", of="linear_attention", subjects=("retnet", "gla"), source=SOURCE)
def retnet(compute: Compute) -> Iterator[Comparison]:
    """Give RetNet's γ as a key gate at every step."""
    operands = build("retnet", H=H, K=K, V=V).operands(normal(B, T, H * V))
    expanded = operands["log_a"].view(1, 1, H, 1).expand(B, T, H, K)
    left, _ = compute("linear_attention", **{**operands, "log_a": expanded})
    right, _ = compute("linear_attention", **operands)
    yield "output", left, right


@identity("hgrn2_is_gla_with_tied_key", of="linear_attention", subjects=("hgrn2", "gla"), source=SOURCE)
def hgrn2(compute: Compute) -> Iterator[Comparison]:
    """Compute GLA with k = 1 − f and q = o."""
    model = build("hgrn2", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    f = torch.sigmoid(heads(model.forget(x)))
    q, v = torch.sigmoid(heads(model.output(x))), functional.silu(heads(model.input(x)))
    o, _ = compute("linear_attention", q=q, k=1 - f, v=v, log_a=torch.log(f))
    yield "y", o.flatten(-2), model.definition(x)


@identity("hgrn2_of_head_width_one_is_hgrn", of="linear_attention", subjects=("hgrn2", "hgrn"), source=SOURCE)
def hgrn2_of_width_one(compute: Compute) -> Iterator[Comparison]:
    """Give both models the same parameters."""
    matrix, elementwise = build("hgrn2", H=C, K=1, V=1), build("hgrn", C=C)
    elementwise.load_state_dict(matrix.state_dict())
    x = normal(B, T, C)
    o, _ = compute("linear_attention", **matrix.operands(x))
    yield "y", matrix.readout(o, x), elementwise.definition(x)


@identity(
    "gateloop_with_a_non_negative_gate_is_gla",
    of="linear_attention",
    subjects=("gateloop_full", "gla"),
    source=SOURCE,
)
def real_gateloop(compute: Compute) -> Iterator[Comparison]:
    """Drop the phase."""
    model = build("gateloop_full", H=H, K=K, V=V)
    torch.nn.init.zeros_(model.phase.weight)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    del operands["phase"]
    o, _ = compute("linear_attention", **operands)
    yield "y", o.flatten(-2), model.definition(x)


@identity(
    "max_headed_gateloop_is_heads_of_width_one",
    of="linear_attention",
    subjects=("gateloop", "gateloop_full"),
    source=SOURCE,
)
def max_headed_gateloop(compute: Compute) -> Iterator[Comparison]:
    """Set K = V = 1, with the same parameters, phases included."""
    elementwise, matrix = build("gateloop", C=C), build("gateloop_full", H=C, K=1, V=1)
    matrix.load_state_dict(elementwise.state_dict())
    x = normal(B, T, C)
    o, _ = compute("linear_attention", **matrix.operands(x))
    yield "y", matrix.readout(o, x), elementwise.definition(x)


@identity(
    "max_headed_gateloop_without_phase_is_a_real_scan", of="scan", subjects=("gateloop",), source=SOURCE
)
def real_max_headed_gateloop(compute: Compute) -> Iterator[Comparison]:
    """Compare phases of zero with no phase."""
    model = build("gateloop", C=C)
    torch.nn.init.zeros_(model.phase.weight)
    x = normal(B, T, C)
    operands = model.operands(x)
    del operands["phase"]
    h, _ = compute("scan", **operands)
    yield "y", model.query(x) * h, model.definition(x)


@identity(
    "gateloop_with_a_fixed_transition_is_a_convolution",
    of="scan",
    subjects=("gateloop_fixed",),
    source=SOURCE,
)
def fixed_gateloop(compute: Compute) -> Iterator[Comparison]:
    """Sum over lags with the weights Re a^j, which no step changes."""
    model = build("gateloop_fixed", C=C)
    x = normal(B, T, C)
    h, _ = compute("scan", **model.operands(x))
    lag = torch.arange(T).view(T, 1)
    kernel = torch.exp(-lag * torch.exp(model.nu)) * torch.cos(lag * model.theta)  # Re a^j (T, C)
    written = model.key(x) * model.value(x)
    sums = [(kernel[: t + 1].flip(0) * written[:, : t + 1]).sum(1) for t in range(T)]
    yield "y", model.readout(h, x), model.query(x) * torch.stack(sums, dim=1)


@identity(
    "hgrn_complex_without_phase_is_two_hgrns", of="scan", subjects=("hgrn_complex", "hgrn"), source=SOURCE
)
def hgrn_complex(compute: Compute) -> Iterator[Comparison]:
    """Run the real and the imaginary part on their own."""
    model = build("hgrn_complex", C=C)
    torch.nn.init.zeros_(model.theta)
    x = normal(B, T, C)
    operands = model.operands(x)
    parts = [
        compute("scan", log_a=operands["log_a"], b=part)[0]
        for part in (operands["b"].real, operands["b"].imag)
    ]
    yield "y", torch.sigmoid(model.output(x)) * torch.cat(parts, dim=-1), model.definition(x)


@identity(
    "mamba2_is_s6_with_a_rate_shared_by_the_states",
    of="selective_scan",
    subjects=("mamba2", "mamba"),
    source=SOURCE,
)
def mamba2_as_s6(compute: Compute) -> Iterator[Comparison]:
    """Give each channel its head's step and rate, the same for all states."""
    count = 2 * H  # H·V = 2·width
    model = build("mamba2", H=count, K=K, V=V)
    u = normal(B, T, H * V)
    x = model.input(u)
    step = functional.softplus(model.step(u) + model.step_bias).repeat_interleave(V, dim=-1)
    rates = -torch.exp(model.A_log).repeat_interleave(V).unsqueeze(-1).expand(count * V, K).contiguous()
    o, _ = compute("selective_scan", x=x, delta=step, k=model.B(u), q=model.C(u), A=rates)
    yield "y", o + model.D.repeat_interleave(V) * x, model.definition(u)


@identity("f3_is_f2_with_a_head_a_channel", of="selective_scan", subjects=("mamba", "mamba2"), source=SOURCE)
def f3_as_f2(compute: Compute) -> Iterator[Comparison]:
    """Use H = D heads with V = 1, which share k and q and have their channel's gate."""
    x, delta = normal(B, T, D), functional.softplus(normal(B, T, D, seed=1))
    k, q, A = normal(B, T, N, seed=2), normal(B, T, N, seed=3), -torch.exp(normal(D, N, seed=4))
    S_0 = normal(B, D, N, seed=5)
    output, state = compute("selective_scan", x=x, delta=delta, k=k, q=q, A=A, initial_state=S_0)
    shared = (B, T, D, N)
    as_heads, last = compute(
        "linear_attention",
        q=q.unsqueeze(2).expand(shared),
        k=k.unsqueeze(2).expand(shared),
        v=(delta * x).unsqueeze(-1),
        log_a=delta.unsqueeze(-1) * A,
        initial_state=S_0.unsqueeze(-1),
    )
    yield "output", output, as_heads.squeeze(-1)
    yield "final_state", state, last.squeeze(-1)
