"""Every model: its lowering computes the paper's equation, and its operands are what backends may rely on."""

from __future__ import annotations

import inspect
import math
import sys

import pytest
import torch
from ssmperf.impls.models.hgrn import forget_gate
from ssmperf.impls.models.linear_transformer import feature_map

from ssmperf import Shape, UsageError
from ssmperf.authoring import Model
from ssmperf.suitekit import registry

MODELS = sorted(registry.models())
SIZES = {
    "B": 2,
    "T": 17,
    "C": 16,
    "H": 3,
    "K": 6,
    "V": 4,
    "D": 7,
    "N": 4,
}  # K, N even: retnet_xpos pairs channels, s4 and s4d states; H·V even: mamba2 projects to it from half
# as many; C a multiple of 16: pese expands in 4 groups
LOWER_BOUNDED = ("hgrn", "hgrn_complex", "hgrn2")

each_model = pytest.mark.parametrize("name", MODELS)


def build(name: str, *, seed: int = 0, **options: float) -> Model:
    entry = registry.model(name)
    # lcsm has one head, and K divides C
    sizes = {**SIZES, "H": 1, "K": 4, "V": 5} if name.startswith("lcsm:") else SIZES
    shape = Shape({letter: sizes[letter] for letter in registry.shapes(entry, "smoke")[0]})
    torch.manual_seed(seed)
    return entry.cls(shape, **options)


