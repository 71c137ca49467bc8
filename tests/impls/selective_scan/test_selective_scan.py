"""Properties of selective_scan alone: its gates, discretisations, resets, and the recurrences it contains."""

from __future__ import annotations

import cmath
import decimal
import math
from typing import Any

import pytest
import torch
from support.kernels.table import (
    REGIMES,
    Operands,
    assert_close,
    detached,
    error,
    evaluate,
    oracle,
    runnable,
    sample,
)
from torch import Tensor
from torch.nn import functional

from ssmperf import Backend, Shape, UnknownName, UsageError
from ssmperf.authoring import Spec
from ssmperf.engine.operands import samplers as regimes
from ssmperf.suitekit import registry

NAME = "selective_scan"
RECURRENCE = registry.recurrence(NAME)
SHAPE = Shape(B=2, T=33, D=5, N=3)
BACKENDS = runnable(NAME)
FUNCTIONS = {"definition": RECURRENCE.definition, **{b.name: b.function for b in BACKENDS}}
LOG_ROUTES = ("logspace", "surrogate", "torch_scan")

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
each_kind = pytest.mark.parametrize("kind", RECURRENCE.gate_kinds)


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves(operands: Operands) -> Operands:
    return {n: v.requires_grad_() if isinstance(v, Tensor) else v for n, v in operands.items()}


def matches_the_definition(backend: Backend, operands: Operands, dtype: str = "float64") -> None:
    span = RECURRENCE.decay_span(operands)
    assert_close(backend, evaluate(backend.function, operands), oracle(NAME, operands), dtype, span)


def gate_by_hand(o: Operands, b: int, t: int, d: int, n: int) -> complex:
    step = o["delta"][b, t, d].item()
    if o["gate"] == "implicit":
        return 1 - step * o["k"][b, t, n].item() ** 2
    A = o["A"][d, n].item()
    if o["gate"] == "sigmoid":
        return (1 / (1 + math.exp(-o["g"][b, t, d].item() * A))) ** (1 / o["tau"])
    return cmath.exp(A if o["gate"] == "const" else step * A)


@each_kind
def test_the_definition_is_the_equation(kind: str) -> None:
    o = detached(sample(NAME, Shape(B=2, T=4, D=2, N=3), kind=kind, dtype="float64"))
    output, final = RECURRENCE.definition(**o)
    readout = 2 if "complex" in kind else 1
    for b in range(2):
        for d in range(2):
            states = o["initial_state"][b, d].tolist()
            for t in range(4):
                read = 0.0
                for n in range(3):
                    step, A = o["delta"][b, t, d].item(), o["A"][d, n].item() if "A" in o else 0
                    if "zoh" in kind:
                        step = (cmath.exp(step * A) - 1) / A
                    write = step * o["x"][b, t, d].item() * o["k"][b, t, n].item()
                    states[n] = gate_by_hand(o, b, t, d, n) * states[n] + write
                    read += readout * (states[n] * o["q"][b, t, n].item()).real
                assert output[b, t, d].item() == pytest.approx(read, rel=1e-12, abs=1e-13)
            for n in range(3):
                assert abs(final[b, d, n].item() - states[n]) < 1e-12


@each_kind
def test_gradcheck_of_the_definition(kind: str) -> None:
    o = sample(NAME, Shape(B=1, T=4, D=2, N=3), kind=kind, dtype="float64")
    names = [name for name, value in o.items() if isinstance(value, Tensor)]

    def function(*values: Tensor) -> Any:
        return RECURRENCE.definition(**{**o, **dict(zip(names, values, strict=True))})

    assert torch.autograd.gradcheck(function, [o[name] for name in names])


@pytest.mark.parametrize("tau", [1.0, 4.0])
@pytest.mark.parametrize("size", [(5,), (3,), (5, 1), (1, 3)], ids=str)
@each_backend
def test_a_sigmoid_gate_of_a_channel_or_of_a_state(
    backend: Backend, size: tuple[int, ...], tau: float
) -> None:
    operands = sample(NAME, SHAPE, kind="sigmoid", dtype="float64")
    operands.update(g=normal(2, 33, *size), A=normal(5, 3, seed=1), tau=tau)
    matches_the_definition(backend, leaves(operands))


