"""Time-invariant state space models: their kernels are their recurrences, and streaming goes on exactly."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.linalg import expm
from ssmperf.impls.models.diagonal import turn
from ssmperf.impls.models.s4 import legs
from ssmperf.impls.models.tnn import exact_state_space
from support.kernels.table import error
from torch import Tensor

from ssmperf import UsageError
from ssmperf.authoring import Model
from ssmperf.suitekit import registry

CONVOLUTIONS = tuple(name for name, entry in registry.models().items() if entry.recurrence == "long_conv")
STREAMING = ("s4", "s4d_lin", "s4d_inv", "dss_exp")


def build(name: str, **sizes: int) -> Model:
    torch.manual_seed(0)
    return registry.model(name).cls({"C": 5, "N": 8, **sizes})


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel_of(model: Model, T: int) -> Tensor:
    return model.operands(torch.zeros(1, T, model.width, dtype=model.D.dtype))["kernel"]


def hippo_legs(N: int) -> tuple[Tensor, Tensor]:
    """LegS entry by entry, from the paper's equation."""
    A, B = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for n in range(N):
        B[n] = math.sqrt(2 * n + 1)
        A[n, n] = -(n + 1)
        for k in range(n):
            A[n, k] = -math.sqrt((2 * n + 1) * (2 * k + 1))
    return A, B