def sequence(model: Model, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (SIZES["B"], SIZES["T"], model.width)
    return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    """Largest difference relative to the largest magnitude."""
    assert got.shape == want.shape
    error = (got - want).abs().max() / want.abs().max().clamp(min=1e-300)
    assert error <= tolerance, f"relative error {error:.2e}"


def gradients(model: Model, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of a fixed random projection of y, by parameter name and `x`."""
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    leaves = {"x": x, **dict(model.named_parameters())}
    return dict(zip(leaves, torch.autograd.grad((direction * y).sum(), leaves.values()), strict=True))


@each_model
def test_it_computes_its_definition(name: str) -> None:
    model = build(name).double()
    x = sequence(model)
    y, _ = model(x, backend="sequential")
    assert y.dtype == torch.float64
    assert_close(y, model.definition(x), 1e-10)


@each_model
def test_its_gradients_are_the_definitions(name: str) -> None:
    model = build(name).double()
    x = sequence(model).requires_grad_()
    y, _ = model(x, backend="sequential")
    got, want = gradients(model, x, y), gradients(model, x, model.definition(x))
    for leaf, gradient in want.items():
        assert gradient.isfinite().all() and gradient.any(), leaf
        assert_close(got[leaf], gradient, 1e-8)


@each_model
def test_its_definition_uses_nothing_of_ssmperf(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    x = sequence(model)
    expected = model.definition(x)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the definition called ssmperf")

    for attribute, value in vars(registry).items():
        if inspect.isfunction(value) and value.__module__.startswith(registry.__name__):
            monkeypatch.setattr(registry, attribute, refuse)
    for attribute in ("operands", "readout", "forward"):
        for cls in type(model).__mro__[: type(model).__mro__.index(Model) + 1]:
            monkeypatch.setattr(cls, attribute, refuse)
    module = sys.modules[type(model).__module__]
    for attribute, value in list(vars(module).items()):
        if inspect.isfunction(value) and value.__module__.startswith("ssmperf"):
            monkeypatch.setattr(module, attribute, refuse)
    assert torch.equal(model.definition(x), expected)


@each_model
def test_its_definition_is_float64_for_a_float32_layer(name: str) -> None:
    model = build(name)
    x = sequence(model, dtype=torch.float32)
    y = model.definition(x)
    assert y.dtype == torch.float64
    assert torch.equal(y, build(name).double().definition(x.double()))


@each_model
def test_its_operands_are_its_recurrences(name: str) -> None:
    entry, model = registry.model(name), build(name)
    recurrence = registry.recurrence(entry.recurrence)
    operands = model.operands(sequence(model, dtype=torch.float32))
    assert set(operands) <= set(recurrence.tensors) - {"initial_state"}
    missing = {key for key, operand in operands.items() if operand is None}
    assert missing <= set(recurrence.required)
    assert recurrence.gate_kind(operands) == entry.gate


@each_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_data_follows_x_and_gates_are_wide_and_never_positive(name: str, dtype: torch.dtype) -> None:
    model = build(name).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    gates = registry.recurrence(registry.model(name).recurrence).gates
    for key, operand in model.operands(sequence(model, dtype=dtype)).items():
        if not isinstance(operand, torch.Tensor):
            continue
        if key in gates:
            assert operand.dtype == wide, key
        else:
            assert operand.dtype == (wide.to_complex() if operand.is_complex() else dtype), key
        if key.startswith("log_") and key in gates:
            assert (operand <= 0).all(), key
        assert operand.isfinite().all(), key


@each_model
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=["float32", "bfloat16"]
)
def test_lower_precision_stays_near_the_definition(name: str, dtype: torch.dtype, tolerance: float) -> None:
    model = build(name).to(dtype)
    x = sequence(model, dtype=dtype)
    y, _ = model(x, backend="sequential")
    assert y.dtype == dtype
    assert_close(y.double(), model.definition(x), tolerance)


@each_model
@pytest.mark.parametrize("scale", [30.0, 1000.0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_inputs_give_finite_outputs_and_gradients(
    name: str, scale: float, dtype: torch.dtype
) -> None:
    model = build(name).to(dtype)
    x = (scale * sequence(model).sign()).to(dtype).requires_grad_()
    y, _ = model(x, backend="sequential")
    assert y.isfinite().all()
    for leaf, gradient in gradients(model, x, y).items():
        assert gradient.isfinite().all(), leaf


@each_model
@pytest.mark.parametrize("split", [1, 8, 16])
def test_a_passed_on_state_continues_the_sequence(name: str, split: int) -> None:
    model = build(name).double()
    x = sequence(model)
    whole, final = model(x, backend="sequential")
    if final is None or model.depends_on_length:
        pytest.skip(f"{name} has no state, or is another function of a part than of the whole")
    head, state = model(x[:, :split], backend="sequential")
    tail, last = model(x[:, split:], backend="sequential", state=state)
    assert_close(torch.cat([head, tail], dim=1), whole, 1e-12)
    assert_close(last, final, 1e-12)


@each_model
def test_gradients_flow_through_a_passed_on_state(name: str) -> None:
    model = build(name).double()
    x = sequence(model).requires_grad_()
    whole, final = model(x, backend="sequential")
    if final is None or model.depends_on_length:
        pytest.skip(f"{name} has no state, or is another function of a part than of the whole")
    head, state = model(x[:, :8], backend="sequential")
    tail, _ = model(x[:, 8:], backend="sequential", state=state)
    got, want = gradients(model, x, torch.cat([head, tail], dim=1)), gradients(model, x, whole)
    for leaf, gradient in want.items():
        assert_close(got[leaf], gradient, 1e-10)


@each_model
def test_it_explains_itself(name: str) -> None:
    entry = registry.model(name)
    assert entry.cls.__doc__ and entry.cls.definition is not Model.definition
    assert all(registry.shapes(entry, preset) for preset in ("smoke", "standard", "long"))


@each_model
def test_its_initialisation_follows_the_seed(name: str) -> None:
    one, same, other = (build(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in one.values())
    assert not one or any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", LOWER_BOUNDED)
def test_a_raised_lower_bound_computes_its_definition(name: str) -> None:
    model = build(name, lower_bound=5 / 6).double()
    x = sequence(model)
    y, _ = model(x, backend="sequential")
    assert_close(y, model.definition(x), 1e-10)
    assert (model.operands(x)["log_a"] > math.log(5 / 6)).all()


@pytest.mark.parametrize("lower_bound", [1.0, -0.1, math.nan])
@pytest.mark.parametrize("name", LOWER_BOUNDED)
def test_a_lower_bound_outside_its_range_is_refused(name: str, lower_bound: float) -> None:
    with pytest.raises(UsageError, match="lower bound"):
        build(name, lower_bound=lower_bound)


@pytest.mark.parametrize("lower_bound", [0.0, 1e-9, 0.5, 5 / 6, 0.9999])
def test_the_bounded_forget_gate_keeps_its_relative_precision(lower_bound: float) -> None:
    z = torch.linspace(-40, 40, 161, dtype=torch.float64)
    f = lower_bound + (1 - lower_bound) * torch.sigmoid(z)
    rest = (1 - lower_bound) * torch.sigmoid(-z)
    want = torch.where(z > 0, torch.log1p(-rest), torch.log(f))
    log_f, got_rest = forget_gate(z.float(), lower_bound)
    assert (log_f <= 0).all()
    torch.testing.assert_close(log_f.double(), want, rtol=2e-5, atol=4e-6 * (lower_bound > 0))
    near_one = (z > 5) & (lower_bound < 0.99)
    torch.testing.assert_close(log_f.double()[near_one], want[near_one], rtol=1e-5, atol=0)
    torch.testing.assert_close(got_rest.double(), rest, rtol=1e-6, atol=0)


def test_rg_lru_keeps_a_small_input_near_a_gate_of_one_and_clips_the_slope() -> None:
    model = build("rg_lru")
    with torch.no_grad():
        model.decay.fill_(-20.0)  # log a of about -1e-8: float32 1 − a² is exactly 0
    x = sequence(model, dtype=torch.float32)
    want = build("rg_lru").double()
    want.load_state_dict(model.state_dict())
    assert_close(model.operands(x)["b"].double(), want.operands(x.double())["b"], 1e-5)

    with torch.no_grad():
        model.decay.fill_(-80.0)  # log a rounds to −1e-34
    gradient = torch.autograd.grad(model.operands(x)["b"].sum(), model.decay)[0]
    assert gradient.isfinite().all()


def test_rg_lru_starts_on_its_ring() -> None:
    model = registry.model("rg_lru").cls({"C": 4096})
    radius = torch.exp(-torch.nn.functional.softplus(model.decay))
    assert radius.min() >= 0.9 - 1e-5 and radius.max() <= 0.999 + 1e-5
    assert radius.square().mean().item() == pytest.approx((0.9**2 + 0.999**2) / 2, abs=5e-3)


def test_lru_starts_on_its_ring_with_unit_noise_gain() -> None:
    model = registry.model("lru").cls({"C": 1024})
    log_a = model.operands(torch.zeros(1, 2, 1024))["log_a"]
    radius = torch.exp(log_a)
    assert radius.min() >= 0.9 - 1e-5 and radius.max() <= 0.999 + 1e-5
    gain = torch.exp(model.log_gamma).square() / (1 - radius.double().square())
    torch.testing.assert_close(gain, torch.ones_like(gain), rtol=1e-3, atol=0)


def test_mamba2_projects_x_b_c_and_the_step_from_the_blocks_input() -> None:
    model = build("mamba2")
    inner, K, H = SIZES["H"] * SIZES["V"], SIZES["K"], SIZES["H"]
    assert model.width == inner // 2
    sizes = {name: tuple(getattr(model, name).weight.shape) for name in ("input", "B", "C", "step")}
    width = inner // 2
    assert sizes == {"input": (inner, width), "B": (K, width), "C": (K, width), "step": (H, width)}
    with pytest.raises(UsageError, match="divide"):
        registry.model("mamba2").cls({"H": 3, "K": 2, "V": 5})
    assert registry.model("mamba2").cls({"H": 3, "K": 2, "V": 5}, expand=3).width == 5


def test_hgrn2_expands_its_channels_into_heads_of_a_width() -> None:
    sizes = Shape(B=1, T=1, H=2, K=3, V=8)
    expanded = registry.model("hgrn2").cls(sizes, expand=4)
    assert {letter: expanded.shape[letter] for letter in "HKV"} == {"H": 4, "K": 4, "V": 4}
    assert expanded.width == 16
    with pytest.raises(UsageError, match="expand=5"):
        registry.model("hgrn2").cls(sizes, expand=5)


def test_mamba2_starts_with_steps_and_rates_in_their_ranges() -> None:
    model = registry.model("mamba2").cls({"H": 512, "K": 1, "V": 1})
    step = torch.nn.functional.softplus(model.step_bias)
    assert step.min() >= 1e-3 * (1 - 1e-4) and step.max() <= 1e-1 * (1 + 1e-4)
    rate = torch.exp(model.A_log)
    assert rate.min() >= 1 - 1e-5 and rate.max() <= 16 + 1e-5


def test_retnet_decays_survive_a_half_precision_layer() -> None:
    model = registry.model("retnet").cls({"H": 12, "K": 2, "V": 2}).to(torch.bfloat16)
    log_a = model.operands(torch.ones(1, 2, 24, dtype=torch.bfloat16))["log_a"]
    want = [math.log1p(-(2.0 ** (-5 - h))) for h in range(12)]
    torch.testing.assert_close(log_a, torch.tensor(want))


def test_retnet_xpos_refuses_an_odd_number_of_key_channels() -> None:
    with pytest.raises(UsageError, match="even"):
        registry.model("retnet_xpos").cls({"H": 1, "K": 5, "V": 2})


def test_the_positive_feature_map_is_positive_in_half_precision() -> None:
    z = torch.tensor([-30.0, -8.0, -1.0, 0.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    phi = feature_map(z)
    assert (phi > 0).all()
    slope = torch.autograd.grad(phi.sum(), z)[0]
    torch.testing.assert_close(slope.float(), z.detach().float().clamp(max=0).exp(), rtol=1e-2, atol=0)
