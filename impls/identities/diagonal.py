"""Scans and convolutions that are the same layer: state spaces, minimal RNNs, their kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Comparison, Compute, identity

from .common import B, C, T, build, normal

SOURCE = "docs/recurrences.md#identities"
STATES = 8


@identity("mingru_is_s6_of_one_state_with_zoh", of="scan", subjects=("mingru",), source=SOURCE)
def mingru_as_scan(compute: Compute) -> Iterator[Comparison]:
    """Set A = −1, B = 1 and Δ = softplus(W_z x), held over the step."""
    model = build("mingru", C=C)
    x = normal(B, T, C)
    candidate, step = model.candidate(x), functional.softplus(model.update(x))
    h, _ = compute("scan", log_a=-step, b=-torch.expm1(-step) * candidate)
    yield "y", h, model.definition(x)


@identity(
    "s6_of_one_state_with_zoh_is_mingru",
    of="selective_scan",
    subjects=("mingru", "mamba_zoh"),
    source=SOURCE,
)
def mingru_as_s6(compute: Compute) -> Iterator[Comparison]:
    """Do the same with the recurrence's own zero-order hold, at N = 1."""
    model = build("mingru", C=C)
    x = normal(B, T, C)
    ones = torch.ones(B, T, 1, dtype=torch.float64)
    h, _ = compute(
        "selective_scan",
        x=model.candidate(x),
        delta=functional.softplus(model.update(x)),
        k=ones,
        q=ones,
        A=-torch.ones(C, 1, dtype=torch.float64),
        discretization="zoh",
    )
    yield "y", h, model.definition(x)


@identity("minlstm_gates_are_a_softmax_of_log_sigmoids", of="scan", subjects=("minlstm",), source=SOURCE)
def minlstm(compute: Compute) -> Iterator[Comparison]:
    """Form f/(f + i) and i/(f + i) from the logarithms of f and i."""
    model = build("minlstm", C=C)
    x = normal(B, T, C)
    pair = torch.stack([functional.logsigmoid(model.forget(x)), functional.logsigmoid(model.input(x))])
    log_f, log_i = torch.log_softmax(pair, dim=0)
    h, _ = compute("scan", log_a=log_f, b=torch.exp(log_i) * model.candidate(x))
    yield "y", h, model.definition(x)


def _log_space(compute: Compute, name: str) -> Iterator[Comparison]:
    """Compare a positive minimal RNN with a log-space scan from log h_0 itself, not from log g(h_0)."""
    model = build(name, C=C)
    operands = model.operands(normal(B, T, C))
    h_0 = normal(B, C, seed=7).exp()
    L = functional.pad(operands["log_a"].cumsum(1), (0, 0, 1, 0))

    def heinsen(log_h_0: Tensor) -> Tensor:
        log_b = torch.cat([log_h_0.unsqueeze(1), torch.log(operands["b"])], dim=1)
        return torch.exp(L + torch.logcumsumexp(log_b - L, dim=1))[:, 1:]

    resumed, _ = compute("scan", **operands, initial_state=h_0)
    fresh, _ = compute("scan", **operands)
    yield "from h_0", resumed, heinsen(torch.log(h_0))
    yield "from zero", fresh, heinsen(torch.full_like(h_0, -torch.inf))


@identity(
    "positive_mingru_is_a_log_space_scan_from_log_h0", of="scan", subjects=("mingru_pos",), source=SOURCE
)
def mingru_pos(compute: Compute) -> Iterator[Comparison]:
    """Start from a state, and from none."""
    return _log_space(compute, "mingru_pos")


@identity(
    "positive_minlstm_is_a_log_space_scan_from_log_h0", of="scan", subjects=("minlstm_pos",), source=SOURCE
)
def minlstm_pos(compute: Compute) -> Iterator[Comparison]:
    """Start from a state, and from none."""
    return _log_space(compute, "minlstm_pos")


@identity("rg_lru_keeps_the_variance_of_white_input", of="scan", subjects=("rg_lru",), source=SOURCE)
def rg_lru(compute: Compute) -> Iterator[Comparison]:
    """Check that a² + (√(1 − a²))² = 1 with the gate a = σ(−Λ)^(8r); with √(1 − a) it would not be."""
    model = build("rg_lru", C=C)
    x = normal(B, T, C)
    a = torch.sigmoid(-model.decay) ** (8 * torch.sigmoid(model.recurrence_gate(x)))
    inputs = torch.sqrt(1 - a.square()) * torch.sigmoid(model.input_gate(x)) * x
    h, _ = compute("scan", **model.operands(x))
    yield "y", h, compute("scan", log_a=torch.log(a), b=inputs)[0]


@identity("lru_is_a_convolution_with_its_impulse_response", of="scan", subjects=("lru",), source=SOURCE)
def lru(compute: Compute) -> Iterator[Comparison]:
    """Sum the matrices C λ^j γ B lag by lag."""
    model = build("lru", C=C)
    x = normal(B, T, C)
    power = torch.arange(T).view(T, 1)
    eigenvalues = torch.exp(torch.complex(-torch.exp(model.nu), torch.exp(model.theta)))
    into, out = torch.complex(model.B_real, model.B_imag), torch.complex(model.C_real, model.C_imag)
    kernel = torch.einsum("on,tn,n,ni->toi", out, eigenvalues**power, torch.exp(model.log_gamma) + 0j, into)
    lags = torch.stack([functional.pad(x, (0, 0, lag, 0))[:, :T] for lag in range(T)])
    y = torch.einsum("toi,tbni->bno", kernel.real, lags) + model.D * x
    h, _ = compute("scan", **model.operands(x))
    yield "y", model.readout(h, x), y