@pytest.mark.parametrize("N", [2, 8, 64])
def test_s4_starts_from_hippo_legs(N: int) -> None:
    """The stored pairs have the transfer function of the dense real matrix, for any output vector."""
    A, B = hippo_legs(N)
    eigenvalues, P, forcing = (torch.cat([half, half.conj()]) for half in legs(N))
    assert (eigenvalues[: N // 2].imag > 0).all()
    dense = torch.diag(eigenvalues) - torch.outer(P, P.conj())
    row, moved = B + 0j, forcing  # C = B, which the same unitary matrix moves as it moves B
    for s in (0.3 + 0j, 1 + 4j, 20j, 100 + 1j):
        identity = s * torch.eye(N)
        want = row @ torch.linalg.solve(identity - A, B + 0j)
        got = moved.conj() @ torch.linalg.solve(identity - dense, forcing)
        assert abs(got - want) < 1e-9 * abs(want)


@pytest.mark.parametrize("N", [4, 32, 64])
@pytest.mark.parametrize("T", [1, 2, 7, 64, 101])
def test_s4_kernel_is_the_impulse_response_of_the_dense_system(N: int, T: int) -> None:
    model = build("s4", C=3, N=N).double()
    impulse = torch.zeros(1, T, 3, dtype=torch.float64)
    impulse[:, 0] = 1
    response = model.definition(impulse)[0]
    response[0] -= model.D
    assert error(kernel_of(model, T), response.mT) < 1e-11


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_float32_kernels_stay_exact_at_long_range(name: str) -> None:
    """With full sizes and as many steps as slow modes need, against the same parameters in float64."""
    model = build(name, C=16, N=64)
    x = torch.zeros(1, 3000, 16)
    kernel = model.operands(x)["kernel"].double()
    want = model.double().operands(x.double())["kernel"]
    assert error(kernel, want) < 8e-7


def test_an_underflowing_power_has_a_finite_gradient() -> None:
    log_a = torch.tensor([-95.0, -100.0, -200.0], requires_grad=True)
    angle = torch.ones(3, dtype=torch.float64, requires_grad=True)
    gate = turn(log_a, angle)
    for gradient in torch.autograd.grad(gate.real.sum() + gate.imag.sum(), [log_a, angle]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["s4d_lin", "s4d_inv", "dss_exp"])
def test_a_diagonal_recurrence_is_its_vandermonde_convolution(name: str) -> None:
    model = build(name).double()
    modes = model.modes()
    gate = torch.exp(torch.complex(modes.log_a, modes.angle))
    for T in (1, 2, 3, 16, 17, 50):
        powers = gate.unsqueeze(-1) ** torch.arange(T)
        want = (modes.weights.unsqueeze(-1) * powers).sum(1).real
        assert error(kernel_of(model, T), want) < 1e-12
    x = noise(2, 50, 5)
    y, _ = model(x, backend="fft")
    assert error(y, model.definition(x)) < 1e-12


@pytest.mark.parametrize("name", ["s4d_lin", "s4d_inv"])
def test_zero_order_hold_agrees_with_the_matrix_exponential(name: str) -> None:
    """[Ā B̄; 0 1] = exp(Δ [A B; 0 0])."""
    model = build(name).double()
    modes, step = model.modes(), torch.exp(model.log_step)
    A = torch.complex(-torch.exp(model.A_log_real), model.A_imag)
    for channel in range(5):
        for n in range(4):
            a, delta = complex(A[channel, n].detach()), float(step[channel].detach())
            hold = expm([[delta * a, delta], [0, 0]])
            C = torch.complex(model.C_real[channel, n], model.C_imag[channel, n])
            gate = torch.exp(torch.complex(modes.log_a[channel, n], modes.angle[channel, n]))
            assert abs(gate - hold[0, 0]) < 1e-13
            assert abs(modes.weights[channel, n] - 2 * C * hold[0, 1]) < 1e-13


def test_s4d_inv_starts_near_the_spectrum_of_s4() -> None:
    want = torch.tensor([17.825, 4.244, 1.528, 0.364])
    torch.testing.assert_close(build("s4d_inv", N=8).A_imag[0], want, atol=1e-3, rtol=0)
    torch.testing.assert_close(build("s4d_lin", N=8).A_imag[0], math.pi * torch.arange(4))


@pytest.mark.parametrize("name", ["s4", "s4d_lin", "s4d_inv"])
def test_conjugate_pairs_need_an_even_number_of_states(name: str) -> None:
    with pytest.raises(UsageError, match="even"):
        build(name, N=7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", STREAMING)
def test_the_streaming_form_is_the_convolution(name: str, dtype: torch.dtype) -> None:
    model = build(name).to(dtype)
    x = noise(2, 40, 5).to(dtype)
    with torch.no_grad():
        whole, none = model(x, backend="sequential")
        streamed, final = model.recurrent(x)
    assert none is None and streamed.dtype == dtype
    assert error(streamed, whole) < (1e-12 if dtype == torch.float64 else 1e-5)
    for split in (1, 17, 39):
        head, state = model.recurrent(x[:, :split])
        tail, state = model.recurrent(x[:, split:], state)
        assert error(torch.cat([head, tail], dim=1), whole) < (1e-12 if dtype == torch.float64 else 1e-5)
        assert error(state, final) < (1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", STREAMING)
def test_gradients_of_the_streaming_form_are_the_convolutions(name: str) -> None:
    model = build(name).double()
    x, direction = noise(2, 20, 5), noise(2, 20, 5, seed=1)
    streamed, _ = model.recurrent(x)
    whole, _ = model(x, backend="fft")
    parameters = list(model.parameters())
    got, want = (torch.autograd.grad((direction * y).sum(), parameters) for y in (streamed, whole))
    for a, b in zip(got, want, strict=True):
        assert error(a, b) < 1e-9


def softmax_rows(model: Model, T: int) -> Tensor:
    """The kernel of DSS-softmax as it is printed, K = Re Σ_n (w_n/Λ_n) softmax_j(Λ_n Δ j)."""
    eigenvalues = torch.complex(model.eigenvalue_real, model.eigenvalue_imag)
    exponents = torch.exp(model.log_step)[:, None, None] * eigenvalues[:, None] * torch.arange(T)
    shifted = torch.exp(exponents - exponents.real.amax(-1, keepdim=True))
    rows = shifted / shifted.sum(-1, keepdim=True)
    return ((torch.complex(model.w_real, model.w_imag) / eigenvalues).unsqueeze(-1) * rows).sum(1).real


@pytest.mark.parametrize("real", [-0.5, -300.0, 0.4, 300.0])
def test_dss_softmax_is_its_printed_kernel_for_any_real_part(real: float) -> None:
    model = build("dss_softmax").double()
    with torch.no_grad():
        model.eigenvalue_real.copy_(real * torch.linspace(0.5, 1, 8))
        model.eigenvalue_real[0] = -0.3
    for T in (1, 2, 40, 101):
        assert error(kernel_of(model, T), softmax_rows(model, T)) < 1e-11
    for leaf in torch.autograd.grad(kernel_of(model, 101).sum(), [model.eigenvalue_real, model.w_real]):
        assert leaf.isfinite().all()


def test_dss_softmax_is_a_diagonal_system_whose_input_weight_depends_on_the_length() -> None:
    model = build("dss_softmax").double()
    x = noise(2, 30, 5)
    eigenvalues = torch.complex(model.eigenvalue_real, model.eigenvalue_imag)
    log_gate = torch.exp(model.log_step).unsqueeze(-1) * eigenvalues  # (C, N)
    for T in (30, 20):
        b = torch.expm1(log_gate) / (eigenvalues * torch.expm1(T * log_gate))
        driven = (b * x[:, :T].unsqueeze(-1)).flatten(2)
        gates = log_gate.real.flatten(), log_gate.imag.flatten()
        h, _ = registry.recurrence("scan").definition(gates[0], driven, phase=gates[1])
        w = torch.complex(model.w_real, model.w_imag)
        want = (w * h.unflatten(-1, (5, 8))).sum(-1).real + model.D * x[:, :T]
        y, _ = model(x[:, :T], backend="sequential")
        assert error(y, want) < 1e-12
    whole, _ = model(x, backend="sequential")
    assert error(y, whole[:, :20]) > 1e-2


def impulse_response(coefficients: Tensor, gamma: float, T: int) -> Tensor:
    """The kernel of the exact state space, as a literal recurrence, (C, T)."""
    modes = exact_state_space(coefficients, gamma)
    gate = torch.exp(torch.complex(modes.log_a, modes.angle))
    state, response = torch.ones_like(gate), []
    for _ in range(T):
        response.append((modes.weights * state).sum(-1).real)
        state = gate * state
    return torch.stack(response, dim=-1)


def test_tnn_is_its_exact_state_space_up_to_its_length_and_not_beyond() -> None:
    n, gamma = 12, 0.9
    t = noise(3, n)
    response = impulse_response(t, gamma, 2 * n + 2)
    decay = gamma ** torch.arange(2 * n + 2, dtype=torch.float64)
    assert error(response[:, :n], decay[:n] * t) < 1e-13
    # then −Σ t once, and the pattern again with period n + 1
    assert error(response[:, n], -decay[n] * t.sum(-1)) < 1e-13
    assert error(response[:, n + 1 : 2 * n + 1], decay[n + 1 : 2 * n + 1] * t) < 1e-13


def test_tnn_streams_from_its_exact_state_space() -> None:
    model = build("tnn").double()
    x = noise(2, 30, 5)
    whole, _ = model(x, backend="sequential")
    head, state = model.recurrent(x[:, :11], length=30)
    tail, _ = model.recurrent(x[:, 11:], state, length=30)
    assert error(torch.cat([head, tail], dim=1), whole) < 1e-12
    short, _ = model.recurrent(x, length=20)
    assert error(short, whole) > 1e-2


def test_tnn_is_the_same_layer_on_a_prefix_unless_lags_are_divided_by_the_length() -> None:
    x = noise(2, 30, 5)
    for by_length in (False, True):
        torch.manual_seed(0)
        model = registry.model("tnn").cls({"C": 5}, by_length=by_length).double()
        assert model.depends_on_length == by_length
        assert error(model(x)[0], model.definition(x)) < 1e-12
        same = error(model(x[:, :19])[0], model(x)[0][:, :19])
        assert same > 1e-2 if by_length else same < 1e-12


def test_tnn_gives_its_network_the_integer_lag() -> None:
    model = build("tnn").double()
    for layer in (model.position, model.hidden, model.coefficient):
        torch.nn.init.zeros_(layer.bias)
        torch.nn.init.ones_(layer.weight)
    # ones all through: lag 0 gives 0, every other lag the same, since the norms take its size away
    torch.testing.assert_close(model.coefficients(4)[0], 32.0 * torch.tensor([0, 1, 1, 1]).double())
    with torch.no_grad():
        model.position.bias.fill_(-2.5)  # between the lags 2 and 3
    assert (model.coefficients(5)[0] > 0).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_models_say_whether_their_kernel_depends_on_the_length(name: str) -> None:
    model = build(name).double()
    x = noise(2, 24, 5)
    short, long = (model.operands(x[:, :T])["kernel"] for T in (15, 24))
    assert (error(short, long[:, :15]) > 1e-6) == model.depends_on_length


def test_s5_starts_from_blocks_of_the_normal_part_of_legs() -> None:
    model = build("s5", C=40)
    eigenvalues = torch.complex(-torch.exp(model.A_log_real), model.A_imag).detach()
    block = legs(64)[0].to(torch.complex64)
    torch.testing.assert_close(eigenvalues, torch.cat([block, block[:8]]))
    A, _ = hippo_legs(64)
    P = torch.sqrt(torch.arange(64, dtype=torch.float64) + 0.5)
    spectrum = torch.linalg.eigvals(A + torch.outer(P, P))
    assert error(spectrum.imag.sort().values[32:], block.imag.double().sort().values) < 1e-5
    assert error(spectrum.real, torch.full((64,), -0.5)) < 1e-9


def test_s5_runs_as_a_convolution_of_its_modes() -> None:
    """The scan with a constant gate by Fourier transforms is the same layer."""
    model = build("s5").double()
    x = noise(2, 50, 5)
    y, state = model(x, backend="fft")
    want, final = model(x, backend="sequential")
    assert error(y, want) < 1e-12 and error(state, final) < 1e-12


def test_the_shared_siso_reading_of_s5_is_one_kernel_for_all_channels_of_a_head() -> None:
    model = registry.model("s5_shared_siso").cls({"H": 2, "K": 4, "V": 3}).double()
    x = noise(2, 25, 6)
    y, _ = model(x, backend="chunkwise")
    A = torch.complex(-torch.exp(model.A_log_real), model.A_imag)
    gate = torch.exp(torch.exp(model.log_step) * A)
    B = (gate - 1) / A * torch.complex(model.B_real, model.B_imag)
    C = torch.complex(model.C_real, model.C_imag)
    kernel = 2 * (C * B).unsqueeze(-1) * gate.unsqueeze(-1) ** torch.arange(25)
    kernel = kernel.sum(1).real.repeat_interleave(3, dim=0)
    want, _ = registry.recurrence("long_conv").definition(x, kernel)
    assert error(y, want + model.D * x) < 1e-12
