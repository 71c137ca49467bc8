"""Cross-model identities: all that are registered hold, and near misses do not.

See docs/recurrences.md#identities.

The identities themselves lie in `impls/identities`; the correctness suite puts every backend to them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ssmperf.impls.identities.attention import projections, rotate
from ssmperf.impls.identities.common import B, C, H, K, T, V, build, normal
from torch import Tensor
from torch.nn import functional

from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge import known_answers as answers
from ssmperf.suitekit import registry

Run = Callable[..., Tensor]


@pytest.fixture(params=["definition", "sequential"])
def run(request: pytest.FixtureRequest) -> Run:
    """`run(recurrence, **operands) -> output`."""

    def compute(recurrence: str, **operands: Tensor) -> Tensor:
        if request.param == "definition":
            return registry.recurrence(recurrence).definition(**operands)[0]
        return registry.backend(recurrence, "sequential").function(**operands)[0]

    return compute


def assert_different(got: Tensor, want: Tensor, least: float = 0.05) -> None:
    assert (got - want).abs().max() > least * want.abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", registry.identities())
def test_it_holds_of_the_definition_and_of_the_sequential_backend(name: str, dtype: torch.dtype) -> None:
    entry = registry.identities()[name]
    errors, unsound = answers.rehearse(entry, dtype)
    assert unsound is None
    assert max(errors.values()) < (1e-12 if dtype == torch.float64 else 1e-4)
    sequential = registry.backend(entry.of, "sequential")
    verdict = answers.judge_identity(
        entry, (errors, None), sequential, dtype, "cpu", lambda operands: None, "channels_last"
    )
    assert verdict.status is Status.OK, verdict.reason


@pytest.mark.parametrize("name", registry.identities())
def test_it_compares_values_of_one_shape_that_are_not_all_zero(name: str) -> None:
    entry = registry.identities()[name]
    definition = registry.recurrence(entry.of).definition
    sides = list(entry.function(answers.ComputeUnderTest(entry.of, definition, torch.float64)))
    assert len({label for label, _, _ in sides}) == len(sides) > 0
    for _, left, right in sides:
        assert left.shape == right.shape and left.abs().max() > 0.01


@pytest.mark.parametrize("name", registry.identities())
def test_it_speaks_of_models_that_exist(name: str) -> None:
    assert set(registry.identities()[name].subjects) <= set(registry.models())


def test_an_identity_that_is_none_blames_the_definition() -> None:
    def off(compute: answers.Compute) -> list[answers.Comparison]:
        b = normal(B, T, C)
        return [("output", compute("scan", log_a=torch.zeros(C), b=b)[0], b)]

    entry = answers.Identity("off", "scan", (), off, "")
    assert "the definition does not fulfil" in str(answers.rehearse(entry, torch.float64)[1])


def test_gateloop_gates_the_key_axis_not_the_value_axis(run: Run) -> None:
    q, k, v, z = (normal(B, T, H, K, seed=seed) for seed in (1, 2, 3, 4))
    log_a = functional.logsigmoid(z)
    key_gated = run("linear_attention", q=q, k=k, v=v, log_a=log_a)
    assert_different(run("linear_attention", q=q, k=k, v=v, log_b=log_a), key_gated)


def test_a_rotation_with_the_gate_of_the_other_sign_is_another_function(run: Run) -> None:
    model = build("retnet_xpos", H=H, K=K, V=V)
    x = normal(B, T, H * V)
    operands = model.operands(x)
    mixed = {**operands, "phase": -operands["phase"]}
    assert_different(run("linear_attention", **mixed).real.flatten(-2), model.definition(x))
    q, k, _ = projections(model, x)
    assert_different(rotate(q), q)
    assert_different(rotate(k), k)


def test_mingru_is_not_s6_with_eulers_rule(run: Run) -> None:
    model = build("mingru", C=C)
    x = normal(B, T, C)
    step = functional.softplus(model.update(x))
    assert_different(run("scan", log_a=-step, b=step * model.candidate(x)), model.definition(x))


@pytest.mark.parametrize("name", ["mingru_pos", "minlstm_pos"])
def test_a_log_space_scan_from_log_g_of_h0_is_another_function(run: Run, name: str) -> None:
    operands = build(name, C=C).operands(normal(B, T, C))
    h_0 = normal(B, C, seed=7).exp()

    def g(h: Tensor) -> Tensor:
        return torch.where(h >= 0, functional.relu(h) + 0.5, torch.sigmoid(h))

    for state in (h_0, torch.zeros_like(h_0)):
        assert_different(
            run("scan", **operands, initial_state=g(state)), run("scan", **operands, initial_state=state)
        )


@pytest.mark.parametrize(("plain", "positive"), [("mingru", "mingru_pos"), ("minlstm", "minlstm_pos")])
def test_the_positive_form_is_another_model(plain: str, positive: str) -> None:
    one, other = build(plain, C=C), build(positive, C=C)
    other.load_state_dict(one.state_dict())
    x = normal(B, T, C)
    assert (other.definition(x) > 0).all()
    assert_different(other.definition(x), one.definition(x))


@pytest.mark.parametrize("name", ["mingru", "hgrn", "minlstm"])
def test_convex_updates_stay_in_the_range_of_their_inputs(run: Run, name: str) -> None:
    operands = build(name, C=C).operands(normal(B, T, C))
    rest = -torch.expm1(operands["log_a"])  # 1 − a, the weight of the input
    inputs = operands["b"] / rest
    h = run("scan", **operands)
    assert (h <= inputs.cummax(1).values.clamp(min=0) + 1e-12).all()
    assert (h >= inputs.cummin(1).values.clamp(max=0) - 1e-12).all()


def test_rg_lru_gate_is_no_sigmoid_of_plus_lambda() -> None:
    model = build("rg_lru", C=C)
    x = normal(B, T, C)
    r = torch.sigmoid(model.recurrence_gate(x))
    a = torch.exp(model.operands(x)["log_a"])
    assert_different(a, torch.sigmoid(model.decay) ** (8 * r))


def test_rg_lru_with_longhorns_printed_root_is_another_function() -> None:
    model = build("rg_lru", C=C)
    x = normal(B, T, C)
    operands = model.operands(x)
    a, gated = torch.exp(operands["log_a"]), torch.sigmoid(model.input_gate(x)) * x
    torch.testing.assert_close(
        a**2 + (operands["b"] / gated) ** 2, torch.ones_like(a), rtol=1e-11, atol=1e-11
    )
    assert_different(torch.sqrt(1 - a) * gated, operands["b"])