def _convolution(
    compute: Compute, name: str, modes: tuple[Tensor, Tensor], D: Tensor
) -> Iterator[Comparison]:
    """Compare a model's convolution with its recurrence over modes (gate, weight), (C, n) complex."""
    model = build(name, C=C, N=STATES)
    x = normal(B, T, C)
    gate, weight = modes
    h, y = gate.new_zeros(B, *gate.shape), []
    for x_t in x.unbind(1):
        h = gate * h + x_t.unsqueeze(-1)
        y.append((weight * h).sum(-1).real)
    output, _ = compute("long_conv", **model.operands(x))
    yield "y", model.readout(output, x), torch.stack(y, dim=1) + D * x


@identity("s4d_is_a_vandermonde_convolution", of="long_conv", subjects=("s4d_lin",), source=SOURCE)
def s4d(compute: Compute) -> Iterator[Comparison]:
    """Compare with y = 2 Re(C x) of the diagonal recurrence, Ā and B̄ held over the step."""
    model = build("s4d_lin", C=C, N=STATES)
    A = torch.complex(-torch.exp(model.A_log_real), model.A_imag)
    gate = torch.exp(torch.exp(model.log_step).unsqueeze(-1) * A)
    weight = 2 * torch.complex(model.C_real, model.C_imag) * (gate - 1) / A
    return _convolution(compute, "s4d_lin", (gate, weight), model.D)


@identity(
    "dss_softmax_is_a_diagonal_ssm_that_knows_its_length",
    of="long_conv",
    subjects=("dss_softmax",),
    source=SOURCE,
)
def dss_softmax(compute: Compute) -> Iterator[Comparison]:
    """Compare with the recurrence of a = exp(ΛΔ), b = (a − 1)/(Λ(a^T − 1))."""
    model = build("dss_softmax", C=C, N=STATES)
    eigenvalues = torch.complex(model.eigenvalue_real, model.eigenvalue_imag)
    gate = torch.exp(torch.exp(model.log_step).unsqueeze(-1) * eigenvalues)
    weight = torch.complex(model.w_real, model.w_imag) * (gate - 1) / (eigenvalues * (gate**T - 1))
    return _convolution(compute, "dss_softmax", (gate, weight), model.D)


@identity("dense_s4_is_a_convolution", of="long_conv", subjects=("s4",), source=SOURCE)
def s4(compute: Compute) -> Iterator[Comparison]:
    """Compare with the bilinear rule on the dense A, one step after another."""
    model = build("s4", C=C, N=STATES)
    x = normal(B, T, C)
    A_bar, B_bar = model.discrete()
    C_half = torch.complex(model.C_real, model.C_imag)
    out = torch.cat([C_half, C_half.conj()], dim=-1)
    h, y = B_bar.new_zeros(B, *B_bar.shape), []
    for x_t in x.unbind(1):
        h = torch.einsum("cnm,bcm->bcn", A_bar, h) + B_bar * x_t.unsqueeze(-1)
        y.append((out * h).sum(-1).real)
    output, _ = compute("long_conv", **model.operands(x))
    yield "y", model.readout(output, x), torch.stack(y, dim=1) + model.D * x


@identity("tnn_is_its_exact_state_space", of="long_conv", subjects=("tnn",), source=SOURCE)
def tnn(compute: Compute) -> Iterator[Comparison]:
    """Compare with ETSC: n modes, gates γ exp(−2πi j/(n+1)), weights from a Fourier transform, n steps."""
    model = build("tnn", C=C)
    x = normal(B, T, C)
    t = model.coefficients(T)
    closed = torch.cat([t, -t.sum(-1, keepdim=True)], dim=-1)
    weights = torch.fft.ifft(closed, dim=-1)[:, 1:]
    angle = -2 * math.pi / (T + 1) * torch.arange(1, T + 1, dtype=torch.float64)
    gate = model.gamma * torch.polar(torch.ones_like(angle), angle)
    h, y = weights.new_zeros(B, *weights.shape), []
    for u_t in functional.silu(model.value(x)).unbind(1):
        h = gate * h + u_t.unsqueeze(-1)
        y.append((weights * h).sum(-1).real)
    output, _ = compute("long_conv", **model.operands(x))
    yield "output", output, torch.stack(y, dim=1)


@identity("a_const_scan_is_a_convolution_with_its_powers", of="long_conv", subjects=(), source=SOURCE)
def scan_as_convolution(compute: Compute) -> Iterator[Comparison]:
    """Convolve with K_j = a^j, from no state."""
    u, log_a = normal(B, T, C), functional.logsigmoid(normal(C, seed=1))
    kernel = torch.exp(log_a.unsqueeze(-1) * torch.arange(T))
    output, _ = compute("long_conv", u=u, kernel=kernel)
    yield "output", output, compute("scan", log_a=log_a.view(1, 1, C), b=u)[0]
