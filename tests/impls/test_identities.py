"""Cross-model identities (RECURRENCES.md §6.3): two formulas, one function; and the near misses that are not.

Each identity is checked by the recurrence's definition and by its sequential backend, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Model, registry

B, T, C, H, K, V = 2, 19, 6, 3, 4, 5

Run = Callable[..., Tensor]


@pytest.fixture(params=["definition", "sequential"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(recurrence, **operands) -> output`."""

    def compute(recurrence: str, **operands: Tensor) -> Tensor:
        if request.param == "definition":
            return registry.recurrence(recurrence).definition(**operands)[0]
        return registry.backend(recurrence, "sequential").function(**operands)[0]

    return compute


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name: str, **sizes: int) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls(sizes).double()


def matrix_operands() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and the pre-activation of a key gate."""
    return (normal(B, T, H, K, seed=1), normal(B, T, H, K, seed=2),
            normal(B, T, H, V, seed=3), normal(B, T, H, K, seed=4))  # fmt: skip


def segment_sums(log_a: Tensor) -> Tensor:
    """Σ_{m < j ≤ n} log a_j over the first axis as [n, m], −∞ for m > n: literal sums, no differences."""
    length = log_a.shape[0]
    rows = [
        [
            log_a[m + 1 : n + 1].sum(0) if m <= n else torch.full_like(log_a[0], -torch.inf)
            for m in range(length)
        ]
        for n in range(length)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def projections(model: Model, x: Tensor) -> tuple[Tensor, ...]:
    """q, k, v by head."""
    return tuple(linear(x).unflatten(-1, (H, -1)) for linear in (model.query, model.key, model.value))


def decayed_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """RetNet's parallel form: o_n = K^(−1/2) Σ_{m ≤ n} γ_h^(n−m) (q_n·k_m) v_m, heads flattened."""
    lag = torch.arange(T).view(T, 1) - torch.arange(T)
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    mask = torch.where(lag >= 0, gamma.view(H, 1, 1) ** lag.clamp(min=0), 0.0)
    scores = torch.einsum("bnhk,bmhk->bhnm", q, k) / K**0.5
    return torch.einsum("bhnm,bmhv->bnhv", scores * mask, v).flatten(-2)