@pytest.mark.parametrize("size", [(3, 1), (1, 3)], ids=str)
@each_backend
def test_a_square_state_takes_a_sigmoid_gate_that_says_its_axis(
    backend: Backend, size: tuple[int, int]
) -> None:
    operands = sample(NAME, SHAPE.with_(D=3), kind="sigmoid", dtype="float64")
    operands["g"] = normal(2, 33, *size)
    matches_the_definition(backend, leaves(operands))


@pytest.mark.parametrize("kind", ["const", "sigmoid", "const_complex"])
@each_function
def test_no_step_size_means_ones(function: Any, kind: str) -> None:
    operands = detached(sample(NAME, SHAPE, kind=kind, dtype="float64"))
    ones = {**operands, "delta": torch.ones_like(operands["delta"])}
    for none, one in zip(function(**{**operands, "delta": None}), function(**ones), strict=True):
        assert torch.equal(none, one)


@pytest.mark.parametrize("kind", [kind for kind in RECURRENCE.gate_kinds if "complex" in kind])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@each_backend
def test_complex_keys_queries_and_states(backend: Backend, kind: str, dtype: str) -> None:
    operands = sample(NAME, SHAPE, regime="rglru", kind=kind, dtype=dtype)
    field = torch.complex128 if dtype == "float64" else torch.complex64
    for seed, name in enumerate(("k", "q", "initial_state")):
        size = operands[name].shape
        operands[name] = torch.complex(normal(*size, seed=seed), normal(*size, seed=seed + 9)).to(field)
    matches_the_definition(backend, leaves(operands), dtype)


def held_by_hand(step: float, A: float) -> tuple[float, float, float]:
    """expm1(ΔA)/A and its derivatives by Δ and by A, to more digits than float64 has."""
    with decimal.localcontext(prec=200):
        delta, z = decimal.Decimal(step), decimal.Decimal(step) * decimal.Decimal(A)
        if z == 0:
            return step, 1.0, step**2 / 2
        mean = (z.exp() - 1) / z
        slope = (z.exp() - mean) / z
        return float(delta * mean), float(z.exp()), float(delta**2 * slope)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 3e-6)], ids=str)
@each_function
def test_a_held_input_and_its_gradients_keep_their_digits(
    function: Any, dtype: torch.dtype, tolerance: float
) -> None:
    if function is RECURRENCE.definition and dtype == torch.float32:
        pytest.skip("its gradients are autograd's, exact to the precision of their largest term")
    steps = torch.tensor([1e-3, 0.04, 1.0], dtype=dtype).view(1, 1, 3)
    rates = [0.0, -1e-38, -1e-18, -1e-9, -1e-5, -1e-2, -0.3, -0.49, -0.51, -1.0, -7.0, -80.0, -1e4]
    N = len(rates)
    A = torch.tensor(rates, dtype=dtype).expand(3, N)
    one = torch.ones(1, 1, N, dtype=dtype)
    for d in range(3):
        for n in range(N):
            step, rate = steps.clone().requires_grad_(), A.clone().requires_grad_()
            x = torch.ones(1, 1, 3, dtype=dtype)
            _, final = function(x=x, delta=step, k=one, q=one, A=rate, discretization="zoh")
            by_step, by_rate = torch.autograd.grad(final[0, d, n], [step, rate])
            got = (final[0, d, n].item(), by_step[0, 0, d].item(), by_rate[d, n].item())
            want = held_by_hand(steps[0, 0, d].item(), A[d, n].item())
            assert got == pytest.approx(
                want, rel=tolerance, abs=1e-17 if dtype == torch.float64 else 1e-37
            ), (d, rates[n])


@each_function
def test_a_held_input_turns_with_a_complex_rate(function: Any) -> None:
    A = torch.tensor([[1e-7 + 1e-7j, 0j, -1e-3 + 0.2j, -0.3 + 0.39j, -2 + 3j]], dtype=torch.complex128)
    A = -A.real.abs() + 1j * A.imag
    x, k = torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 5, dtype=torch.float64)
    delta = x.clone()
    _, final = function(x=x, delta=delta, k=k, q=k, A=A, discretization="zoh")
    for n, z in enumerate(A[0].tolist()):
        series, term = 0j, 1 + 0j
        for m in range(60):
            series, term = series + term, term * z / (m + 2)
        assert abs(final[0, 0, n].item() - series) < 1e-14


RESETS: dict[str, Operands] = {
    "a rate of -inf": {"gate": "exp", "A": -math.inf},
    "a rate of -inf, held input": {"gate": "exp", "A": -math.inf, "discretization": "zoh"},
    "no step at a rate of -inf": {"gate": "exp", "A": -math.inf, "delta": 0.0},
    "an underflow": {"gate": "exp", "A": -1e5},
    "a constant of -inf": {"gate": "const", "A": -math.inf},
    "a sigmoid of -inf": {"gate": "sigmoid", "A": 1.0, "g": -math.inf},
    "a sigmoid of inf": {"gate": "sigmoid", "A": 1.0, "g": math.inf},
    "a sigmoid of inf times 0": {"gate": "sigmoid", "A": 0.0, "g": math.inf},
    "a step of the whole error": {"gate": "implicit", "k": 1.0, "delta": 1.0},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", RESETS)
@each_backend
def test_a_gate_at_its_limits_has_the_definitions_gradients(backend: Backend, case: str, dtype: str) -> None:
    values = RESETS[case]
    kind = values["gate"]
    operands = detached(sample(NAME, SHAPE, kind=kind, regime="gla", dtype=dtype))
    operands.update({name: value for name, value in values.items() if isinstance(value, str)})
    for name, value in values.items():
        if name == "A":
            operands["A"][::2] = value
        elif isinstance(value, float):
            operands[name][:, 4::5] = value
    operands = leaves(operands)
    got, want = evaluate(backend.function, operands), oracle(NAME, operands)
    assert all(bool(value.isfinite().all()) for _, value, _ in want.items())
    assert_close(backend, got, want, dtype, 33 * 150.0)
    if "inf" in case and "A" in want.gradients and math.isinf(values["A"]):
        assert not got.gradients["A"][::2].any()


@each_function
def test_no_step_keeps_the_state_whatever_the_rate(function: Any) -> None:
    operands = detached(sample(NAME, SHAPE, kind="exp", dtype="float64"))
    operands["A"][:] = -math.inf
    operands["delta"][:] = 0
    _, final = function(**operands)
    assert error(final, operands["initial_state"]) < 1e-14


@each_backend
def test_an_implicit_gate_below_zero_is_computed_or_loud(backend: Backend) -> None:
    operands = detached(sample(NAME, SHAPE, kind="implicit", dtype="float64"))
    operands["delta"][:, 3] = 1.5
    operands["k"][:, 3] = 1.0
    output, final = backend.function(**operands)
    want, _ = RECURRENCE.definition(**operands)
    if backend.name in LOG_ROUTES:
        assert bool(final.isnan().all())
    else:
        assert error(output, want) < 1e-12


@each_backend
def test_a_channel_is_a_head_of_linear_attention_with_one_value(backend: Backend) -> None:
    o = detached(sample(NAME, SHAPE, kind="exp", dtype="float64"))
    output, final = backend.function(**o)
    heads = (2, 33, 5, 3)
    wide, state = registry.recurrence("linear_attention").definition(
        q=o["q"].unsqueeze(2).expand(heads),
        k=o["k"].unsqueeze(2).expand(heads),
        v=(o["delta"] * o["x"]).unsqueeze(-1),
        log_a=o["delta"].unsqueeze(-1) * o["A"],
        initial_state=o["initial_state"].unsqueeze(-1),
    )
    assert error(output, wide.squeeze(-1)) < 1e-12
    assert error(final, state.squeeze(-1)) < 1e-12


@each_backend
def test_the_flattened_state_is_a_scan(backend: Backend) -> None:
    o = detached(sample(NAME, SHAPE, kind="implicit", regime="longhorn", dtype="float64"))
    output, final = backend.function(**o)
    states, last = registry.recurrence("scan").definition(
        torch.log1p(-o["delta"].unsqueeze(-1) * o["k"].unsqueeze(2).square()).flatten(2),
        ((o["delta"] * o["x"]).unsqueeze(-1) * o["k"].unsqueeze(2)).flatten(2),
        o["initial_state"].flatten(1),
    )
    read = torch.einsum("btdn,btn->btd", states.unflatten(2, (5, 3)), o["q"])
    assert error(output, read) < 1e-12
    assert error(final, last.view_as(final)) < 1e-12


@each_backend
def test_held_inputs_at_rate_minus_one_are_a_min_gru(backend: Backend) -> None:
    z, x, h = normal(2, 33, 5), normal(2, 33, 5, seed=1), normal(2, 5, 1, seed=2)
    one = torch.ones(2, 33, 1, dtype=torch.float64)
    minus_one = -torch.ones(5, 1, dtype=torch.float64)
    options = {"A": minus_one, "initial_state": h, "discretization": "zoh"}
    output, _ = backend.function(x, functional.softplus(z), one, one, **options)
    update, state, states = torch.sigmoid(z), h.squeeze(-1), []
    for t in range(33):
        state = (1 - update[:, t]) * state + update[:, t] * x[:, t]
        states.append(state)
    assert error(output, torch.stack(states, dim=1)) < 1e-12


WRONG: dict[str, tuple[str, Operands, str]] = {
    "gate": ("exp", {"gate": "tanh"}, "'tanh' .valid: exp, implicit, sigmoid, const"),
    "discretization": ("exp", {"discretization": "bilinear"}, "'bilinear' .valid: euler, zoh"),
    "held const": ("const", {"discretization": "zoh"}, "needs gate='exp', got gate='const'"),
    "exp without A": ("exp", {"A": None}, "'exp' needs A"),
    "exp without delta": ("exp", {"delta": None}, "'exp' needs delta"),
    "implicit without delta": ("implicit", {"delta": None}, "'implicit' needs delta"),
    "implicit with A": ("implicit", {"A": -torch.ones(5, 3)}, "takes no A"),
    "sigmoid without g": ("sigmoid", {"g": None}, "needs g"),
    "exp with g": ("exp", {"g": torch.ones(2, 33, 5)}, "takes no g"),
    "tau": ("exp", {"tau": 2.0}, "tau belongs to gate='sigmoid'"),
    "no tau": ("sigmoid", {"tau": 0.0}, "positive, got 0"),
    "shape of x": ("exp", {"x": torch.ones(2, 33)}, "x must be"),
    "shape of q": ("exp", {"q": torch.ones(2, 33, 4)}, r"q must be \(2, 33, 3\), got \(2, 33, 4\)"),
    "shape of delta": ("exp", {"delta": torch.ones(2, 33, 1)}, "delta must be"),
    "shape of A": ("exp", {"A": -torch.ones(3, 5)}, r"A must be \(5, 3\), got \(3, 5\)"),
    "shape of g": ("sigmoid", {"g": torch.ones(2, 33, 4)}, "g must be"),
    "complex x": ("exp", {"x": torch.ones(2, 33, 5, dtype=torch.complex64)}, "x must be real"),
    "complex sigmoid": ("sigmoid", {"A": torch.ones(5, 3, dtype=torch.complex64)}, "takes a real A"),
    "complex k": ("exp", {"k": torch.ones(2, 33, 3, dtype=torch.complex64)}, "need a complex A"),
}


@pytest.mark.parametrize("case", WRONG)
@each_function
def test_a_combination_that_means_nothing_is_refused(function: Any, case: str) -> None:
    kind, wrong, message = WRONG[case]
    operands = detached(sample(NAME, SHAPE, kind=kind, dtype="float32"))
    with pytest.raises(UsageError, match=message):
        function(**{**operands, **wrong})


@each_function
def test_a_gate_that_could_be_of_either_axis_is_refused(function: Any) -> None:
    operands = detached(sample(NAME, SHAPE.with_(D=3), kind="sigmoid", dtype="float32"))
    with pytest.raises(UsageError, match=r"\(B, T, 3, 1\) or \(B, T, 1, 3\)"):
        function(**{**operands, "g": torch.ones(2, 33, 3)})


def gates(operands: Operands) -> Tensor:
    """|G_t| (B|1, T, D, N): an impulse state decays by it."""
    T = operands["x"].shape[1]
    state = torch.ones(operands["x"].shape[0], 5, 3, dtype=torch.float64)
    found = []
    for t in range(T):
        step = {n: v[:, t : t + 1] if n in ("x", "delta", "k", "q", "g") else v for n, v in operands.items()}
        step["x"] = torch.zeros_like(step["x"])
        found.append(RECURRENCE.definition(**{**step, "initial_state": state})[1].abs())
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("regime", REGIMES)
@each_kind
def test_sampled_gates_are_legal_and_known_to_the_span(kind: str, regime: str) -> None:
    for dtype in ("float32", "float64"):
        operands = detached(sample(NAME, SHAPE, kind=kind, regime=regime, dtype=dtype))
        magnitude = gates(operands).double()
        assert bool((magnitude >= 0).all()) and bool((magnitude <= 1 + 1e-6).all())
        if regime == "reset" and not kind.startswith("const"):  # too few constants for one to be a reset
            assert bool((magnitude == 0).any())
        assert bool(((magnitude - 1).abs() < 1e-6).all()) == (regime in ("ones", "phase"))
        if bool((magnitude > 0).all()):  # implicit gates may round to 0
            span = -magnitude.log().sum(1).min().item()
            assert RECURRENCE.decay_span(operands) == pytest.approx(span, rel=1e-4, abs=1e-4)


@each_kind
def test_the_span_is_a_sum_over_all_steps(kind: str) -> None:
    operands = detached(sample(NAME, SHAPE.with_(T=150), kind=kind, regime="gla", dtype="float64"))
    span = -gates(operands).log().sum(1).min().item()
    assert RECURRENCE.decay_span(operands) == pytest.approx(span, rel=1e-9)


@pytest.mark.parametrize("kind", ["exp", "implicit", "sigmoid"])
@pytest.mark.parametrize("regime", ["sigmoid", "gla", "hgrn_top"])
def test_sampled_gates_follow_their_regime(kind: str, regime: str) -> None:
    operands = detached(sample(NAME, SHAPE.with_(T=300), kind=kind, regime=regime, dtype="float64"))
    if kind == "exp":
        found = -operands["delta"]
    elif kind == "implicit":
        found = torch.log1p(-operands["delta"])
    else:
        found = functional.logsigmoid(operands["g"]) / operands["tau"]
    generator = torch.Generator().manual_seed(5)
    expected = regimes.log_gates(regime, found.shape, generator).double()
    for quantile in (0.1, 0.5, 0.9):
        assert found.quantile(quantile).item() == pytest.approx(expected.quantile(quantile).item(), rel=0.2)


def test_sampled_mamba_gates_have_the_models_rates_and_steps() -> None:
    operands = detached(sample(NAME, SHAPE, kind="exp", regime="mamba", dtype="float32"))
    assert torch.equal(operands["A"], -torch.arange(1.0, 4.0).expand(5, 3))
    assert operands["delta"].min() >= 0.999e-3 and operands["delta"].max() <= 0.1001


def test_an_unknown_gate_kind_is_refused() -> None:
    with pytest.raises(UnknownName, match="gate kind 'zoh'"):
        RECURRENCE.sample(SHAPE, regime="gla", generator=torch.Generator(), gate_kind="zoh")


@pytest.mark.parametrize(("kind", "special"), [("exp", 1), ("implicit", 0), ("sigmoid", 3)])
def test_the_cost_is_of_operands_and_output_once(kind: str, special: int) -> None:
    operands = detached(sample(NAME, SHAPE, kind=kind, dtype="float32"))
    del operands["initial_state"]
    specs = {n: Spec(tuple(v.shape), 4) for n, v in operands.items() if isinstance(v, Tensor)}
    cost = RECURRENCE.cost(SHAPE, specs, "forward")
    assert cost.bytes == sum(spec.nbytes for spec in specs.values()) + specs["x"].nbytes
    assert cost.special == special * 2 * 33 * 5 * 3
    assert 5 * 2 * 33 * 5 * 3 <= cost.flops <= 9 * 2 * 33 * 5 * 3
    assert cost.depth == 33