def rotate(q: Tensor) -> Tensor:
    """q_n e^(inθ) on pairs of neighbouring channels, θ_j = 10000^(−2j/K)."""
    angle = torch.outer(torch.arange(T), 10000.0 ** (-2 * torch.arange(K // 2, dtype=torch.float64) / K))
    turn = torch.polar(torch.ones_like(angle), angle).unsqueeze(1)  # (T, 1, K/2)
    return torch.view_as_real(torch.view_as_complex(q.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def assert_same(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def assert_different(got: Tensor, want: Tensor, least: float = 0.05) -> None:
    assert (got - want).abs().max() > least * want.abs().max()


def test_hgrn2_is_gated_linear_attention_with_tied_key(run: Run) -> None:
    model = build("hgrn2", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    f = torch.sigmoid(model.forget(x)).unflatten(-1, (H, K))
    q = torch.sigmoid(model.output(x)).unflatten(-1, (H, K))
    v = functional.silu(model.input(x)).unflatten(-1, (H, V))
    as_gla = run("linear_attention", q=q, k=1 - f, v=v, log_a=torch.log(f))
    assert_same(as_gla.flatten(-2), model.definition(x))


def test_hgrn2_of_head_width_one_is_hgrn(run: Run) -> None:
    matrix, elementwise = build("hgrn2", H=C, K=1, V=1), build("hgrn", C=C)
    elementwise.load_state_dict(matrix.state_dict())
    x = normal(B, T, C)
    assert_same(matrix.readout(run("linear_attention", **matrix.operands(x)), x),
                elementwise.readout(run("scan", **elementwise.operands(x)), x))  # fmt: skip


def test_retnet_is_gla_with_a_constant_gate(run: Run) -> None:
    operands = build("retnet", H=H, K=K, V=V).operands(normal(B, T, H * V))
    expanded = operands["log_a"].view(1, 1, H, 1).expand(B, T, H, K)
    assert_same(run("linear_attention", **operands),
                run("linear_attention", **{**operands, "log_a": expanded}))  # fmt: skip


def test_retnet_is_decayed_attention() -> None:
    model = build("retnet", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    assert_same(model.definition(x), decayed_attention(*projections(model, x)))


def test_gla_is_attention_weighted_by_its_gates() -> None:
    model = build("gla", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    q, k, v = projections(model, x)
    log_a = functional.logsigmoid(model.gate_up(model.gate_down(x))).unflatten(-1, (H, K)) / 16
    weights = torch.exp(segment_sums(log_a.transpose(0, 1)))  # (n, m, B, H, K)
    o = torch.einsum("bnhk,bmhk,nmbhk,bmhv->bnhv", q, k, weights, v) / K**0.5
    assert_same(model.definition(x), o.flatten(-2))


def test_normalised_linear_attention_is_attention_with_the_feature_kernel() -> None:
    model = build("linear_transformer", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    q, k, v = projections(model, x)
    weights = torch.einsum("bnhk,bmhk->bhnm", 1 + functional.elu(q), 1 + functional.elu(k)).tril()
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    assert_same(model.definition(x), torch.einsum("bhnm,bmhv->bnhv", weights, v).flatten(-2))


def test_gateloop_with_a_non_negative_real_gate_is_gla(run: Run) -> None:
    model = build("gateloop_full", H=H, K=K, V=V)
    torch.nn.init.zeros_(model.phase.weight)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    assert not operands.pop("phase").any()
    assert_same(run("linear_attention", **operands).flatten(-2), model.definition(x))


def test_max_headed_gateloop_with_zero_phase_is_a_real_scan(run: Run) -> None:
    model = build("gateloop", C=C)
    torch.nn.init.zeros_(model.phase.weight)
    x = normal(B, T, C)
    operands = model.operands(x)
    del operands["phase"]
    assert_same(model.query(x) * run("scan", **operands), model.definition(x))


def test_max_headed_gateloop_is_matrix_gateloop_with_heads_of_width_one(run: Run) -> None:
    elementwise, matrix = build("gateloop", C=C), build("gateloop_full", H=C, K=1, V=1)
    matrix.load_state_dict(elementwise.state_dict())
    x = normal(B, T, C)
    assert_same(elementwise.readout(run("scan", **elementwise.operands(x)), x),
                matrix.readout(run("linear_attention", **matrix.operands(x)), x))  # fmt: skip


def test_gateloop_gates_the_key_axis_not_the_value_axis(run: Run) -> None:
    q, k, v, z = matrix_operands()
    v, log_a = v[..., :K], functional.logsigmoid(z)
    key_gated = run("linear_attention", q=q, k=k, v=v, log_a=log_a)
    weights = torch.exp(segment_sums(log_a.transpose(0, 1)))  # (n, m, B, H, K)
    attention = torch.einsum("bnhk,bmhk,nmbhk,bmhv->bnhv", q, k, weights, v)
    assert_same(key_gated, attention)
    assert_different(run("linear_attention", q=q, k=k, v=v, log_b=log_a), key_gated)


def test_rotated_queries_and_keys_are_a_complex_gate(run: Run) -> None:
    model = build("retnet_xpos", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    rotated = model.definition(x)
    q, k, v = projections(model, x)
    assert_same(decayed_attention(rotate(q), rotate(k), v), rotated)
    assert_same(run("linear_attention", **operands).real.flatten(-2), rotated)

    other_sign = {
        **operands,
        "q": operands["q"].conj().resolve_conj(),
        "k": operands["k"].conj().resolve_conj(),
        "phase": -operands["phase"],
    }
    assert_same(run("linear_attention", **other_sign).real.flatten(-2), rotated)

    mixed = {**operands, "phase": -operands["phase"]}
    assert_different(run("linear_attention", **mixed).real.flatten(-2), rotated)


def test_mamba2_is_attention_masked_by_segment_sums() -> None:
    model = build("mamba2", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    heads = x.unflatten(-1, (H, V))
    step = functional.softplus(model.step(x) + model.step_bias)
    log_a = -step * torch.exp(model.A_log)
    mask = torch.exp(segment_sums(log_a.transpose(0, 1)))  # (n, m, B, H), 0 above the diagonal
    scores = torch.einsum("bnk,bmk->bnm", model.C(x), model.B(x))
    o = torch.einsum("bnm,nmbh,bmh,bmhv->bnhv", scores, mask, step, heads)
    assert_same((o + model.D.view(H, 1) * heads).flatten(-2), model.definition(x))


def test_mamba2_scalar_gate_is_its_key_gate_expanded(run: Run) -> None:
    operands = build("mamba2", H=H, K=K, V=V).operands(normal(B, T, H * V))
    expanded = operands["log_a"].unsqueeze(-1).expand(B, T, H, K)
    assert_same(run("linear_attention", **operands),
                run("linear_attention", **{**operands, "log_a": expanded}))  # fmt: skip


def test_mingru_is_s6_of_one_state_with_zoh_but_not_with_euler(run: Run) -> None:
    model = build("mingru", C=C)
    x = normal(B, T, C)
    candidate, step = model.candidate(x), functional.softplus(model.update(x))
    a = torch.tensor(-1.0, dtype=torch.float64)  # A = −1, B = 1, Δ = softplus(W_z x)
    zoh = run("scan", log_a=step * a, b=torch.expm1(step * a) / a * candidate)
    euler = run("scan", log_a=step * a, b=step * candidate)
    assert_same(zoh, model.definition(x))
    assert_different(euler, model.definition(x))


def test_minlstm_gates_are_a_softmax_of_the_log_sigmoids(run: Run) -> None:
    model = build("minlstm", C=C)
    x = normal(B, T, C)
    pair = torch.stack([functional.logsigmoid(model.forget(x)), functional.logsigmoid(model.input(x))])
    log_f, log_i = torch.log_softmax(pair, dim=0)
    operands = model.operands(x)
    assert_same(operands["log_a"], log_f)
    assert_same(operands["b"], torch.exp(log_i) * model.candidate(x))
    assert_same(run("scan", log_a=log_f, b=torch.exp(log_i) * model.candidate(x)), model.definition(x))


@pytest.mark.parametrize("name", ["mingru_pos", "minlstm_pos"])
def test_positive_min_rnns_are_a_log_space_scan_from_log_h0(run: Run, name: str) -> None:
    operands = build(name, C=C).operands(normal(B, T, C))
    h_0 = normal(B, C, seed=7).exp()
    L = functional.pad(operands["log_a"].cumsum(1), (0, 0, 1, 0))

    def log_space(log_h_0: Tensor) -> Tensor:
        log_b = torch.cat([log_h_0.unsqueeze(1), torch.log(operands["b"])], dim=1)
        return torch.exp(L + torch.logcumsumexp(log_b - L, dim=1))[:, 1:]

    def log_g(h: Tensor) -> Tensor:
        return torch.where(h >= 0, torch.log(functional.relu(h) + 0.5), functional.logsigmoid(h))

    resumed, fresh = run("scan", **operands, initial_state=h_0), run("scan", **operands)
    assert_same(log_space(torch.log(h_0)), resumed)
    assert_same(log_space(torch.full_like(h_0, -torch.inf)), fresh)
    assert_different(log_space(log_g(h_0)), resumed)  # the h_0 trap
    assert_different(log_space(log_g(torch.zeros_like(h_0))), fresh)


@pytest.mark.parametrize(("plain", "positive"), [("mingru", "mingru_pos"), ("minlstm", "minlstm_pos")])
def test_the_positive_form_is_another_model(plain: str, positive: str) -> None:
    one, other = build(plain, C=C), build(positive, C=C)
    other.load_state_dict(one.state_dict())
    x = normal(B, T, C)
    assert (other.definition(x) > 0).all()
    assert_different(other.definition(x), one.definition(x))


@pytest.mark.parametrize("name", ["mingru", "hgrn", "minlstm"])
def test_convex_updates_stay_in_the_range_of_their_inputs(run: Run, name: str) -> None:
    model = build(name, C=C)
    operands = model.operands(normal(B, T, C))
    rest = -torch.expm1(operands["log_a"])  # 1 − a, the weight of the input
    inputs = operands["b"] / rest
    h = run("scan", **operands)
    assert (h <= inputs.cummax(1).values.clamp(min=0) + 1e-12).all()
    assert (h >= inputs.cummin(1).values.clamp(max=0) - 1e-12).all()


def test_rg_lru_gate_is_a_sigmoid_of_minus_lambda() -> None:
    model = build("rg_lru", C=C)
    x = normal(B, T, C)
    r = torch.sigmoid(model.recurrence_gate(x))
    a = torch.exp(model.operands(x)["log_a"])
    assert_same(a, torch.sigmoid(-model.decay) ** (8 * r))
    assert_different(a, torch.sigmoid(model.decay) ** (8 * r))


def test_rg_lru_keeps_unit_variance_and_longhorns_printed_root_does_not() -> None:
    """a² + (√(1 − a²))² = 1: white input of variance one keeps a state of variance one."""
    model = build("rg_lru", C=C)
    x = normal(B, T, C)
    operands = model.operands(x)
    a, gated = torch.exp(operands["log_a"]), torch.sigmoid(model.input_gate(x)) * x
    assert_same(a**2 + (operands["b"] / gated) ** 2, torch.ones_like(a))
    assert_different(torch.sqrt(1 - a) * gated, operands["b"])


def test_lru_is_a_convolution_with_its_impulse_response(run: Run) -> None:
    model = build("lru", C=C)
    x = normal(B, T, C)
    power = torch.arange(T).view(T, 1)
    eigenvalues = torch.exp(torch.complex(-torch.exp(model.nu), torch.exp(model.theta)))
    into, out = torch.complex(model.B_real, model.B_imag), torch.complex(model.C_real, model.C_imag)
    kernel = torch.einsum("on,tn,n,ni->toi", out, eigenvalues**power, torch.exp(model.log_gamma) + 0j, into)
    lags = torch.stack([functional.pad(x, (0, 0, lag, 0))[:, :T] for lag in range(T)])
    y = torch.einsum("toi,tbni->bno", kernel.real, lags) + model.D * x
    assert_same(model.readout(run("scan", **model.operands(x)), x), y)


def test_hgrn_complex_with_zero_phase_is_two_real_hgrns(run: Run) -> None:
    model = build("hgrn_complex", C=C)
    torch.nn.init.zeros_(model.theta)
    x = normal(B, T, C)
    operands = model.operands(x)
    parts = [
        run("scan", log_a=operands["log_a"], b=part) for part in (operands["b"].real, operands["b"].imag)
    ]
    assert_same(torch.sigmoid(model.output(x)) * torch.cat(parts, dim=-1), model.definition(x))
